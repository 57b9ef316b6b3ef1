"""How far a floor on ratios is lowered where it leaves no design."""

from stretch.planning.constraints.base import Limit

#: Floors are lowered in these steps, each of which needs a new design space.
STEPS = tuple(round(0.975 - 0.025 * i, 3) for i in range(37))

#: Room for rounding where blocks or channels are compared with a share of the original's.
ROUNDING = 1e-9


def floor_limit(value: float) -> Limit:
    """A floor with the steps below it."""
    return Limit(value, STEPS[-1], tuple(step for step in STEPS if step < value))
