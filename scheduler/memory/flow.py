"""Shared objects by a flow of least cost: the second planner of paper 000, section 5."""

import numpy as np

from scheduler.memory.lifetimes import Lifetimes
from scheduler.memory.plan import MemoryPlan, planners, shared_objects


def plan_flow(lifetimes: Lifetimes, alignment: int = 1) -> MemoryPlan:
    """Let tensors take over objects so that the sum of the growth is least.

    Every capacity of the paper's network is 1, so its flow of least cost is an
    assignment: each tensor y either has a new object, at the cost of its size,
    or takes over that of one tensor x which is dead by then, at the cost
    max(0, size_y − size_x). That is what SciPy solves.
    """
    from scipy.optimize import linear_sum_assignment

    count = len(lifetimes.tensors)
    if not count:
        return shared_objects(lifetimes, [])
    sizes = np.array([tensor.bytes for tensor in lifetimes.tensors], float)
    never = float(sizes.sum()) * 2 + 1
    # Rows: tensors that get an object. Columns: tensors that hand theirs on, then a new object for each.
    handed = np.where(lifetimes.before.T, np.maximum(0.0, sizes[:, None] - sizes[None, :]), never)
    fresh = np.where(np.eye(count, dtype=np.bool_), sizes[:, None], never)
    takers, givers = linear_sum_assignment(np.concatenate([handed, fresh], axis=1))
    successor = {int(giver): int(taker) for taker, giver in zip(takers, givers, strict=True) if giver < count}
    groups = []
    for start in sorted(set(range(count)) - set(successor.values())):
        group = [start]
        while group[-1] in successor:
            group.append(successor[group[-1]])
        groups.append(group)
    return shared_objects(lifetimes, groups)


planners.register("flow")(plan_flow)
