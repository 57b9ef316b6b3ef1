"""Every tensor has memory of its own: the baseline of paper 000, section 5."""

from scheduler.memory.lifetimes import Lifetimes
from scheduler.memory.plan import MemoryPlan, planners, shared_objects


def plan_naive(lifetimes: Lifetimes, alignment: int = 1) -> MemoryPlan:
    """A plan without sharing."""
    return shared_objects(lifetimes, [[i] for i in range(len(lifetimes.tensors))])


planners.register("naive")(plan_naive)
