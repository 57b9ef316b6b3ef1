"""One arena in which tensors lie at any offset: what runtimes after paper 000 do."""

from collections.abc import Iterable

from scheduler.memory.lifetimes import Lifetimes
from scheduler.memory.plan import MemoryPlan, planners


def plan_offset(lifetimes: Lifetimes, alignment: int = 1) -> MemoryPlan:
    """Place tensors one after the other at the lowest offset that is free while they live; the best of several orders.

    The largest first is nearly always best; the others are tried because they
    cost little and win where small tensors live long.

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
        row, at = overlap[i], 0
        for start, end, other in sorted(placed):
            if row[other] and start < at + tensors[i].bytes and at < end:
                at = -(-end // alignment) * alignment
        placed.append((at, at + tensors[i].bytes, i))
        size = max(size, at + tensors[i].bytes)
    offsets = {tensors[i].name: start for start, _, i in placed}
    return MemoryPlan(dict.fromkeys(offsets, 0), offsets, (size,) if placed else ())


planners.register("offset")(plan_offset)
