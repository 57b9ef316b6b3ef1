"""Tensors side by side without copies: parts that are written where the whole lies, and ranges that are read where they lie.

Backends whose tensors are blocks of channels can do so where a part begins and ends with a block.
"""

from collections.abc import Collection
from typing import cast

from predictors.graph import Op, OpGraph


def copied_parts(graph: OpGraph, placed: Collection[str], unwritten: Collection[str], lanes: int) -> dict[str, list[str]]:
    """For each operator that puts tensors side by side the inputs that it has to copy.

    A part is written in place by the kernel that computes it, which writes it
    nowhere else: of several operators that read a tensor, the first has it.

    Args:
        graph: The network; `placed` operators join the second axis.
        placed: Kinds that put tensors side by side.
        unwritten: Kinds whose results are given or lie in other tensors.
        lanes: Channels in a block.
    """
    taken: set[str] = set()
    found: dict[str, list[str]] = {}
    for op in graph.ops:
        if op.kind not in placed:
            continue
        found[op.name], first = [], 0
        for name in op.inputs:
            part = graph.by_name[name]
            channels = part.shape[1]
            # Padding of a part that ends within a block would overwrite the next part.
            aligned = first % lanes == 0 and (channels % lanes == 0 or name == op.inputs[-1])
            written = bool(part.inputs) and part.kind not in placed and part.kind not in unwritten
            if aligned and written and name not in taken and name not in graph.outputs and op.inputs.count(name) == 1:
                taken.add(name)
            else:
                found[op.name].append(name)
            first += channels
    return found


def is_view(op: Op, viewed: Collection[str], lanes: int) -> bool:
    """Whether an operator takes a range of channels that begins with a block, so that it is read where it lies.

    Args:
        op: The operator.
        viewed: Kinds that take ranges of channels.
        lanes: Channels in a block.
    """
    return op.kind in viewed and cast("int", op.attrs["start"]) % lanes == 0
