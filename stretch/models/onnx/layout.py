"""Operators of ONNX that move, cut, join and repeat, as torch's functions."""

import operator
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
from stretch.models.builder import shape_of, turned
from stretch.models.onnx.known import tensor
from stretch.models.onnx.site import OnnxSite, Value, rule

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
