"""Memory planning: tensors that are never alive together share memory (paper 000, section 5).

Every module of this folder is imported with the package, so that a new file with a
planner needs no registration elsewhere.
"""

from predictors.registry import import_modules
from scheduler.memory.plan import Lifetime, Lifetimes, MemoryPlan, Planner, planners

__all__ = ["Lifetime", "Lifetimes", "MemoryPlan", "Planner", "plan_memory", "planners"]

import_modules(__name__, __path__)


def plan_memory(lifetimes: Lifetimes, planner: str = "offset", alignment: int = 64) -> MemoryPlan:
    """Return the positions of tensors in memory.

    Args:
        planner: Name of the planner, such as ``naive``, ``greedy``, ``flow`` or ``offset``.
        alignment: Offsets are multiples of this many bytes.

    Raises:
        UnknownNameError: If there is no such planner.
    """
    return planners.get(planner)(lifetimes, alignment)
