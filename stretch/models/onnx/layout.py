"""Operators of ONNX that move, cut, join, repeat and resize, as torch's functions."""

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from onnx import helper
from torch import fx

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES as SHAPES
from scheduler.formats.onnx.shapes.node import FLOAT, INT32, INT64, KnownTensor, ShapeNode, counted
from stretch.models.builder import blended, chosen, shape_of, turned
from stretch.models.onnx.site import OnnxSite, Value, rule, tensor

_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _seen(value: Value) -> KnownTensor | None:
    """What a rule of shapes knows of a node's input."""
    if value is None:
        return None
    return KnownTensor(shape_of(value)) if isinstance(value, fx.Node) else tensor(value)


def _made(site: OnnxSite) -> tuple[int, ...]:
    """The shape of a node's first result, by the rules that check bundles."""
    attrs = {key: value.encode() if isinstance(value, str) else value for key, value in site.attrs.items()}
    return SHAPES[site.op](ShapeNode(tuple(_seen(value) for value in site.inputs), attrs, site.results)).shape


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _shaped(site: OnnxSite) -> fx.Node:
    """The same elements in another shape; all axes but the batch in one is what torch calls flattening."""
    before, after = site.shape, _made(site)
    if before == after:
        return site.x
    if len(before) > 2 and after == (before[0], prod(before[1:])):
        return site.builder.call(torch.flatten, site.x, 1)
    return site.builder.call(torch.reshape, site.x, after)


@rule("Transpose")
def _transpose(site: OnnxSite) -> fx.Node:
    order = site.attrs.get("perm", list(reversed(range(len(site.shape)))))
    return turned(site.builder, site.x, [counted(int(axis), len(site.shape)) for axis in order])


@rule("Concat")
def _concat(site: OnnxSite) -> fx.Node:
    parts = [site.tensor(i) for i in range(len(site.inputs))]
    return site.builder.call(torch.cat, parts, int(site.attrs.get("axis", 1)))


@rule("Split")
def _split(site: OnnxSite) -> list[fx.Node]:
    axis = int(site.attrs.get("axis", 0))
    sizes = site.numbers("split", 1)
    if sizes is None:
        size = -(-site.shape[axis] // site.results)
        sizes = [size] * (site.results - 1) + [site.shape[axis] - size * (site.results - 1)]
    parts = site.builder.call(torch.split, site.x, sizes, axis)
    return [site.builder.call(operator.getitem, parts, i) for i in range(site.results)]


@rule("Slice")
def _slice(site: OnnxSite) -> fx.Node:
    starts, ends = site.numbers("starts", 1), site.numbers("ends", 2)
    if starts is None or ends is None:
        raise StretchError("it has no bounds")
    axes, steps = site.numbers("axes", 3), site.numbers("steps", 4)
    _made(site)
    items: list[Any] = [slice(None)] * len(site.shape)
    turned: list[int] = []
    for start, end, axis, step in zip(starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True):
        size = site.shape[axis]
        first, last, _ = slice(start, end, step).indices(size)
        if step < 0:
            # The same places, counted from the other end.
            turned.append(axis)
            first, last = size - 1 - first, size - 1 - last
        items[axis] = slice(first, last, abs(step) if abs(step) != 1 else None)
    x = site.builder.call(torch.flip, site.x, turned) if turned else site.x
    return x if items == [slice(None)] * len(items) else site.builder.call(operator.getitem, x, tuple(items))


@rule("Trilu")
def _triangle(site: OnnxSite) -> fx.Node:
    shift = site.optional(1, "diagonal")
    function = torch.triu if site.attrs.get("upper", 1) else torch.tril
    return site.builder.call(function, site.x, 0 if shift is None else int(shift.ravel()[0]))


@rule("Expand")
def _expand(site: OnnxSite) -> fx.Node:
    return site.builder.method("expand", site.x, *_made(site))


@rule("Tile")
def _tile(site: OnnxSite) -> fx.Node:
    return site.builder.method("repeat", site.x, *(int(n) for n in site.known(1, "repeats").ravel()))


@rule("Pad")
def _pad(site: OnnxSite) -> fx.Node:
    """Padding of the last axes; torch takes those as pairs from the last one on."""
    widths, mode = site.numbers("pads", 1), site.attrs.get("mode", "constant")
    rank = len(site.shape)
    if widths is None or len(widths) != 2 * rank or site.value(3) is not None:
        raise StretchError(f"it pads by {widths} for {rank} axes")
    stored = site.optional(2, "value")
    value = float(site.attrs.get("value", 0.0)) if stored is None else float(stored.ravel()[0]) if stored.size else 0.0
    pairs = list(zip(widths[:rank], widths[rank:], strict=True))
    while pairs and not any(pairs[0]):
        pairs = pairs[1:]
    flat = [side for pair in reversed(pairs) for side in pair]
    if not flat:
        return site.x
    return (
        site.builder.call(F.pad, site.x, flat, "constant", value)
        if mode == "constant"
        else site.builder.call(F.pad, site.x, flat, _MODES[mode])
    )


@rule("CenterCropPad")
def _centred(site: OnnxSite) -> fx.Node:
    """So many elements around the middle of each axis, zeros where there are fewer."""
    shape, wanted = site.shape, [int(n) for n in site.known(1, "shape").ravel()]
    axes = [counted(int(axis), len(shape)) for axis in site.attrs.get("axes", range(len(shape)))]
    pairs = [(0, 0)] * len(shape)
    for axis, size in zip(axes, wanted, strict=True):
        more = abs(size - shape[axis])
        pairs[axis] = (more // 2, more - more // 2) if size > shape[axis] else (-(more // 2), more // 2 - more)
    flat = [side for pair in reversed(pairs) for side in pair]
    return site.builder.call(F.pad, site.x, flat, "constant", 0.0) if any(flat) else site.x


@rule("Col2Im")
def _image_of_columns(site: OnnxSite) -> fx.Node:
    """The sum of blocks at their places in an image."""
    size, block = ([int(n) for n in site.known(i, what).ravel()] for i, what in ((1, "image"), (2, "block")))
    if len(size) != 2 or len(block) != 2:
        raise StretchError(f"its image has {len(size)} axes")
    steps, gaps = ([int(n) for n in site.attrs.get(name, [1, 1])] for name in ("strides", "dilations"))
    pads = [int(n) for n in site.attrs.get("pads", [0] * 4)]
    if pads[:2] != pads[2:]:
        raise StretchError("its padding differs between sides")
    return site.builder.call(F.fold, site.x, size, block, dilation=gaps, padding=pads[:2], stride=steps)


@rule("EyeLike")
def _eye(site: OnnxSite) -> np.ndarray:
    """1 along a diagonal, which only the shape decides."""
    if len(site.shape) != 2:
        raise StretchError(f"it reads a tensor of shape {list(site.shape)}, no matrix")
    kind = int(site.attrs.get("dtype", FLOAT))
    if kind not in (FLOAT, INT32, INT64):
        raise StretchError(f"it makes type {kind}")
    return np.eye(*site.shape, k=int(site.attrs.get("k", 0)), dtype=helper.tensor_dtype_to_np_dtype(kind))


@rule("DepthToSpace")
def _depth_to_space(site: OnnxSite) -> fx.Node:
    n, channels, height, width = site.shape
    block = int(site.attrs.get("blocksize", 0))
    if block < 1 or channels % block**2:
        raise StretchError(f"it makes blocks of {block} of {channels} channels")
    if site.attrs.get("mode", "DCR") == "CRD":
        return site.builder.call(F.pixel_shuffle, site.x, block)
    split = site.builder.call(torch.reshape, site.x, (n, block, block, channels // block**2, height, width))
    turned = site.builder.call(torch.permute, split, (0, 3, 4, 1, 5, 2))
    return site.builder.call(torch.reshape, turned, (n, channels // block**2, height * block, width * block))


@rule("SpaceToDepth")
def _space_to_depth(site: OnnxSite) -> fx.Node:
    n, channels, height, width = site.shape
    block = int(site.attrs.get("blocksize", 0))
    if block < 1 or height % block or width % block:
        raise StretchError(f"it makes blocks of {block} of {height}×{width}")
    split = site.builder.call(torch.reshape, site.x, (n, channels, height // block, block, width // block, block))
    turned = site.builder.call(torch.permute, split, (0, 3, 5, 1, 2, 4))
    return site.builder.call(torch.reshape, turned, (n, channels * block**2, height // block, width // block))


#: How close to a half a place is one, for the runtime: in single precision few are.
_HALF = 1e-5


def _nearer(at: np.ndarray, up: bool) -> np.ndarray:
    """The nearer whole number; of halves the larger or the smaller one."""
    low = np.floor(at)
    part = at - low
    return np.asarray(low + np.where(np.abs(part - 0.5) < _HALF, up, part > 0.5))


_ROUNDED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda at: _nearer(at, False),
    "round_prefer_ceil": lambda at: _nearer(at, True),
}


@rule("Upsample", "Resize")
def _resize(site: OnnxSite) -> fx.Node:
    """Before opset 11 pixels are counted from the corner."""
    mode, coordinates = site.attrs.get("mode", "nearest"), site.attrs.get("coordinate_transformation_mode", "half_pixel")
    if site.op == "Upsample" or site.opset < 11:
        coordinates = "asymmetric"
    size, scales = _resized(site)
    if len(size) != 4 or size[:2] != site.shape[:2] or "axes" in site.attrs:
        raise StretchError(f"it resizes {list(site.shape)} to {list(size)}")
    if size == site.shape:
        # Runtimes copy it then, even where its scale is a little more than 1.
        return site.builder.method("clone", site.x)
    wanted, factors = list(size[2:]), scales[2:]
    if mode == "nearest":
        return _nearest(site, coordinates, wanted, factors)
    smooth, aligned = bool(site.attrs.get("antialias", 0)), coordinates == "align_corners"
    current = aligned or coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and all(n > 1 for n in wanted))
    exact = all(abs(factor * old - new) < 1e-3 for factor, old, new in zip(factors, site.shape[2:], wanted, strict=True))
    if mode == "linear" and not smooth and not (current and (aligned or exact)):
        return blended(site.builder, site.x, _places(site, coordinates, wanted, factors), site.name)
    if not current:
        raise StretchError(f"it resizes with coordinates `{coordinates}`")
    if not (aligned or exact):
        raise StretchError(f"it resizes {list(site.shape)} by {', '.join(f'{factor:g}' for factor in factors)}, no whole number of pixels")
    if mode == "cubic" and abs(site.attrs.get("cubic_coeff_a", -0.75) + 0.75) > 1e-6:
        raise StretchError("its cubic function is not torch's")
    named = {"linear": "bilinear", "cubic": "bicubic"}[mode]
    return site.builder.call(F.interpolate, site.x, size=wanted, mode=named, align_corners=aligned, antialias=smooth)


def _places(site: OnnxSite, coordinates: str, wanted: Sequence[int], factors: Sequence[float]) -> list[np.ndarray]:
    """Where each new row and column lies among the old ones (ONNX operators, Resize), in single precision as runtimes have it."""
    places = []
    for old, new, scale in zip(site.shape[2:], wanted, factors, strict=True):
        at, factor = np.arange(new, dtype=np.float32), np.float32(scale)
        match coordinates:
            case "asymmetric":
                places.append(at / factor)
            case "align_corners":
                places.append(at * np.float32(old - 1) / np.float32(new - 1) if new > 1 else at)
            case "pytorch_half_pixel" if new == 1:
                places.append(at)
            case "half_pixel" | "pytorch_half_pixel":
                places.append((at + np.float32(0.5)) / factor - np.float32(0.5))
            case "half_pixel_symmetric":
                places.append(old / 2 * (1 - new / (factor * old)) + (at + 0.5) / factor - 0.5)
            case _:
                raise StretchError(f"it resizes with coordinates `{coordinates[:40]}`")
    return places


def _nearest(site: OnnxSite, coordinates: str, wanted: list[int], factors: Sequence[float]) -> fx.Node:
    how = site.attrs.get("nearest_mode", "floor" if site.opset < 11 else "round_prefer_floor")
    if how not in _ROUNDED:
        raise StretchError(f"it rounds by `{how[:40]}`")
    places = [
        np.clip(_ROUNDED[how](at), 0, old - 1).astype(np.int64)
        for at, old in zip(_places(site, coordinates, wanted, factors), site.shape[2:], strict=True)
    ]
    return chosen(site.builder, site.x, places, site.name)


def _resized(site: OnnxSite) -> tuple[tuple[int, ...], list[float]]:
    """The shape that a resizing makes, by scales or, in later opsets, to sizes; and the scales."""
    sizes = site.optional(3, "sizes")
    if sizes is not None and sizes.size:
        size = tuple(int(n) for n in sizes)
        return size, [new / old for new, old in zip(size, site.shape, strict=False)]
    scales = site.attrs.get("scales")
    if scales is None:
        scales = site.known(1 if site.op == "Upsample" or site.opset < 11 else 2, "scales").ravel()
    if len(scales) != len(site.shape) or not all(0 < scale < 1 << 16 for scale in scales):
        raise StretchError(f"it has {len(scales)} scales for {len(site.shape)} axes")
    size = tuple(int(np.float32(n) * np.float32(scale)) for n, scale in zip(site.shape, scales, strict=True))
    if min(size) < 1:
        raise StretchError(f"it resizes {list(site.shape)} to {list(size)}")
    return size, [float(scale) for scale in scales]
