"""Shared objects, closest in size first: algorithm 1 of paper 000."""

from scheduler.memory.lifetimes import Lifetimes
from scheduler.memory.plan import MemoryPlan, planners, shared_objects


def plan_greedy(lifetimes: Lifetimes, alignment: int = 1) -> MemoryPlan:
    """Give each tensor, in order of execution, the free object whose size is closest to its own.

    An object is free if all tensors that had it are certainly dead; it grows if
    it is too small, and a new one is made where none is free.
    """
    before, tensors = lifetimes.before, lifetimes.tensors
    groups: list[list[int]] = []
    sizes: list[int] = []
    for i, tensor in enumerate(tensors):
        free = [number for number, group in enumerate(groups) if all(before[other, i] for other in group)]
        if free:
            chosen = min(free, key=lambda number: (abs(sizes[number] - tensor.bytes), number))
            groups[chosen].append(i)
            sizes[chosen] = max(sizes[chosen], tensor.bytes)
        else:
            groups.append([i])
            sizes.append(tensor.bytes)
    return shared_objects(lifetimes, groups)


planners.register("greedy")(plan_greedy)
