"""Concatenations and slices without copies: parts are written into the concatenation, and slices are read in place.

Backends whose tensors are blocks of channels can do this if a part begins and ends with a block.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import cast

from predictors.graph import Op, OpGraph

#: The position of a tensor inside a larger one: the larger tensor's name, and the first channel in it.
TensorPlacement = tuple[str, int]


def tensor_placements(
    producers: Iterable[tuple[str, Sequence[str]]], channels: Mapping[str, int], written: Collection[str], lanes: int
) -> dict[str, TensorPlacement]:
    """Return the tensors that kernels write directly into a larger tensor, with their positions.

    A kernel writes its result only once: if a tensor is part of several larger ones, the last one holds it. In a dense block the
    last one contains all others, which are then inside it (`lies_in`).

    Args:
        producers: Names of concatenated tensors, each with the names of its parts in order; in the order in which they are computed.
        written: Tensors that kernels write and that may be placed in a larger tensor.
    """
    placements: dict[str, TensorPlacement] = {}
    for tensor, parts in reversed(list(producers)):
        first = 0
        for name in parts:
            # Padding after a part that ends within a block would overwrite the first lanes of the next part.
            aligned = first % lanes == 0 and (channels[name] % lanes == 0 or name == parts[-1])
            if aligned and name in written and name not in placements and parts.count(name) == 1:
                placements[name] = tensor, first
            first += channels[name]
    return placements


def find_joined(parts: Sequence[str], channels: Mapping[str, int], placed: Mapping[str, TensorPlacement]) -> TensorPlacement | None:
    """Return the placement of a tensor whose parts are already adjacent inside another one, so that nothing is copied; else None."""
    start = placed.get(parts[0])
    if start is None:
        return None
    whole, start_channel = start
    first_channels = accumulate((channels[name] for name in parts[:-1]), initial=start_channel)
    return start if all(placed.get(name) == (whole, first) for name, first in zip(parts, first_channels, strict=True)) else None


def copied_parts(graph: OpGraph, placed: Collection[str], unwritten: Collection[str], lanes: int) -> dict[str, list[str]]:
    """Return for each operator that concatenates tensors the names of the inputs that it must copy.

    Args:
        graph: Network whose `placed` operators concatenate along the second axis.
        unwritten: Kinds whose results are inputs or are inside other tensors.
    """
    producers = {op.name: op.inputs for op in graph.ops if op.kind in placed}
    if not producers:
        return {}
    channels = {name: graph.by_name[name].shape[1] for parts in producers.values() for name in parts}
    others = [op for op in graph.ops if op.kind not in placed and op.kind not in unwritten]
    written = {op.name for op in others if op.inputs and op.name not in graph.outputs}
    placed_parts = tensor_placements(producers.items(), channels, written, lanes)
    return {
        tensor: []
        if tensor not in graph.outputs and find_joined(parts, channels, placed_parts)
        else [name for name in parts if name not in placed_parts or placed_parts[name][0] != tensor]
        for tensor, parts in producers.items()
    }


def is_view(op: Op, viewed: Collection[str], lanes: int) -> bool:
    """Return whether an operator selects a range of channels that begins with a block, and so is read in place.

    Args:
        viewed: Kinds that select ranges of channels.
    """
    return op.kind in viewed and cast("int", op.attrs["start"]) % lanes == 0
