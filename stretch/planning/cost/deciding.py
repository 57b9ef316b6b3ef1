"""Which numbers of a profile decide what is recommended, and how fast the other processors would have to be."""

from collections.abc import Collection, Mapping

import msgspec

from stretch.planning.cost.compare import PredictedRun, advised
from stretch.planning.cost.uncertain import Floats, Unknown, computing, drawn

#: Factors on the times that hang together.
FACTORS = (0.5, 2.0)

#: Beyond this many times as fast no processor of a device is.
FASTEST = 64.0

#: Halvings of the interval, as a ratio, in which the crossover lies: six digits.
_HALVINGS = 22


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A design if numbers that hang together were others."""

    numbers: str  # Which: ``times on gpu``, ``all links`` or ``contention``.
    factor: float  # On all of them.
    makespan_ms: float  # Of the branched run.
    speedup: float | None  # Over the fastest control that may be recommended, whose numbers change alike; None if there is none.
    recommended: str  # What would be recommended then.


class Deciding(msgspec.Struct, frozen=True, kw_only=True):
    """What a recommendation hangs on; the fields are keys of `predicted` in the command line's JSON."""

    changes: tuple[Change, ...]  # The design with each group of numbers at half and at twice of what it is.
    #: How many times as fast all processors but the best single one would have to be for the same branches to take no longer than that one
    #: alone; None if they do already, never would, or no single processor was compared.
    crossover: float | None


def deciding(branched: PredictedRun, controls: Mapping[str, PredictedRun], names: Collection[str], single: str | None) -> Deciding:
    """What a recommendation hangs on.

    Args:
        single: Name of the best single processor among them, as ``single:gpu``; None if it was not compared.
    """
    beatable = {name: control for name, control in controls.items() if name not in names}
    draws = drawn(key for run in (branched, *beatable.values()) for key in run.unknowns)
    groups = sorted({key.group for key in draws if key.group})
    changes = tuple(_changed(group, factor, branched, beatable, draws) for group in groups for factor in FACTORS)
    alone = controls.get(single) if single else None
    return Deciding(changes=changes, crossover=_crossover(branched, alone, single.partition(":")[2]) if single and alone else None)


def _changed(
    group: str, factor: float, branched: PredictedRun, controls: Mapping[str, PredictedRun], draws: Mapping[Unknown, Floats]
) -> Change:
    fixed = {key: factor for key in draws if key.group == group}
    factors = {key: draw * fixed.get(key, 1.0) for key, draw in draws.items()}
    ms, theirs = branched.ms(fixed), {name: control.ms(fixed) for name, control in controls.items()}
    return Change(
        numbers=group,
        factor=factor,
        makespan_ms=ms,
        speedup=min(theirs.values()) / ms if theirs else None,
        recommended=advised(branched, controls, factors, fixed),
    )


def _crossover(branched: PredictedRun, single: PredictedRun, processor: str) -> float | None:
    """The branched run only gets faster as others do, and the single processor stays as it is."""
    others = [key for key in branched.unknowns if key.group.startswith(computing("")) and key.group != computing(processor)]
    bound = single.ms()

    def pays(faster: float) -> bool:
        return branched.ms(dict.fromkeys(others, 1 / faster)) <= bound

    if pays(1.0) or not pays(FASTEST):
        return None
    low, high = 1.0, FASTEST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
