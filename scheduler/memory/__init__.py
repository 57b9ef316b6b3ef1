"""Memory planning: tensors that are never alive together share memory (paper 000, section 5)."""

from collections.abc import Callable

from predictors.registry import Registry
from scheduler.memory.flow import plan_flow
from scheduler.memory.greedy import plan_greedy
from scheduler.memory.lifetimes import Lifetime, Lifetimes, chained
from scheduler.memory.naive import plan_naive
from scheduler.memory.offset import plan_offset
from scheduler.memory.plan import MemoryPlan

__all__ = ["Lifetime", "Lifetimes", "MemoryPlan", "Planner", "chained", "plan_memory", "planners"]

#: Gives tensors their place; the number is the alignment of offsets in bytes.
Planner = Callable[[Lifetimes, int], MemoryPlan]

planners: Registry[Planner] = Registry("memory planner")
planners.register("naive")(plan_naive)
planners.register("greedy")(plan_greedy)
planners.register("flow")(plan_flow)
planners.register("offset")(plan_offset)


def plan_memory(lifetimes: Lifetimes, planner: str = "offset", alignment: int = 64) -> MemoryPlan:
    """Where tensors lie.

    Args:
        lifetimes: The tensors and when they are alive.
        planner: ``naive``, ``greedy``, ``flow`` or ``offset``.
        alignment: Offsets are multiples of this many bytes.

    Raises:
        UnknownNameError: If there is no such planner.
    """
    return planners.get(planner)(lifetimes, alignment)
