"""Whether fits made on two machines are one fit: sums of floats end in other last digits on other processors."""

import msgspec
from msgspec.structs import replace

from predictors.fits import Fit

#: Far above what the order of a sum changes (2e-5 between AVX2 and AVX-512), far below what another measurement would.
RELATIVE = 0.01

_SHARES = ("within_10", "within_20", "coverage")


def differences(fit: Fit, shipped: Fit) -> list[str]:
    """Where two fits differ by more than the arithmetic of two processors; empty if nowhere."""
    result = [
        f"{name}: has trees in one of them"
        for name in fit.groups.keys() & shipped.groups.keys()
        if (fit.groups[name].trees is None) != (shipped.groups[name].trees is None)
    ]
    # a network at the very border may fall to either side of it
    border = 2 / max(fit.held_out.networks, 1)
    result += [f"held_out.{share}" for share in _SHARES if abs(getattr(fit.held_out, share) - getattr(shipped.held_out, share)) > border]
    return result + _walk(_without_borders(fit), _without_borders(shipped), "")


def _without_borders(fit: Fit) -> object:
    """As plain data, less shares of networks, and less trees, whose splits may lie either side of a tie; `mape` judges them."""
    groups = {name: replace(group, trees=None) for name, group in fit.groups.items()}
    return msgspec.to_builtins(replace(fit, groups=groups, held_out=replace(fit.held_out, **dict.fromkeys(_SHARES, 0.0))))


def _walk(built: object, shipped: object, where: str) -> list[str]:
    if isinstance(built, dict) and isinstance(shipped, dict) and built.keys() == shipped.keys():
        return [node for key in built for node in _walk(built[key], shipped[key], f"{where}.{key}")]
    if isinstance(built, int | float) and isinstance(shipped, int | float):
        return [] if abs(built - shipped) <= RELATIVE * max(abs(built), abs(shipped)) else [f"{where}: {built} and {shipped}"]
    return [] if built == shipped else [f"{where}: {built} and {shipped}"]
