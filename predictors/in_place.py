"""Tensors side by side without copies: parts that are written where the whole lies, and ranges that are read where they lie.

Backends whose tensors are blocks of channels can do so where a part begins and ends with a block.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, cast

from predictors.graph import Op, OpGraph


class TensorPlace(NamedTuple):
    """Where a tensor is written."""

    whole: str  # Name of the tensor that it is a part of.
    first: int  # Its first channel there.


def places(
    wholes: Iterable[tuple[str, Sequence[str]]], channels: Mapping[str, int], written: Collection[str], lanes: int
) -> dict[str, TensorPlace]:
    """Tensors that the kernels which compute them write straight into a larger one.

    A kernel writes its result nowhere else: of several tensors that it is a part of, the last has it. In a dense block the last one
    contains all others, which then lie in it (`lies_in`).

    Args:
        wholes: Names of tensors and, in order, of those that lie side by side in each; the tensors in the order in which they are made.
        written: Tensors that kernels write, and that may lie elsewhere than by themselves.
    """
    places_by_name: dict[str, TensorPlace] = {}
    for whole, parts in reversed(list(wholes)):
        first = 0
        for name in parts:
            # Padding of a part that ends within a block would overwrite the next part's first lanes.
            aligned = first % lanes == 0 and (channels[name] % lanes == 0 or name == parts[-1])
            if aligned and name in written and name not in places_by_name and parts.count(name) == 1:
                places_by_name[name] = TensorPlace(whole, first)
            first += channels[name]
    return places_by_name


def lies_in(parts: Sequence[str], channels: Mapping[str, int], placed: Mapping[str, TensorPlace]) -> TensorPlace | None:
    """Where the parts of a tensor lie side by side in another one already, so that nothing is copied; None if they do not."""
    start = placed.get(parts[0])
    if start is None:
        return None
    firsts = accumulate((channels[name] for name in parts[:-1]), initial=start.first)
    return start if all(placed.get(name) == (start.whole, first) for name, first in zip(parts, firsts, strict=True)) else None


def copied_parts(graph: OpGraph, placed: Collection[str], unwritten: Collection[str], lanes: int) -> dict[str, list[str]]:
    """For each operator that puts tensors side by side the inputs that it has to copy.

    Args:
        graph: The network; `placed` operators join the second axis.
        unwritten: Kinds whose results are given or lie in other tensors.
    """
    wholes = {op.name: op.inputs for op in graph.ops if op.kind in placed}
    if not wholes:
        return {}
    channels = {name: graph.by_name[name].shape[1] for parts in wholes.values() for name in parts}
    others = [op for op in graph.ops if op.kind not in placed and op.kind not in unwritten]
    written = {op.name for op in others if op.inputs and op.name not in graph.outputs}
    placed_parts = places(wholes.items(), channels, written, lanes)
    return {
        whole: []
        if whole not in graph.outputs and lies_in(parts, channels, placed_parts)
        else [name for name in parts if name not in placed_parts or placed_parts[name].whole != whole]
        for whole, parts in wholes.items()
    }


def is_view(op: Op, viewed: Collection[str], lanes: int) -> bool:
    """Whether an operator takes a range of channels that begins with a block, so that it is read where it lies.

    Args:
        viewed: Kinds that take ranges of channels.
    """
    return op.kind in viewed and cast("int", op.attrs["start"]) % lanes == 0
