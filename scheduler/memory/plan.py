"""Positions of tensors in memory: lifetimes as a partial order, and the planners of paper 000, section 5.

Steps that may run at the same time have no order. Two tensors may share memory only if one of them is certainly dead
before the other is first written, in every possible order of steps. In a chain of steps this is the usual comparison
of intervals; it is never true between parallel branches.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from predictors.registry import Registry


@dataclass(frozen=True)
class Lifetime:
    """One tensor, with the steps that use it."""

    name: str  # Unique among the tensors planned together.
    bytes: int  # Size, above zero.
    steps: tuple[int, ...]  # Numbers of the steps that write or read it, at least one.


class Lifetimes:
    """Tensors and the order of the steps that use them.

    Args:
        tensors: Tensors in the order of their first write.
        after: For each step, the steps that must have ended before it starts,
            all with smaller numbers. None for steps in sequence.

    Raises:
        ValueError: If a name is used twice, a size is not above zero, a tensor
            is not used, or a step precedes a step that it needs.
    """

    def __init__(self, tensors: Sequence[Lifetime], after: Sequence[Sequence[int]] | None = None) -> None:
        self.tensors = tuple(tensors)
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise ValueError("two tensors have the same name")
        for tensor in tensors:
            if tensor.bytes < 1 or not tensor.steps or min(tensor.steps) < 0:
                raise ValueError(f"tensor `{tensor.name}` has {tensor.bytes} bytes and {len(tensor.steps)} steps")
        count = max((step for tensor in tensors for step in tensor.steps), default=-1) + 1
        if after is not None and len(after) < count:
            raise ValueError(f"a tensor is used by step {count - 1}, and there are {len(after)}")
        self._after = [tuple(needed) for needed in after] if after is not None else [(i - 1,) if i else () for i in range(count)]
        for step, needed in enumerate(self._after):
            if any(not 0 <= other < step for other in needed):
                raise ValueError(f"step {step} needs a step that does not come before it")

    @cached_property
    def before(self) -> NDArray[np.bool_]:
        """Element (a, b): tensor a is dead before tensor b is first written, in every possible order of steps."""
        earlier = self._earlier
        masks = [sum(1 << step for step in set(tensor.steps)) for tensor in self.tensors]
        order = np.zeros((len(masks), len(masks)), np.bool_)
        for j, tensor in enumerate(self.tensors):
            common = ~0
            for step in tensor.steps:
                common &= earlier[step]
            for i, mask in enumerate(masks):
                order[i, j] = i != j and mask & common == mask
        return order

    @property
    def overlap(self) -> NDArray[np.bool_]:
        """Element (a, b): tensors a and b may be alive at the same time; a tensor overlaps itself."""
        overlap: NDArray[np.bool_] = ~(self.before | self.before.T)
        return overlap

    @cached_property
    def _earlier(self) -> list[int]:
        """For each step, the steps that have certainly ended before its start, as bits."""
        masks: list[int] = []
        for needed in self._after:
            bits = 0
            for other in needed:
                bits |= masks[other] | 1 << other
            masks.append(bits)
        return masks


@dataclass(frozen=True)
class MemoryPlan:
    """Positions of tensors in memory."""

    arenas: Mapping[str, int]  # Number of the arena of each tensor.
    offsets: Mapping[str, int]  # First byte of each tensor in its arena.
    sizes: tuple[int, ...]  # Size of each arena in bytes. A shared object is an arena whose tensors all start at 0.

    @property
    def total_bytes(self) -> int:
        """Size of all arenas in bytes."""
        return sum(self.sizes)

    def problem(self, lifetimes: Lifetimes) -> str | None:
        """Return the reason why this plan would damage a tensor, or None."""
        overlap = lifetimes.overlap
        for i, tensor in enumerate(lifetimes.tensors):
            arena, start = self.arenas[tensor.name], self.offsets[tensor.name]
            if start < 0 or start + tensor.bytes > self.sizes[arena]:
                return f"tensor `{tensor.name}` leaves its arena"
            for j in range(i):
                other = lifetimes.tensors[j]
                begin = self.offsets[other.name]
                if overlap[i, j] and self.arenas[other.name] == arena and begin < start + tensor.bytes and start < begin + other.bytes:
                    return f"tensors `{other.name}` and `{tensor.name}` overlap in time and memory"
        return None


#: Returns the positions of tensors; the number is the alignment of offsets in bytes.
Planner = Callable[[Lifetimes, int], MemoryPlan]

#: Each planner registers itself: `planners.register("naive")(plan_naive)`.
planners: Registry[Planner] = Registry("memory planner")


def shared_objects(lifetimes: Lifetimes, groups: list[list[int]]) -> MemoryPlan:
    """Return a plan in which each group of tensors shares one piece of memory, one tensor at a time."""
    tensors = lifetimes.tensors
    arenas = {tensors[i].name: number for number, group in enumerate(groups) for i in group}
    return MemoryPlan(arenas, dict.fromkeys(arenas, 0), tuple(max(tensors[i].bytes for i in group) for group in groups))


def plan_naive(lifetimes: Lifetimes, alignment: int = 1) -> MemoryPlan:
    """Return a plan without sharing."""
    return shared_objects(lifetimes, [[i] for i in range(len(lifetimes.tensors))])


planners.register("naive")(plan_naive)


def plan_greedy(lifetimes: Lifetimes, alignment: int = 1) -> MemoryPlan:
    """Give each tensor, in order of execution, the free object whose size is closest to its own size.

    An object is free if all its previous tensors are certainly dead; it grows if
    it is too small, and a new one is created if none is free.
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


def plan_flow(lifetimes: Lifetimes, alignment: int = 1) -> MemoryPlan:
    """Let tensors take over objects so that the sum of their growth is minimal.

    Every capacity of the paper's network is 1, so its minimum-cost flow is an
    assignment: each tensor y either gets a new object, at the cost of its size,
    or takes over the object of a tensor x that is dead by then, at the cost
    max(0, size_y − size_x). SciPy solves this assignment.
    """
    from scipy.optimize import linear_sum_assignment

    count = len(lifetimes.tensors)
    if not count:
        return shared_objects(lifetimes, [])
    sizes = np.array([tensor.bytes for tensor in lifetimes.tensors], float)
    forbidden_cost = float(sizes.sum()) * 2 + 1
    # Rows: tensors that get an object. Columns: tensors that pass theirs on, then a new object for each tensor.
    takeover_costs = np.where(lifetimes.before.T, np.maximum(0.0, sizes[:, None] - sizes[None, :]), forbidden_cost)
    new_object_costs = np.where(np.eye(count, dtype=np.bool_), sizes[:, None], forbidden_cost)
    takers, givers = linear_sum_assignment(np.concatenate([takeover_costs, new_object_costs], axis=1))
    successor = {int(giver): int(taker) for taker, giver in zip(takers, givers, strict=True) if giver < count}
    groups = []
    for start in sorted(set(range(count)) - set(successor.values())):
        group = [start]
        while group[-1] in successor:
            group.append(successor[group[-1]])
        groups.append(group)
    return shared_objects(lifetimes, groups)


planners.register("flow")(plan_flow)


def plan_offset(lifetimes: Lifetimes, alignment: int = 1) -> MemoryPlan:
    """Place tensors one after the other at the lowest offset that is free during their lifetime; return the best of several orders.

    The order by size is nearly always best; the other orders are tried because
    they cost little and win if small tensors live long.

    Args:
        alignment: Offsets are multiples of this many bytes.
    """
    if alignment < 1:
        raise ValueError(f"an alignment of {alignment} bytes is not above zero")
    tensors = lifetimes.tensors
    overlap = lifetimes.overlap
    degree = overlap.sum(axis=1)
    orders = (
        sorted(range(len(tensors)), key=lambda i: (-tensors[i].bytes, i)),
        sorted(range(len(tensors)), key=lambda i: (-tensors[i].bytes * int(degree[i]), i)),
        sorted(range(len(tensors)), key=lambda i: (-int(degree[i]), -tensors[i].bytes, i)),
        range(len(tensors)),
    )
    plans = [_placed(lifetimes, order, overlap.tolist(), alignment) for order in orders]
    return min(plans, key=lambda plan: plan.total_bytes)


def _placed(lifetimes: Lifetimes, order: Iterable[int], overlap: list[list[bool]], alignment: int) -> MemoryPlan:
    tensors = lifetimes.tensors
    placed: list[tuple[int, int, int]] = []  # offset, end, tensor
    size = 0
    for i in order:
        row, offset = overlap[i], 0
        for start, end, other in sorted(placed):
            if row[other] and start < offset + tensors[i].bytes and offset < end:
                offset = -(-end // alignment) * alignment
        placed.append((offset, offset + tensors[i].bytes, i))
        size = max(size, offset + tensors[i].bytes)
    offsets = {tensors[i].name: start for start, _, i in placed}
    return MemoryPlan(dict.fromkeys(offsets, 0), offsets, (size,) if placed else ())


planners.register("offset")(plan_offset)
