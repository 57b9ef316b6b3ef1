"""Operators that cut, join, repeat and pad tensors."""

import math
from collections.abc import Mapping, Sequence

from scheduler.formats.onnx.shapes.node import (
    BOOL,
    FLOAT,
    INDICES,
    MAX_STEP,
    Cost,
    KnownTensor,
    Rule,
    ShapeNode,
    broadcast,
    distinct,
    gives,
    need,
    there,
)

#: From here on an end of a slice stands for the end of the axis.
_FAR = (1 << 31) - 1

_PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _concat(node: ShapeNode) -> Cost:
    tensors = node.tensors()
    need("axis" in node.attrs, "it does not say along which axis")
    axis = node.axis("axis", 0, len(tensors[0].shape))
    parts = [list(tensor.shape) for tensor in tensors]
    need(all(len(part) == len(parts[0]) for part in parts), "its inputs differ in their number of axes")
    widths = [part.pop(axis) for part in parts]
    need(all(part == parts[0] for part in parts), "its inputs differ beside the joined axis")
    shape = (*parts[0][:axis], sum(widths), *parts[0][axis:])
    return Cost((KnownTensor(shape, tensors[0].type, _joined(tensors)),), math.prod(shape))


def _joined(tensors: Sequence[KnownTensor]) -> tuple[float, ...] | None:
    """Elements of short constants one after the other, where they are lists."""
    values: list[float] = []
    for tensor in tensors:
        if tensor.values is None or len(tensor.shape) != 1:
            return None
        values += tensor.values
    return tuple(values)


def _split(node: ShapeNode) -> Cost:
    x, axis = node.tensor(0), node.axis("axis", 0, len(node.shape(0)))
    size, widths = x.shape[axis], node.listed("split", 1)
    if widths is None:
        count = node.whole("num_outputs", node.results)
        need(count == node.results and 0 < count <= size, f"it splits {size} into {count} parts for {node.results} results")
        width = -(-size // count)
        widths = [width] * (count - 1) + [size - width * (count - 1)]
    need(len(widths) == node.results and all(n > 0 for n in widths) and sum(widths) == size, f"it splits {size} into {widths}")
    return Cost(tuple(KnownTensor((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.type) for n in widths), x.size)


def _slice(node: ShapeNode) -> Cost:
    x, rank = node.tensor(0), len(node.shape(0))
    starts, ends = (there(node.listed(name, i), "it has no bounds") for name, i in (("starts", 1), ("ends", 2)))
    axes = node.listed("axes", 3)
    axes = distinct(range(len(starts)) if axes is None else axes, rank)
    steps = [1] * len(axes) if node.optional(4) is None else node.numbers(4)
    need(len(starts) == len(ends) == len(axes) == len(steps) and 0 not in steps, "its bounds do not fit together")
    shape = list(x.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        need(step > 0 or end < _FAR, f"it counts backwards to {end}, which runtimes read in two ways")
        shape[axis] = _cut(shape[axis], start, end, step)
        need(shape[axis] > 0, f"it cuts nothing from axis {axis}, from {start} to {end}")
    return gives(shape, x.size, x.type)


def _cut(size: int, start: int, end: int, step: int) -> int:
    """Elements between bounds, clamped as ONNX says: forwards to the axis, backwards to its elements and before them."""
    first, last = (bound + size if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return len(range(min(max(first, 0), size), min(max(last, 0), size), step))
    return len(range(min(max(first, 0), size - 1), min(max(last, -1), size - 1), step))


def _pad(node: ShapeNode) -> Cost:
    x, widths = node.tensor(0), there(node.listed("pads", 1), "it does not say how much it pads")
    pads = node.optional(3)
    axes = list(range(len(x.shape))) if pads is None else distinct(node.numbers(3), len(x.shape))
    need(len(widths) == 2 * len(axes) and all(-MAX_STEP <= n <= MAX_STEP for n in widths), f"it pads by {widths}")
    mode = node.word("mode", "constant")
    need(mode in _PAD_MODES, f"it pads in the mode `{mode[:20]}`")
    shape = list(x.shape)
    for i, axis in enumerate(axes):
        before, after = widths[i], widths[i + len(axes)]
        # A negative width cuts off.
        need(shape[axis] + min(0, before) + min(0, after) > 0, f"it cuts off everything by {widths}")
        limit = {"reflect": shape[axis] - 1, "wrap": shape[axis]}.get(mode, MAX_STEP)
        need(max(before, after) <= limit, f"it pads axis {axis} of {shape[axis]} by {max(before, after)} in the mode `{mode}`")
        shape[axis] += before + after
    return gives(shape, math.prod(shape), x.type)


def _expand(node: ShapeNode) -> Cost:
    x, sizes = node.tensor(0), node.numbers(1)
    need(all(n > 0 for n in sizes), f"it makes {sizes}")
    shape = broadcast([x.shape, tuple(sizes)])
    return gives(shape, math.prod(shape), x.type)


def _tile(node: ShapeNode) -> Cost:
    x, times = node.tensor(0), node.numbers(1)
    need(len(times) == len(x.shape) and all(n > 0 for n in times), f"it repeats {list(x.shape)} {times} times")
    shape = [n * k for n, k in zip(x.shape, times, strict=True)]
    return gives(shape, math.prod(shape), x.type)


def _trilu(node: ShapeNode) -> Cost:
    x = node.tensor(0, frozenset({FLOAT, BOOL}) | INDICES)
    need(len(x.shape) >= 2, f"its input has the shape {list(x.shape)}")
    need(node.optional(1) is None or node.shape(1) in ((), (1,)), "its diagonal is no single number")
    return gives(x.shape, x.size, x.type)


RULES: Mapping[str, Rule] = {
    "Concat": _concat,
    "Expand": _expand,
    "Pad": _pad,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
    "Trilu": _trilu,
}
