"""Whether fits made on two machines are one fit: sums of floats end in other last digits on other processors."""

import msgspec
from msgspec.structs import replace

from predictors.fits import Fit

#: Far above what the order of a sum changes (2e-5 between AVX2 and AVX-512), far below what another measurement would.
RELATIVE = 0.01

_SHARES = ("within_10", "within_20", "coverage")


def differences(made: Fit, shipped: Fit) -> list[str]:
    """Where two fits differ by more than the arithmetic of two processors; empty if nowhere."""
    found = [
        f"{name}: has trees in one of them"
        for name in made.groups.keys() & shipped.groups.keys()
        if (made.groups[name].trees is None) != (shipped.groups[name].trees is None)
    ]
    # a network at the very border may fall to either side of it
    border = 2 / max(made.held_out.networks, 1)
    found += [f"held_out.{share}" for share in _SHARES if abs(getattr(made.held_out, share) - getattr(shipped.held_out, share)) > border]
    return found + _walk(_without_borders(made), _without_borders(shipped), "")


def _without_borders(fit: Fit) -> object:
    """As plain data, less shares of networks, and less trees, whose splits may lie either side of a tie; `mape` judges them."""
    groups = {name: replace(group, trees=None) for name, group in fit.groups.items()}
    return msgspec.to_builtins(replace(fit, groups=groups, held_out=replace(fit.held_out, **dict.fromkeys(_SHARES, 0.0))))


def _walk(made: object, shipped: object, where: str) -> list[str]:
    if isinstance(made, dict) and isinstance(shipped, dict) and made.keys() == shipped.keys():
        return [each for key in made for each in _walk(made[key], shipped[key], f"{where}.{key}")]
    if isinstance(made, int | float) and isinstance(shipped, int | float):
        return [] if abs(made - shipped) <= RELATIVE * max(abs(made), abs(shipped)) else [f"{where}: {made} and {shipped}"]
    return [] if made == shipped else [f"{where}: {made} and {shipped}"]
