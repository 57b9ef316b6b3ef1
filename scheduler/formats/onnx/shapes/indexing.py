"""Operators that read or write elements where another tensor says."""

import math
from collections.abc import Mapping

from scheduler.formats.onnx.shapes.node import INDICES, INT64, NUMBERS, Cost, KnownTensor, Rule, ShapeNode, counted, gives, need

_INT64 = frozenset({INT64})


def _check_range(indices: KnownTensor, size: int) -> None:
    """Refuse known indices beyond the axis; a runtime may not look."""
    if indices.values is not None:
        need(all(-size <= n < size for n in indices.values), f"it reads beyond an axis of {size}")


def _gather(node: ShapeNode) -> Cost:
    x, indices = node.tensor(0), node.tensor(1, INDICES)
    axis = node.axis("axis", 0, len(x.shape))
    _check_range(indices, x.shape[axis])
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    values = None
    if len(x.shape) == 1 and x.values is not None and indices.values is not None:
        values = tuple(x.values[int(i)] for i in indices.values)
    return Cost((KnownTensor(shape, x.type, values),), math.prod(shape))


def _gather_elements(node: ShapeNode) -> Cost:
    x, indices = node.tensor(0), node.tensor(1, INDICES)
    axis = node.axis("axis", 0, len(x.shape))
    _check_beside(x, indices, axis)
    _check_range(indices, x.shape[axis])
    return gives(indices.shape, indices.size, x.type)


def _check_beside(x: KnownTensor, indices: KnownTensor, axis: int) -> None:
    """Indices must have the axes of what they point into, and be no larger beside the one along which they point."""
    need(len(indices.shape) == len(x.shape), f"its indices have the shape {list(indices.shape)} for {list(x.shape)}")
    fits = all(i == axis or n <= x.shape[i] for i, n in enumerate(indices.shape))
    need(fits, f"its indices have the shape {list(indices.shape)} for {list(x.shape)}")


def _pointed(x: KnownTensor, indices: KnownTensor, batch: int) -> tuple[int, ...]:
    """Sizes of what one tuple of indices points at."""
    need(bool(indices.shape and x.shape), "one of its inputs is a single number")
    most = min(len(x.shape), len(indices.shape) - 1 if batch else len(x.shape))
    need(0 <= batch <= most and x.shape[:batch] == indices.shape[:batch], f"its batch_dims is {batch}")
    depth = indices.shape[-1]
    need(1 <= depth <= len(x.shape) - batch, f"its indices have the shape {list(indices.shape)} for {list(x.shape)}")
    return x.shape[batch + depth :]


def _gather_nd(node: ShapeNode) -> Cost:
    x, indices = node.tensor(0), node.tensor(1, _INT64)
    shape = (*indices.shape[:-1], *_pointed(x, indices, node.whole("batch_dims", 0)))
    return gives(shape, math.prod(shape), x.type)


def _scatter_nd(node: ShapeNode) -> Cost:
    x, indices, updates = node.tensor(0), node.tensor(1, _INT64), node.tensor(2)
    wanted = (*indices.shape[:-1], *_pointed(x, indices, 0))
    need(updates.shape == wanted and updates.type == x.type, f"it writes {list(updates.shape)} where {list(wanted)} goes")
    return gives(x.shape, x.size + updates.size, x.type)


def _scatter_elements(node: ShapeNode) -> Cost:
    x, indices, updates = node.tensor(0), node.tensor(1, INDICES), node.tensor(2)
    axis = node.axis("axis", 0, len(x.shape))
    _check_beside(x, indices, axis)
    _check_range(indices, x.shape[axis])
    need(updates.shape == indices.shape and updates.type == x.type, f"it writes {list(updates.shape)} where {list(indices.shape)} goes")
    return gives(x.shape, x.size + updates.size, x.type)


def _one_hot(node: ShapeNode) -> Cost:
    indices, depth, values = node.tensor(0, NUMBERS), node.number(1), node.tensor(2)
    need(depth > 0 and values.shape == (2,), "it has no depth, or not two values")
    axis = counted(node.whole("axis", -1), len(indices.shape) + 1)
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    return gives(shape, math.prod(shape), values.type)


RULES: Mapping[str, Rule] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
