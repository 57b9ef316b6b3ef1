"""Operators that store, permute, slice, join, repeat, select and resize."""

import math
from collections.abc import Sequence

import numpy as np

from predictors.errors import need
from scheduler.formats.onnx.shapes.node import (
    BOOL,
    FLOAT,
    INDICES,
    INT64,
    MAX_RANK,
    MAX_STEP,
    NUMBERS,
    REALS,
    Cost,
    KnownTensor,
    ShapeNode,
    broadcast,
    moved_cost,
    normalise_axes,
    normalise_axis,
    require,
    result_cost,
    rule,
)

#: Maximum number of elements of a constant that may be sizes and therefore keeps its values.
MAX_VALUES = 16

#: Attributes of Constant that hold numbers: whether each is a list, and whether it holds reals.
_STORED = {"value_float": (False, True), "value_floats": (True, True), "value_int": (False, False), "value_ints": (True, False)}


def without_long_values(tensor: KnownTensor) -> KnownTensor:
    """Return the tensor, without its values if these are too many to be sizes."""
    return tensor if tensor.size <= MAX_VALUES else KnownTensor(tensor.shape, tensor.type)


@rule("Constant")
def _constant(node: ShapeNode) -> Cost:
    need(len(node.attrs) == 1 and not node.inputs, "it has no single value")
    [(name, value)] = node.attrs.items()
    if isinstance(value, KnownTensor):
        return Cost((value,), value.size)
    need(name in _STORED, f"it has its value as `{name}`")
    is_list, real = _STORED[name]
    values = tuple(value) if is_list else (value,)
    return Cost((without_long_values(KnownTensor((len(values),) if is_list else (), 1 if real else INT64, values)),), len(values))


@rule("Shape")
def _shape(node: ShapeNode) -> Cost:
    x, rank = node.shape(0), len(node.shape(0))
    dimensions = x[node.integer("start", 0) : node.integer("end", rank)]
    need(rank <= MAX_RANK, f"its input has {rank} axes")
    return Cost((KnownTensor((len(dimensions),), INT64, tuple(dimensions)),), rank)


@rule("Size")
def _size(node: ShapeNode) -> Cost:
    return Cost((KnownTensor((), INT64, (node.tensor(0).size,)),), 1)


@rule("ConstantOfShape")
def _constant_of_shape(node: ShapeNode) -> Cost:
    sizes, value = node.numbers(0), node.attrs.get("value", KnownTensor((1,), values=(0.0,)))
    need(isinstance(value, KnownTensor) and value.size == 1 and len(sizes) <= MAX_RANK, "its value is no single number")
    need(all(n > 0 for n in sizes), f"it makes {sizes}")
    size = math.prod(sizes)
    values = None if value.values is None or size > MAX_VALUES else value.values * size
    return Cost((KnownTensor(tuple(sizes), value.type, values),), size)


@rule("Range")
def _range(node: ShapeNode) -> Cost:
    bounds = [node.tensor(i, INDICES | {FLOAT}) for i in range(3)]
    need(len({bound.type for bound in bounds}) == 1, "its bounds differ in their element types")
    if bounds[0].type == FLOAT:
        return _real_range(bounds)
    first, last, step = (node.number(i) for i in range(3))
    need(step != 0, "its step is 0")
    counted = range(first, last, step)
    # `len` of a range overflows if its bounds are far apart.
    count = max(0, -(-(last - first) // step))
    return Cost((KnownTensor((count,), bounds[0].type, tuple(counted) if count <= MAX_VALUES else None),), count)


def _real_range(bounds: Sequence[KnownTensor]) -> Cost:
    """Return a range of reals, counted as in ONNX Runtime: the difference in single precision, the quotient in double."""
    need(all(bound.size == 1 and bound.values for bound in bounds), "its bounds are no single constants")
    first, last, step = (np.float32(bound.values[0]) for bound in bounds if bound.values)
    need(bool(step != 0 and np.isfinite([first, last, step, last - first]).all()), f"it goes from {first:g} to {last:g} by {step:g}")
    return result_cost((max(0, math.ceil(float(last - first) / float(step))),), 1)


@rule("Flatten")
def _flatten(node: ShapeNode) -> Cost:
    x, rank = node.tensor(0), len(node.shape(0))
    axis = node.integer("axis", 1)
    need(-rank <= axis <= rank, f"its axis is {axis}")
    # The axis may be one after the last axis.
    first = axis + rank if axis < 0 else axis
    return moved_cost(x, (math.prod(x.shape[:first]), math.prod(x.shape[first:])))


@rule("Reshape")
def _reshape(node: ShapeNode) -> Cost:
    """Return the cost of a Reshape: 0 keeps a size unless `allowzero`, and -1 is computed from the other sizes."""
    x, sizes = node.tensor(0), node.numbers(1)
    problem = f"it makes {sizes} of {list(x.shape)}"
    need(all(n >= -1 for n in sizes) and sizes.count(-1) <= 1, problem)
    if not node.integer("allowzero", 0):
        need(all(n or i < len(x.shape) for i, n in enumerate(sizes)), problem)
        sizes = [n or x.shape[i] for i, n in enumerate(sizes)]
    product = math.prod(n for n in sizes if n != -1)
    if -1 in sizes:
        need(product > 0 and x.size % product == 0, problem)
        sizes = [x.size // product if n == -1 else n for n in sizes]
    need(math.prod(sizes) == x.size, problem)
    return moved_cost(x, sizes)


@rule("Transpose")
def _transpose(node: ShapeNode) -> Cost:
    x, rank = node.tensor(0), len(node.shape(0))
    order = node.ints("perm", range(rank - 1, -1, -1), 0)
    need(sorted(order) == list(range(rank)), f"its order of axes is {list(order)}")
    return result_cost((x.shape[i] for i in order), x.size, x.type)


@rule("Squeeze")
def _squeeze(node: ShapeNode) -> Cost:
    x, axes = node.tensor(0), node.attribute_or_input("axes", 1)
    dropped = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else normalise_axes(axes, len(x.shape))
    need(all(x.shape[i] == 1 for i in dropped), f"it drops axes {dropped} of {list(x.shape)}")
    return moved_cost(x, [n for i, n in enumerate(x.shape) if i not in dropped])


@rule("Unsqueeze")
def _unsqueeze(node: ShapeNode) -> Cost:
    x, axes = node.tensor(0), node.attribute_or_input("axes", 1)
    need(axes is not None and len(axes) <= MAX_RANK, "it does not say which axes it adds")
    shape = list(x.shape)
    for axis in sorted(normalise_axes(axes or [], len(shape) + len(axes or []))):
        shape.insert(axis, 1)
    return moved_cost(x, shape)


@rule("DepthToSpace")
def _depth_to_space(node: ShapeNode) -> Cost:
    x, block = node.tensor(0), node.integer("blocksize", 0)
    need(len(x.shape) == 4 and block > 0 and x.shape[1] % block**2 == 0, f"it spreads {list(x.shape)} over blocks of {block}")
    n, channels, height, width = x.shape
    return result_cost((n, channels // block**2, height * block, width * block), x.size, x.type)


@rule("SpaceToDepth")
def _space_to_depth(node: ShapeNode) -> Cost:
    x, block = node.tensor(0), node.integer("blocksize", 0)
    need(len(x.shape) == 4 and block > 0 and not any(n % block for n in x.shape[2:]), f"it gathers {list(x.shape)} from blocks of {block}")
    n, channels, height, width = x.shape
    return result_cost((n, channels * block**2, height // block, width // block), x.size, x.type)


#: An end of a slice from this number on means the end of the axis.
_MAX_PADDING = (1 << 31) - 1

_PAD_MODES = ("constant", "reflect", "edge", "wrap")


@rule("Concat")
def _concat(node: ShapeNode) -> Cost:
    tensors = node.tensors()
    need("axis" in node.attrs, "it does not say along which axis")
    axis = node.axis("axis", 0, len(tensors[0].shape))
    parts = [list(tensor.shape) for tensor in tensors]
    need(all(len(part) == len(parts[0]) for part in parts), "its inputs differ in their number of axes")
    widths = [part.pop(axis) for part in parts]
    need(all(part == parts[0] for part in parts), "its inputs differ on another axis than the joined one")
    shape = (*parts[0][:axis], sum(widths), *parts[0][axis:])
    return Cost((KnownTensor(shape, tensors[0].type, _concatenated_values(tensors)),), math.prod(shape))


def _concatenated_values(tensors: Sequence[KnownTensor]) -> tuple[float, ...] | None:
    """Return the concatenated elements of short constants, if these are lists."""
    values: list[float] = []
    for tensor in tensors:
        if tensor.values is None or len(tensor.shape) != 1:
            return None
        values += tensor.values
    return tuple(values)


@rule("Split")
def _split(node: ShapeNode) -> Cost:
    x, axis = node.tensor(0), node.axis("axis", 0, len(node.shape(0)))
    size, widths = x.shape[axis], node.attribute_or_input("split", 1)
    if widths is None:
        count = node.integer("num_outputs", node.results)
        need(count == node.results and 0 < count <= size, f"it splits {size} into {count} parts for {node.results} results")
        width = -(-size // count)
        widths = [width] * (count - 1) + [size - width * (count - 1)]
    need(len(widths) == node.results and all(n > 0 for n in widths) and sum(widths) == size, f"it splits {size} into {widths}")
    return Cost(tuple(KnownTensor((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.type) for n in widths), x.size)


@rule("Slice")
def _slice(node: ShapeNode) -> Cost:
    x, rank = node.tensor(0), len(node.shape(0))
    starts, ends = (require(node.attribute_or_input(name, i), "it has no bounds") for name, i in (("starts", 1), ("ends", 2)))
    axes = node.attribute_or_input("axes", 3)
    axes = normalise_axes(range(len(starts)) if axes is None else axes, rank)
    steps = [1] * len(axes) if node.optional(4) is None else node.numbers(4)
    need(len(starts) == len(ends) == len(axes) == len(steps) and 0 not in steps, "its bounds do not fit together")
    shape = list(x.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        need(step > 0 or end < _MAX_PADDING, f"it counts backwards to {end}, which runtimes read in two ways")
        shape[axis] = _slice_length(shape[axis], start, end, step)
        need(shape[axis] > 0, f"it cuts nothing from axis {axis}, from {start} to {end}")
    return result_cost(shape, x.size, x.type)


def _slice_length(size: int, start: int, end: int, step: int) -> int:
    """Return the number of elements between bounds, clamped as in ONNX: forwards to the axis, backwards to its elements and one before."""
    first, last = (bound + size if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return len(range(min(max(first, 0), size), min(max(last, 0), size), step))
    return len(range(min(max(first, 0), size - 1), min(max(last, -1), size - 1), step))


@rule("Pad")
def _pad(node: ShapeNode) -> Cost:
    x, widths = node.tensor(0), require(node.attribute_or_input("pads", 1), "it does not say how much it pads")
    pads = node.optional(3)
    axes = list(range(len(x.shape))) if pads is None else normalise_axes(node.numbers(3), len(x.shape))
    need(len(widths) == 2 * len(axes) and all(-MAX_STEP <= n <= MAX_STEP for n in widths), f"it pads by {widths}")
    mode = node.string("mode", "constant")
    need(mode in _PAD_MODES, f"it pads in the mode `{mode[:20]}`")
    shape = list(x.shape)
    for i, axis in enumerate(axes):
        before, after = widths[i], widths[i + len(axes)]
        # A negative width crops.
        need(shape[axis] + min(0, before) + min(0, after) > 0, f"it cuts off everything by {widths}")
        limit = {"reflect": shape[axis] - 1, "wrap": shape[axis]}.get(mode, MAX_STEP)
        need(max(before, after) <= limit, f"it pads axis {axis} of {shape[axis]} by {max(before, after)} in the mode `{mode}`")
        shape[axis] += before + after
    return result_cost(shape, math.prod(shape), x.type)


@rule("Expand")
def _expand(node: ShapeNode) -> Cost:
    x, sizes = node.tensor(0), node.numbers(1)
    need(all(n > 0 for n in sizes), f"it makes {sizes}")
    shape = broadcast([x.shape, tuple(sizes)])
    return result_cost(shape, math.prod(shape), x.type)


@rule("Tile")
def _tile(node: ShapeNode) -> Cost:
    x, times = node.tensor(0), node.numbers(1)
    need(len(times) == len(x.shape) and all(n > 0 for n in times), f"it repeats {list(x.shape)} {times} times")
    shape = [n * k for n, k in zip(x.shape, times, strict=True)]
    return result_cost(shape, math.prod(shape), x.type)


@rule("Trilu")
def _trilu(node: ShapeNode) -> Cost:
    x = node.tensor(0, frozenset({FLOAT, BOOL}) | INDICES)
    need(len(x.shape) >= 2, f"its input has the shape {list(x.shape)}")
    need(node.optional(1) is None or node.shape(1) in ((), (1,)), "its diagonal is no single number")
    return result_cost(x.shape, x.size, x.type)


_INT64 = frozenset({INT64})


def _check_range(indices: KnownTensor, size: int) -> None:
    """Refuse known indices beyond the axis, which a runtime may not check."""
    if indices.values is not None:
        need(all(-size <= n < size for n in indices.values), f"it reads beyond an axis of {size}")


@rule("Gather")
def _gather(node: ShapeNode) -> Cost:
    x, indices = node.tensor(0), node.tensor(1, INDICES)
    axis = node.axis("axis", 0, len(x.shape))
    _check_range(indices, x.shape[axis])
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    values = None
    if len(x.shape) == 1 and x.values is not None and indices.values is not None:
        values = tuple(x.values[int(i)] for i in indices.values)
    return Cost((KnownTensor(shape, x.type, values),), math.prod(shape))


def _elements(node: ShapeNode) -> tuple[KnownTensor, KnownTensor]:
    """Return a tensor, and indices along one of its axes whose other sizes are at most the tensor's."""
    x, indices = node.tensor(0), node.tensor(1, INDICES)
    axis = node.axis("axis", 0, len(x.shape))
    fits = len(indices.shape) == len(x.shape) and all(i == axis or n <= x.shape[i] for i, n in enumerate(indices.shape))
    need(fits, f"its indices have the shape {list(indices.shape)} for {list(x.shape)}")
    _check_range(indices, x.shape[axis])
    return x, indices


@rule("GatherElements")
def _gather_elements(node: ShapeNode) -> Cost:
    x, indices = _elements(node)
    return result_cost(indices.shape, indices.size, x.type)


def _scatter(x: KnownTensor, updates: KnownTensor, expected: tuple[int, ...]) -> Cost:
    """Return the cost of writing a tensor of the expected shape into `x`."""
    need(updates.shape == expected and updates.type == x.type, f"it writes {list(updates.shape)} where {list(expected)} goes")
    return result_cost(x.shape, x.size + updates.size, x.type)


@rule("ScatterElements")
def _scatter_elements(node: ShapeNode) -> Cost:
    x, indices = _elements(node)
    return _scatter(x, node.tensor(2), indices.shape)


def _indexed_shape(x: KnownTensor, indices: KnownTensor, batch: int) -> tuple[int, ...]:
    """Return the shape of the part of `x` that one tuple of indices selects."""
    need(bool(indices.shape and x.shape), "one of its inputs is a single number")
    most = min(len(x.shape), len(indices.shape) - 1 if batch else len(x.shape))
    need(0 <= batch <= most and x.shape[:batch] == indices.shape[:batch], f"its batch_dims is {batch}")
    depth = indices.shape[-1]
    need(1 <= depth <= len(x.shape) - batch, f"its indices have the shape {list(indices.shape)} for {list(x.shape)}")
    return x.shape[batch + depth :]


@rule("GatherND")
def _gather_nd(node: ShapeNode) -> Cost:
    x, indices = node.tensor(0), node.tensor(1, _INT64)
    shape = (*indices.shape[:-1], *_indexed_shape(x, indices, node.integer("batch_dims", 0)))
    return result_cost(shape, math.prod(shape), x.type)


@rule("ScatterND")
def _scatter_nd(node: ShapeNode) -> Cost:
    x, indices = node.tensor(0), node.tensor(1, _INT64)
    return _scatter(x, node.tensor(2), (*indices.shape[:-1], *_indexed_shape(x, indices, 0)))


@rule("OneHot")
def _one_hot(node: ShapeNode) -> Cost:
    indices, depth, values = node.tensor(0, NUMBERS), node.number(1), node.tensor(2)
    need(depth > 0 and values.shape == (2,), "it has no depth, or not two values")
    axis = normalise_axis(node.integer("axis", -1), len(indices.shape) + 1)
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    return result_cost(shape, math.prod(shape), values.type)


#: Number of input elements that each mode reads per result element along one axis.
_TAPS = {"nearest": 1, "linear": 2, "cubic": 4, "bilinear": 2, "bicubic": 4}

#: Maximum factor on the size of an axis; an axis of one element, such as a global average, may grow to any size that a tensor may have.
MAX_SCALE = 64


@rule("Resize")
def _resize(node: ShapeNode) -> Cost:
    """Return the cost of a Resize by scales (input 2) or to sizes (input 3), for all axes."""
    x, mode = node.tensor(0, REALS), node.string("mode", "nearest")
    need(mode in _TAPS and "axes" not in node.attrs, f"it resizes in the mode `{mode[:20]}` along some axes")
    need(node.string("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize", "it crops")
    need(node.string("keep_aspect_ratio_policy", "stretch") == "stretch", "it keeps the ratio of its sides")
    sizes = node.optional(3)
    shape = _by_scales(node, x.shape) if sizes is None or not sizes.size else node.numbers(3)
    need(len(shape) == len(x.shape), f"it makes {shape} of {list(x.shape)}")
    allowed = all(new > 0 and (old == 1 or new <= MAX_SCALE * old) for new, old in zip(shape, x.shape, strict=True))
    need(allowed, f"it makes {shape} of {list(x.shape)}")
    axes = sum(new != old for new, old in zip(shape, x.shape, strict=True))
    # Antialiasing filters widen as they shrink an image: every input element counts once per tap, whatever the new size.
    shrunk = x.size if node.integer("antialias", 0) else 0
    return result_cost(shape, math.prod(shape) * _TAPS[mode] ** axes + shrunk * _TAPS[mode], x.type)


def _by_scales(node: ShapeNode, shape: tuple[int, ...]) -> list[int]:
    scales = require(node.tensor(2).values, "its scales are no constant")
    need(len(scales) == len(shape), "it has no scale for each axis")
    need(all(0 < scale < 1 << 31 for scale in scales), f"its scales are {list(scales)}")
    # In the stored precision of the scales, as runtimes compute it: 0.7 of 10 is 7.
    return [int(np.float32(size) * np.float32(scale)) for size, scale in zip(shape, scales, strict=True)]


@rule("GridSample")
def _grid_sample(node: ShapeNode) -> Cost:
    x, grid = node.tensor(0, REALS), node.tensor(1, REALS)
    axes, mode = len(x.shape) - 2, node.string("mode", "linear")
    fits = 2 <= axes <= 3 and len(grid.shape) == len(x.shape) and grid.shape[0] == x.shape[0] and grid.shape[-1] == axes
    need(fits and mode in _TAPS, f"its grid has the shape {list(grid.shape)} for {list(x.shape)}")
    shape = (*x.shape[:2], *grid.shape[1:-1])
    return result_cost(shape, math.prod(shape) * _TAPS[mode] ** axes, x.type)
