"""Operators of ONNX that move, cut, join, repeat and resize, that gather and scatter by indices, and that slide windows."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from onnx import helper
from torch import fx, nn

from predictors.errors import StretchError, need
from predictors.shapes import same_padding
from scheduler.formats.onnx.shapes.node import FLOAT, INT32, INT64, normalise_axis, require
from stretch.network.models.builder import MAX_KNOWN, Builder, permute_axes, rearrange, select_at, shape_of
from stretch.network.models.onnx.network import RULES, OnnxSite, Value, cost_of, rule
from stretch.operators.pooling import padded_pool
from stretch.operators.products import PaddedConv2d

_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _output_shape(site: OnnxSite) -> tuple[int, ...]:
    """Return the shape of a node's first result."""
    return cost_of(site.op, site.inputs, site.attrs, site.results).shape


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape_to(site: OnnxSite) -> fx.Node:
    """Translate ONNX Reshape, Flatten, Squeeze and Unsqueeze; merging all axes but the batch becomes torch's flatten."""
    before, after = site.shape, _output_shape(site)
    if before == after:
        return site.x
    if len(before) > 2 and after == (before[0], prod(before[1:])):
        return site.call(torch.flatten, site.x, 1)
    return site.call(torch.reshape, site.x, after)


@rule("Transpose")
def _transpose(site: OnnxSite) -> fx.Node:
    order = site.attrs.get("perm", list(reversed(range(len(site.shape)))))
    return permute_axes(site.builder, site.x, [normalise_axis(int(axis), len(site.shape)) for axis in order])


@rule("Concat")
def _concat(site: OnnxSite) -> fx.Node:
    parts = [site.tensor(i) for i in range(len(site.inputs))]
    return site.call(torch.cat, parts, site.integer("axis", 1))


@rule("Split")
def _split(site: OnnxSite) -> list[fx.Node]:
    axis = site.integer("axis")
    sizes = [result.shape[axis] for result in cost_of(site.op, site.inputs, site.attrs, site.results).results]
    parts = site.call(torch.split, site.x, sizes, axis)
    return [site.call(operator.getitem, parts, i) for i in range(site.results)]


@rule("Slice")
def _slice(site: OnnxSite) -> fx.Node:
    starts, ends = (require(site.int_list(name, i), "it has no bounds") for name, i in (("starts", 1), ("ends", 2)))
    axes, steps = site.int_list("axes", 3), site.int_list("steps", 4)
    _output_shape(site)
    items: list[Any] = [slice(None)] * len(site.shape)
    turned: list[int] = []
    for start, end, axis, step in zip(starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True):
        size = site.shape[axis]
        first, last, _ = slice(start, end, step).indices(size)
        if step < 0:
            # The same places, counted from the other end.
            turned.append(axis)
            first, last = size - 1 - first, size - 1 - last
        if (first, last, abs(step)) != (0, size, 1):
            items[axis] = slice(first, last, abs(step) if abs(step) != 1 else None)
    x = site.call(torch.flip, site.x, turned) if turned else site.x
    return x if items == [slice(None)] * len(items) else site.call(operator.getitem, x, tuple(items))


@rule("Trilu")
def _triangle(site: OnnxSite) -> fx.Node:
    shift = site.optional_stored(1, "diagonal")
    function = torch.triu if site.flag("upper", True) else torch.tril
    return site.call(function, site.x, 0 if shift is None else int(shift.ravel()[0]))


RULES.update(
    {
        "Expand": lambda site: site.method("expand", site.x, *_output_shape(site)),
        "Shape": lambda site: np.array(site.shape[site.attrs.get("start", 0) : site.attrs.get("end", len(site.shape))], np.int64),
        "Size": lambda site: np.array(prod(site.shape), np.int64),
        "Tile": lambda site: site.method("repeat", site.x, *site.numbers(1, "repeats")),
    }
)


def _pad_axes(site: OnnxSite, pairs: Sequence[tuple[int, int]], mode: str = "constant", value: float = 0.0) -> fx.Node:
    """Pad each axis before and after; torch pads only the last axes, and starts with the last one."""
    pairs = pairs[next((i for i, pair in enumerate(pairs) if any(pair)), len(pairs)) :]
    flat = [side for pair in reversed(pairs) for side in pair]
    if not flat:
        return site.x
    return site.call(F.pad, site.x, flat, *(("constant", value) if mode == "constant" else (_MODES[mode],)))


@rule("Pad")
def _pad(site: OnnxSite) -> fx.Node:
    widths, rank = site.int_list("pads", 1), len(site.shape)
    if widths is None or len(widths) != 2 * rank or site.value(3) is not None:
        raise StretchError(f"it pads by {widths} for {rank} axes")
    stored = site.optional_stored(2, "value")
    value = site.real("value", 0.0) if stored is None else float(stored.ravel()[0]) if stored.size else 0.0
    return _pad_axes(site, list(zip(widths[:rank], widths[rank:], strict=True)), site.attrs.get("mode", "constant"), value)


@rule("CenterCropPad")
def _center_crop_pad(site: OnnxSite) -> fx.Node:
    """Translate ONNX CenterCropPad: the given number of elements around the middle of each axis, padded with zeros."""
    shape, target = site.shape, site.numbers(1, "shape")
    axes = [normalise_axis(int(axis), len(shape)) for axis in site.attrs.get("axes", range(len(shape)))]
    pairs = [(0, 0)] * len(shape)
    for axis, size in zip(axes, target, strict=True):
        more = abs(size - shape[axis])
        pairs[axis] = (more // 2, more - more // 2) if size > shape[axis] else (-(more // 2), more // 2 - more)
    return _pad_axes(site, pairs)


@rule("Col2Im")
def _image_of_columns(site: OnnxSite) -> fx.Node:
    """Translate ONNX Col2Im: the sum of blocks at their places in an image."""
    size, block = (site.numbers(i, role) for i, role in ((1, "image"), (2, "block")))
    need(len(size) == 2 and len(block) == 2, f"its image has {len(size)} axes")
    steps, gaps = ([int(n) for n in site.attrs.get(name, [1, 1])] for name in ("strides", "dilations"))
    pads = [int(n) for n in site.attrs.get("pads", [0] * 4)]
    need(pads[:2] == pads[2:], "its padding differs between sides")
    return site.call(F.fold, site.x, size, block, dilation=gaps, padding=pads[:2], stride=steps)


@rule("EyeLike")
def _eye_like(site: OnnxSite) -> np.ndarray:
    """Translate ONNX EyeLike: 1 along a diagonal; only the shape of the input matters."""
    need(len(site.shape) == 2, f"it reads a tensor of shape {list(site.shape)}, no matrix")
    kind = site.integer("dtype", FLOAT)
    need(kind in (FLOAT, INT32, INT64), f"it makes type {kind}")
    rows, columns = site.shape
    ones: np.ndarray = np.eye(rows, columns, site.integer("k"), helper.tensor_dtype_to_np_dtype(kind))
    return ones


@rule("DepthToSpace", "SpaceToDepth")
def _blocks(site: OnnxSite) -> fx.Node:
    """Translate ONNX DepthToSpace and SpaceToDepth: channels become the pixels of blocks, or the reverse."""
    result = _output_shape(site)
    (n, c, h, w), block = site.shape, int(site.attrs["blocksize"])
    if site.op == "SpaceToDepth":
        return rearrange(site.builder, site.x, (n, c, h // block, block, w // block, block), (0, 3, 5, 1, 2, 4), result)
    if site.attrs.get("mode", "DCR") == "CRD":
        return site.call(F.pixel_shuffle, site.x, block)
    split = (n, block, block, c // block**2, h, w)
    return rearrange(site.builder, site.x, split, (0, 3, 4, 1, 5, 2), result)


#: Maximum distance from a half at which the runtime sees a half; in single precision few positions are exact.
_HALF = 1e-5


def _round_nearest(at: np.ndarray, up: bool) -> np.ndarray:
    """Round to the nearest whole number; `up` chooses the direction for halves."""
    low = np.floor(at)
    return np.asarray(low + np.where(np.abs(at - low - 0.5) < _HALF, up, at - low > 0.5))


_ROUNDING_MODES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": partial(_round_nearest, up=False),
    "round_prefer_ceil": partial(_round_nearest, up=True),
}


#: Largest side of an image that is resized by a matrix.
MAX_SIDE = 1 << 12

#: Attributes of a resizing that only one mode reads.
_RESIZES = {"nearest": ("nearest_mode",), "cubic": ("cubic_coeff_a", "exclude_outside")}


@rule("Upsample", "Resize")
def _resize(site: OnnxSite) -> fx.Node:
    """Translate ONNX Resize and Upsample; before opset 11 pixels are counted from the corner."""
    mode, coordinates = site.attrs.get("mode", "nearest"), site.attrs.get("coordinate_transformation_mode", "half_pixel")
    # mark the attributes of other modes as read
    for name in {"nearest_mode", "cubic_coeff_a", "exclude_outside"} - set(_RESIZES.get(mode, ())):
        site.attrs.get(name)
    if site.op == "Upsample" or site.opset < 11:
        coordinates = "asymmetric"
    size, scales = _resize_shape(site)
    need(len(size) == 4 and size[:2] == site.shape[:2] and "axes" not in site.attrs, f"it resizes {list(site.shape)} to {list(size)}")
    if size == site.shape:
        # Runtimes copy the input in this case, even if its scale is a little more than 1.
        return site.method("clone", site.x)
    target, factors = list(size[2:]), scales[2:]
    if mode == "nearest":
        rounding = site.attrs.get("nearest_mode", "floor" if site.opset < 11 else "round_prefer_floor")
        need(rounding in _ROUNDING_MODES, f"it rounds by `{rounding[:40]}`")
        pairs = zip(_resize_coordinates(site, coordinates, target, factors), site.shape[2:], strict=True)
        nearest = [np.clip(_ROUNDING_MODES[rounding](at), 0, old - 1).astype(np.int64) for at, old in pairs]
        return select_at(site.builder, site.x, nearest, site.name)
    smooth, aligned = site.flag("antialias"), coordinates == "align_corners"
    current = aligned or coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and all(n > 1 for n in target))
    exact = all(abs(factor * old - new) < 1e-3 for factor, old, new in zip(factors, site.shape[2:], target, strict=True))
    cubic, outside = site.real("cubic_coeff_a", -0.75), not site.flag("exclude_outside")
    outside = outside or (mode == "linear" and not smooth)
    usual = mode == "linear" or (abs(cubic + 0.75) <= 1e-6 and outside)
    if current and (aligned or exact) and usual and not smooth:
        named = {"linear": "bilinear", "cubic": "bicubic"}[mode]
        return site.call(F.interpolate, site.x, size=target, mode=named, align_corners=aligned, antialias=False)
    positions = _resize_coordinates(site, coordinates, target, factors)
    function = partial(_cubic, a=cubic) if mode == "cubic" else _tent
    need(mode in ("linear", "cubic") and not (smooth and aligned), f"it resizes by `{mode[:20]}` with coordinates `{coordinates}`")
    fits = max(*target, *site.shape[2:]) <= MAX_SIDE
    need(fits, f"it resizes {list(site.shape[2:])} to {target} pixels with coordinates that torch has not")
    rows, columns = (
        _shares(at, old, max(1.0, 1 / factor) if smooth else 1.0, function, outside=outside)
        for at, old, factor in zip(positions, site.shape[2:], factors, strict=True)
    )
    mixed = site.call(torch.matmul, site.add_tensor(rows, "rows"), site.x)
    return site.call(torch.matmul, mixed, site.add_tensor(columns.T, "columns"))


def _tent(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(0, 1 - np.abs(x)))


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Return the convolution kernel of Keys, Cubic Convolution Interpolation for Digital Image Processing, equation 15."""
    x = np.abs(x)
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, ((a + 2) * x - (a + 3)) * x * x + 1, np.where(x < 2, far, 0))


def _shares(at: np.ndarray, old: int, width: float, function: Callable[[np.ndarray], np.ndarray], *, outside: bool) -> np.ndarray:
    """Return the weight of each old pixel in each new one, new × old; pixels `outside` count as the border, or not at all."""
    reach = int(np.ceil(2 * width)) + old
    pixels = np.arange(-reach, old + reach)
    shares = function((pixels - at[:, None].astype(np.float64)) / width)
    shares = shares if outside else np.where((pixels >= 0) & (pixels < old), shares, 0)
    result = np.zeros((old, len(at)))
    np.add.at(result, np.clip(pixels, 0, old - 1), (shares / shares.sum(1, keepdims=True)).T)
    return np.asarray(result.T, np.float32)


def _resize_coordinates(site: OnnxSite, coordinates: str, target: Sequence[int], factors: Sequence[float]) -> list[np.ndarray]:
    """Return the position of each new row and column among the old ones (ONNX operators, Resize), in single precision as in runtimes."""
    positions = []
    for old, new, scale in zip(site.shape[2:], target, factors, strict=True):
        at, factor = np.arange(new, dtype=np.float32), np.float32(scale)
        match coordinates:
            case "asymmetric":
                positions.append(at / factor)
            case "align_corners":
                positions.append(at * np.float32(old - 1) / np.float32(new - 1) if new > 1 else at)
            case "pytorch_half_pixel" if new == 1:
                positions.append(at)
            case "half_pixel" | "pytorch_half_pixel":
                positions.append((at + np.float32(0.5)) / factor - np.float32(0.5))
            case "half_pixel_symmetric":
                positions.append(old / 2 * (1 - new / (factor * old)) + (at + 0.5) / factor - 0.5)
            case _:
                raise StretchError(f"it resizes with coordinates `{coordinates[:40]}`")
    return positions


def _resize_shape(site: OnnxSite) -> tuple[tuple[int, ...], list[float]]:
    """Return the shape after resizing, from scales or (in later opsets) from sizes, and the scales."""
    sizes = site.optional_stored(3, "sizes")
    if sizes is not None and sizes.size:
        size = tuple(int(n) for n in sizes)
        return size, [new / old for new, old in zip(size, site.shape, strict=False)]
    scales = site.attrs.get("scales")
    if scales is None:
        scales = site.require_stored(1 if site.op == "Upsample" or site.opset < 11 else 2, "scales").ravel()
    if len(scales) != len(site.shape) or not all(0 < scale < 1 << 16 for scale in scales):
        raise StretchError(f"it has {len(scales)} scales for {len(site.shape)} axes")
    size = tuple(int(np.float32(n) * np.float32(scale)) for n, scale in zip(site.shape, scales, strict=True))
    need(min(size) >= 1, f"it resizes {list(site.shape)} to {list(size)}")
    return size, [float(scale) for scale in scales]


# Operators of ONNX that read or write at the places in another tensor, as torch's functions.


#: Torch's names of reductions that combine a written number with the present one.
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}

#: Torch's names of sampling modes; ONNX had different names before opset 20.
_SAMPLING_MODES = {"linear": "bilinear", "cubic": "bicubic"}


def _axis(site: OnnxSite, usual: int = 0) -> int:
    return normalise_axis(site.integer("axis", usual), len(site.shape))


def _sizes_of(value: Value) -> tuple[int, ...]:
    return () if value is None else tuple(value.shape) if isinstance(value, np.ndarray) else shape_of(value)


def _indices(site: OnnxSite, sizes: Sequence[int]) -> fx.Node | np.ndarray:
    """Return input 1: indices into axes of these sizes (one, or one per place along its last axis), counted from the first."""
    value = site.value(1)
    bound = np.array(sizes, np.int64) if len(sizes) > 1 else np.array(sizes[0], np.int64)
    if isinstance(value, np.ndarray):
        need(value.dtype.kind in "iu", f"its indices are of type {value.dtype}")
        need(not ((value < -bound) | (value >= bound)).any(), f"it reads beyond an axis of {' or '.join(map(str, sizes))}")
        return np.where(value < 0, value + bound, value).astype(np.int64)
    x = site.tensor(1)
    kind = x.meta["val"].dtype
    need(kind in (torch.int32, torch.int64), "its indices are no whole numbers")
    x = x if kind == torch.int64 else site.method("to", x, torch.int64)
    by = sizes[0] if len(sizes) == 1 else site.add_tensor(bound, "sizes")
    return site.call(torch.remainder, x, by)


def _as_tensor(site: OnnxSite, indices: fx.Node | np.ndarray) -> fx.Node:
    return indices if isinstance(indices, fx.Node) else site.add_tensor(indices, "indices")


def _reshape_node(site: OnnxSite, x: fx.Node, shape: Sequence[int]) -> fx.Node:
    return x if shape_of(x) == tuple(shape) else site.call(torch.reshape, x, tuple(shape))


def _select(site: OnnxSite, x: fx.Node, axis: int, indices: fx.Node | np.ndarray) -> fx.Node:
    """Gather along an axis; the shape of the indices replaces the axis."""
    sizes, shape = _sizes_of(indices), shape_of(x)
    flat = indices.reshape(-1) if isinstance(indices, np.ndarray) else _reshape_node(site, indices, (prod(sizes),))
    selected = site.call(torch.index_select, x, axis, _as_tensor(site, flat))
    return _reshape_node(site, selected, (*shape[:axis], *sizes, *shape[axis + 1 :]))


@rule("Gather")
def _gather(site: OnnxSite) -> fx.Node:
    axis, shape = _axis(site), site.shape
    indices = _indices(site, shape[axis : axis + 1])
    if isinstance(indices, np.ndarray) and indices.ndim == 0:
        return site.call(torch.select, site.x, axis, int(indices))
    return _select(site, site.x, axis, indices)


@rule("GatherElements")
def _gather_elements(site: OnnxSite) -> fx.Node:
    axis = _axis(site)
    return site.call(torch.gather, site.x, axis, _as_tensor(site, _indices(site, site.shape[axis : axis + 1])))


def _reduction(site: OnnxSite) -> str | None:
    """Return torch's name of the reduction that combines a written number with the present one; None if the number replaces it."""
    how = site.word("reduction", "none")
    need(how == "none" or how in _REDUCTIONS, f"its reduction is `{how[:20]}`")
    return _REDUCTIONS.get(how)


def _scatter(site: OnnxSite, x: fx.Node, axis: int, indices: fx.Node, written: fx.Node, reduction: str | None) -> fx.Node:
    """Write numbers into a tensor, or combine them with the present ones."""
    if reduction is None:
        return site.call(torch.scatter, x, axis, indices, written)
    return site.call(torch.scatter_reduce, x, axis, indices, written, reduction)


@rule("ScatterElements", "Scatter")
def _scatter_elements(site: OnnxSite) -> fx.Node:
    axis, reduction = _axis(site), _reduction(site)
    if _sizes_of(site.value(1)) != _sizes_of(site.value(2)):
        raise StretchError(f"it writes {list(_sizes_of(site.value(2)))} where {list(_sizes_of(site.value(1)))} goes")
    return _scatter(site, site.x, axis, _as_tensor(site, _indices(site, site.shape[axis : axis + 1])), site.tensor(2), reduction)


def _flat(site: OnnxSite, batch: int) -> tuple[fx.Node | np.ndarray, int]:
    """Flatten indices of several axes to one number each; return them and the number of indexed axes, batch axes included."""
    shape, sizes = site.shape, _sizes_of(site.value(1))
    if not sizes or not 0 <= batch < min(len(sizes), len(shape)) or shape[:batch] != sizes[:batch]:
        raise StretchError(f"its indices have the shape {list(sizes)} for {list(shape)}, {batch} axes of them alike")
    last = batch + sizes[-1]
    need(batch < last <= len(shape), f"its indices have the shape {list(sizes)} for {list(shape)}")
    indices = _indices(site, shape[batch:last])
    strides = np.array([prod(shape[i + 1 : last]) for i in range(batch, last)], np.int64)
    before = np.arange(prod(shape[:batch])).reshape(*shape[:batch], *(1,) * (len(sizes) - 1 - batch)) * prod(shape[batch:last])
    if isinstance(indices, np.ndarray):
        return (indices * strides).sum(-1) + before, last
    scaled = site.call(operator.mul, indices, site.add_tensor(strides, "strides"))
    total = site.call(torch.sum, scaled, -1)
    return (total if not batch else site.call(operator.add, total, site.add_tensor(before, "batches"))), last


@rule("GatherND")
def _gather_nd(site: OnnxSite) -> fx.Node:
    """Translate ONNX GatherND: merge all indexed axes into one, and gather by single indices."""
    shape = site.shape
    indices, last = _flat(site, site.integer("batch_dims"))
    return _select(site, _reshape_node(site, site.x, (prod(shape[:last]), *shape[last:])), 0, indices)


@rule("ScatterND")
def _scatter_nd(site: OnnxSite) -> fx.Node:
    """Translate ONNX ScatterND: merge all indexed axes into one and all others into a second one."""
    shape, reduction = site.shape, _reduction(site)
    indices, last = _flat(site, 0)
    sizes, width = _sizes_of(indices), prod(shape[last:])
    if _sizes_of(site.value(2)) != (*sizes, *shape[last:]):
        raise StretchError(f"it writes {list(_sizes_of(site.value(2)))} where {[*sizes, *shape[last:]]} goes")
    rows = _reshape_node(site, site.x, (prod(shape[:last]), width))
    written = _reshape_node(site, site.tensor(2), (prod(sizes), width))
    column = _reshape_node(site, _as_tensor(site, indices), (prod(sizes), 1))
    wide = column if width == 1 else site.method("expand", column, prod(sizes), width)
    return _reshape_node(site, _scatter(site, rows, 0, wide, written, reduction), shape)


@rule("OneHot")
def _one_hot(site: OnnxSite) -> fx.Node:
    """Translate ONNX OneHot: compare places with the indices, which may count from the last place."""
    values, depth = site.require_stored(2, "values").reshape(-1), int(site.require_stored(1, "depth").reshape(-1)[0])
    rank = len(site.shape)
    axis = normalise_axis(site.integer("axis", -1), rank + 1)
    need(values.shape == (2,) and 0 < depth <= MAX_KNOWN, f"it has {values.size} values and the depth {depth}")
    called = site.call(torch.unsqueeze, site.x, axis)
    numbers = [np.arange(n, n + depth).reshape(-1, *(1,) * (rank - axis)) for n in (0, -depth)]
    equal = [site.call(torch.eq, called, site.add_tensor(number, "numbers")) for number in numbers]
    mask = site.call(torch.logical_or, *equal)
    off, on = (value.item() for value in values)
    method = site.method("to", mask, torch.from_numpy(values.copy()).dtype)
    method = method if on - off == 1 else site.call(operator.mul, method, on - off)
    return site.call(operator.add, method, off) if off else method


@rule("GridSample")
def _grid_sample(site: OnnxSite) -> fx.Node:
    mode = site.word("mode", "bilinear" if site.opset < 20 else "linear")
    options = {"padding_mode": site.word("padding_mode", "zeros"), "align_corners": site.flag("align_corners")}
    return site.call(F.grid_sample, site.x, site.tensor(1), mode=_SAMPLING_MODES.get(mode, mode), **options)


@rule("AffineGrid")
def _affine_grid(site: OnnxSite) -> fx.Node:
    """Translate ONNX AffineGrid: the pixel positions of an image of this size after an affine map."""
    size = site.numbers(1, "size")
    return site.call(F.affine_grid, site.x, size, site.flag("align_corners"))


# Convolutions and pools of ONNX as torch's modules; the padding before them becomes part of their windows.
_CONVOLUTIONS: dict[int, Callable[..., nn.Module]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_TRANSPOSED: dict[int, Callable[..., nn.Module]] = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}
_POOLS: dict[str, dict[int, Callable[..., nn.Module]]] = {
    "max_pool": {3: nn.MaxPool1d, 4: nn.MaxPool2d, 5: nn.MaxPool3d},
    "avg_pool": {3: nn.AvgPool1d, 4: nn.AvgPool2d, 5: nn.AvgPool3d},
}
_GLOBAL_POOLS: dict[str, dict[int, Callable[..., nn.Module]]] = {
    "max_pool": {3: nn.AdaptiveMaxPool1d, 4: nn.AdaptiveMaxPool2d, 5: nn.AdaptiveMaxPool3d},
    "avg_pool": {3: nn.AdaptiveAvgPool1d, 4: nn.AdaptiveAvgPool2d, 5: nn.AdaptiveAvgPool3d},
}

#: Functions whose results are never below zero, and functions that map non-negative inputs to non-negative results.
_POSITIVE = {torch.relu, F.relu6, torch.sigmoid, F.hardsigmoid, torch.softmax, torch.abs, torch.exp}
_KEEPING = {torch.flatten, torch.reshape, torch.permute, torch.cat, F.interpolate, torch.mean, torch.amax}
_KEEPING_MODULES = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)

#: Replaces minus infinity in formats that have no infinity.
_LOWEST = -1e38


@dataclass(frozen=True)
class Window:
    """A window that slides over an image, with one number per axis."""

    x: fx.Node  # Node of the image.
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]  # Padding before the image; `behind` is the padding after it.
    behind: tuple[int, ...]

    @classmethod
    def from_site(cls, site: OnnxSite, kernel: Sequence[int]) -> "Window":
        """Return the window of a node; automatic padding is computed."""
        axes, auto = len(kernel), site.attrs.get("auto_pad", "NOTSET")
        stride, dilation = tuple(site.pair("strides")), tuple(site.pair("dilations"))
        stated = [int(n) for n in site.attrs.get("pads", [0] * 2 * axes)]
        if auto in ("NOTSET", "VALID"):
            pads = tuple(stated) if auto == "NOTSET" else (0,) * 2 * axes
            need(len(pads) == 2 * axes and min(pads) >= 0, f"its pads are {list(pads)} for {axes} axes")
        else:
            pads = same_padding(site.shape[2:], kernel, stride, dilation, odd_first=auto == "SAME_LOWER")
        return cls(site.x, tuple(kernel), stride, dilation, pads[:axes], pads[axes:])

    @property
    def is_symmetric(self) -> bool:
        """Whether both sides of each axis have equal padding."""
        return self.before == self.behind

    @property
    def fits_torch_pool(self) -> bool:
        """Whether torch's pools take this padding: equal on both sides, and at most half a window."""
        return self.is_symmetric and all(pad <= k // 2 for pad, k in zip(self.before, self.kernel, strict=True))

    def pad(self, builder: Builder, value: float = 0.0) -> fx.Node:
        """Pad the image with a number."""
        flat = [side for pair in zip(reversed(self.before), reversed(self.behind), strict=True) for side in pair]
        return builder.call(F.pad, self.x, flat, "constant", value) if any(flat) else self.x

    def merge_padding(self, *allowed: float) -> "Window":
        """Merge a padding of the image into the window if its value is one of the allowed numbers."""
        axes = len(self.kernel)
        if self.x.op != "call_function" or self.x.target is not F.pad or self.x.args[2] != "constant":
            return self
        args: tuple[Any, ...] = self.x.args
        earlier, flat, _, value = args
        sides: list[int] = list(flat)
        if (value not in allowed and not (-inf in allowed and value <= _LOWEST)) or not 0 < len(sides) <= 2 * axes or min(sides) < 0:
            return self
        sides += [0] * (2 * axes - len(sides))
        before, behind = (
            tuple(a + b for a, b in zip(sides[i::2][::-1], pads, strict=True)) for i, pads in enumerate((self.before, self.behind))
        )
        return replace(self, x=earlier, before=before, behind=behind)

    def symmetrize(self) -> "Window":
        """Equalise the padding of both sides if no window reads the added elements, because torch pads both sides equally."""
        behind = []
        for size, k, s, d, first, last in zip(
            shape_of(self.x)[2:], self.kernel, self.stride, self.dilation, self.before, self.behind, strict=True
        ):
            counts = [(size + first + after - d * (k - 1) - 1) // s for after in (last, first)]
            behind.append(first if last < first and counts[0] == counts[1] else last)
        return replace(self, behind=tuple(behind))


def _conv_weights(site: OnnxSite) -> tuple[np.ndarray, np.ndarray | None]:
    weight, bias = site.require_stored(1, "weight"), site.optional_stored(2, "bias")
    if weight.ndim != len(site.shape) or weight.ndim not in _CONVOLUTIONS:
        raise StretchError(f"its input and weight have the shapes {list(site.shape)} and {list(weight.shape)}")
    kernel = list(site.attrs.get("kernel_shape", weight.shape[2:]))
    need(kernel == list(weight.shape[2:]), f"its kernel_shape is {kernel}, its weight has the shape {list(weight.shape)}")
    return weight, bias


@rule("Conv")
def _conv(site: OnnxSite) -> fx.Node:
    weight, bias = _conv_weights(site)
    groups = site.integer("group", 1)
    if groups < 1 or weight.shape[0] % groups or weight.shape[1] * groups != site.shape[1]:
        raise StretchError(f"its {groups} groups of weights of the shape {list(weight.shape)} do not fit {list(site.shape)}")
    window = Window.from_site(site, weight.shape[2:]).merge_padding(0.0).symmetrize()
    shape = (weight.shape[1] * groups, weight.shape[0], window.kernel, window.stride)
    options: dict[str, Any] = {"dilation": window.dilation, "groups": groups, "bias": bias is not None, "device": "meta"}
    if not window.is_symmetric and weight.ndim == 4:
        module: nn.Module = PaddedConv2d(*shape, pads=(*window.before, *window.behind), **options)
    else:
        module = _CONVOLUTIONS[weight.ndim](*shape, padding=window.before if window.is_symmetric else 0, **options)
    x = window.x if window.is_symmetric or weight.ndim == 4 else window.pad(site.builder)
    return site.module(module, x, weight=weight, bias=bias)


@rule("ConvTranspose")
def _conv_transpose(site: OnnxSite) -> fx.Node:
    weight, bias = _conv_weights(site)
    need("output_shape" not in site.attrs and site.attrs.get("auto_pad", "NOTSET") == "NOTSET", "it leaves its padding to the runtime")
    window = Window.from_site(site, weight.shape[2:])
    need(bool(window.is_symmetric), "its padding differs between sides")
    groups = site.integer("group", 1)
    module = _TRANSPOSED[weight.ndim](
        weight.shape[0],
        weight.shape[1] * groups,
        weight.shape[2:],
        site.pair("strides"),
        window.before,
        site.pair("output_padding", 0),
        groups,
        bias is not None,
        site.pair("dilations"),
        device="meta",
    )
    return site.module(module, weight=weight, bias=bias)


@rule("MaxPool")
def _max_pool(site: OnnxSite) -> fx.Node:
    """Translate ONNX MaxPool; padding is never the maximum."""
    need(site.results <= 1 and not site.flag("storage_order"), "it gives the places of the largest elements too")
    window, up = Window.from_site(site, site.pair("kernel_shape")), site.flag("ceil_mode")
    earlier = site.x.args[0] if site.x.op == "call_function" and site.x.target is F.pad else site.x
    # Where no element is below zero, padding with zeros does not change the maximum.
    floor = isinstance(earlier, fx.Node) and nonnegative(earlier, site.builder, of_input=False)
    window = window.merge_padding(*([-inf, 0.0] if floor else [-inf]))
    return _pool_window(site, window if up else window.symmetrize(), "max_pool", -inf, ceil_mode=up, dilation=window.dilation)


def _pool_window(site: OnnxSite, window: Window, kind: str, fill: float, **options: Any) -> fx.Node:
    """Build a pool of torch, or our padded one if sides differ; rows and volumes are padded before the pool."""
    make, sizes = _POOLS[kind][len(site.shape)], {"kernel": window.kernel, "stride": window.stride}
    if window.fits_torch_pool:
        return site.module(make(*sizes.values(), window.before, **options), window.x)
    if len(window.kernel) == 2:
        module = padded_pool(kind, {**sizes, "padding": (*window.before, *window.behind), **options})
        return site.module(module, window.x)
    if options["ceil_mode"] or not options.get("count_include_pad", True):
        sides = f"its padding {list(window.before)} and {list(window.behind)} differs between sides"
        raise StretchError(f"{sides}, and it rounds up or leaves padding out of its means")
    return site.module(make(*sizes.values(), 0, **options), window.pad(site.builder, fill))


@rule("AveragePool")
def _average_pool(site: OnnxSite) -> fx.Node:
    need(all(n == 1 for n in site.pair("dilations")), "its window has gaps")
    return _mean(site, site.x, counted=site.flag("count_include_pad"), up=site.flag("ceil_mode"))


def _mean(site: OnnxSite, x: fx.Node, *, counted: bool, up: bool) -> fx.Node:
    """Return the mean of each window. `counted`: whether padding counts; `up`: whether windows may overhang."""
    window = replace(Window.from_site(site, site.pair("kernel_shape")), x=x)
    if not any((*window.before, *window.behind)) and not up:
        inner = window.merge_padding(0.0).symmetrize()
        window = inner if inner.fits_torch_pool else window
        # Without padding the option has no effect, and torch's own networks set it.
        counted = True
    return _pool_window(site, window, "avg_pool", 0.0, ceil_mode=up, count_include_pad=counted)


@rule("LpPool")
def _norm_pool(site: OnnxSite) -> fx.Node:
    """Translate ONNX LpPool: the p-norm of each window, from the mean of powers times their number."""
    kernel, p = site.pair("kernel_shape"), site.integer("p", 2)
    if p < 1 or site.flag("ceil_mode") or any(n != 1 for n in site.pair("dilations")):
        raise StretchError("its window has gaps or overhangs, or it is of no norm")
    power = site.call(torch.abs, site.x)
    power = power if p == 1 else site.call(torch.pow, power, p)
    total = site.call(operator.mul, _mean(site, power, counted=True, up=False), prod(kernel))
    return total if p == 1 else site.call(torch.pow, total, 1 / p)


@rule("GlobalLpPool")
def _norm_of_image(site: OnnxSite) -> fx.Node:
    p = site.integer("p", 2)
    need(p >= 1 and len(site.shape) >= 3, f"it is of the norm {p}, of a tensor of shape {list(site.shape)}")
    return site.call(torch.linalg.vector_norm, site.x, p, list(range(2, len(site.shape))), True)


def pooled_to_one(site: OnnxSite, kind: str = "avg_pool") -> fx.Node:
    """Pool a row, an image or a volume to one pixel: the mean or the maximum of each channel."""
    rank = len(site.shape)
    need(rank in _GLOBAL_POOLS[kind], f"it pools a tensor of shape {list(site.shape)}, which is no row, image or volume")
    return site.module(_GLOBAL_POOLS[kind][rank](1))


RULES.update({"GlobalAveragePool": pooled_to_one, "GlobalMaxPool": partial(pooled_to_one, kind="max_pool")})


def nonnegative(x: fx.Node, builder: Builder, *, of_input: bool) -> bool:
    """Return whether no element of a tensor can be below zero; `of_input` says that the network's inputs have none."""
    waiting, visited = [x], set()
    while waiting:
        node = waiting.pop()
        if node in visited or (node.op == "placeholder" and of_input) or _positive(node):
            continue
        visited.add(node)
        if node.op == "call_module" and not isinstance(builder.module_of(node), _KEEPING_MODULES):
            return False
        if node.op in ("placeholder", "get_attr", "call_method") or (node.op == "call_function" and node.target not in _KEEPING):
            return False
        waiting += node.all_input_nodes
    return True


def _positive(node: fx.Node) -> bool:
    low = node.args[1] if node.target is torch.clamp and len(node.args) > 1 else None
    return node.op == "call_function" and (node.target in _POSITIVE or (isinstance(low, int | float) and low >= 0))
