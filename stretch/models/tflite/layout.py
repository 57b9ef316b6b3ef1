"""Operators of TFLite that move, cut, join and repeat, as torch's functions."""

import operator
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx

from predictors.errors import StretchError
from stretch.models.builder import shape_of, turned
from stretch.models.tflite.site import FIRST, TfliteSite, TfliteView, flattened, rule

_TO_FIRST, _TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def _reshaped(site: TfliteSite, shape: list[int]) -> TfliteView:
    """The same elements in another shape; an image that is flattened keeps the order that torch's networks have."""
    before = site.shape()
    if shape.count(-1) > 1 or min(shape, default=0) < -1:
        raise StretchError(f"it makes the shape {shape}")
    if -1 in shape:
        known = -prod(shape)
        shape = [n if n != -1 else prod(before) // known if known else 0 for n in shape]
    if prod(shape) != prod(before):
        raise StretchError(f"it makes {shape} of {list(before)}")
    seen = site.seen(0)
    if tuple(shape) == before:
        return seen
    if seen.form == "image" and shape == [before[0], prod(before[1:])]:
        return flattened(site.builder, seen.node)
    if seen.form == "row" and tuple(shape) == (before[0], *seen.size):
        height, width, channels = seen.size
        return TfliteView(site.builder.call(torch.reshape, seen.node, (before[0], channels, height, width)), "image")
    if len(before) == 2 and tuple(shape) == (before[0], 1, 1, before[1]) and seen.form == "plain":
        return TfliteView(site.builder.call(torch.reshape, seen.node, (*before, 1, 1)), "image")
    return TfliteView(site.builder.call(torch.reshape, site.plain(), tuple(shape)))


@rule("RESHAPE")
def _reshape(site: TfliteSite) -> TfliteView:
    value = site.value(1)
    shape = site.numbers(1, "shape") if value is not None else [int(n) for n in site.settings.get("new_shape", ())]
    return _reshaped(site, shape)


@rule("SQUEEZE")
def _squeeze(site: TfliteSite) -> TfliteView:
    shape = site.shape()
    axes = {int(axis) % len(shape) for axis in site.settings.get("squeeze_dims", ())} or {i for i, n in enumerate(shape) if n == 1}
    return _reshaped(site, [n for i, n in enumerate(shape) if i not in axes])


@rule("EXPAND_DIMS")
def _expand_dims(site: TfliteSite) -> TfliteView:
    shape, (axis,) = list(site.shape()), site.numbers(1, "axis")
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
    return _reshaped(site, shape)


@rule("TRANSPOSE")
def _transpose(site: TfliteSite) -> TfliteView:
    """Between the orders of TensorFlow and torch nothing moves: an image is kept as torch has it."""
    order, seen = tuple(site.numbers(1, "order")), site.seen(0)
    if sorted(order) != list(range(len(seen.shape))):
        raise StretchError(f"it orders {len(seen.shape)} axes as {order}")
    if seen.form == "image" and order == _TO_FIRST:
        return TfliteView(seen.node)
    if seen.form == "plain" and order == _TO_LAST:
        return TfliteView(seen.node, "image")
    return TfliteView(turned(site.builder, site.plain(), order))


def _joined(site: TfliteSite) -> tuple[list[fx.Node], TfliteView]:
    """All inputs in the order of an image, if one of them is one, or as in the file."""
    seen = [site.seen(i) for i in range(len(site.inputs))]
    if any(item.form == "image" for item in seen) and all(len(item.shape) == 4 for item in seen):
        return [site.image(i) for i in range(len(seen))], TfliteView(site.image(0), "image")
    return [site.plain(i) for i in range(len(seen))], TfliteView(site.plain(0))


def _axis(order: TfliteView, axis: int) -> int:
    """An axis of the file in a tensor's own order."""
    counted = axis % len(order.shape)
    return FIRST[counted] if order.form == "image" else counted


@rule("CONCATENATION")
def _concat(site: TfliteSite) -> TfliteView:
    parts, order = _joined(site)
    return order.like(site.activated(site.builder.call(torch.cat, parts, _axis(order, site.setting("axis")))))


@rule("PACK")
def _pack(site: TfliteSite) -> TfliteView:
    parts = [site.plain(i) for i in range(len(site.inputs))]
    return TfliteView(site.builder.call(torch.stack, parts, site.setting("axis")))


@rule("UNPACK")
def _unpack(site: TfliteSite) -> list[TfliteView]:
    return [TfliteView(site.builder.call(torch.select, site.plain(), site.setting("axis"), i)) for i in range(site.results)]


def _ordered(site: TfliteSite, i: int = 0) -> TfliteView:
    """An input as an image or as in the file; what is a row in another order is put right."""
    seen = site.seen(i)
    return seen if seen.form == "image" else TfliteView(site.plain(i))


@rule("SPLIT", "SPLIT_V")
def _split(site: TfliteSite) -> list[TfliteView]:
    at, which = (1, 0) if site.code == "SPLIT" else (0, 2)
    order = _ordered(site, at)
    axis = _axis(order, site.numbers(which, "axis")[0])
    size = shape_of(order.node)[axis]
    if site.code == "SPLIT":
        if size % site.results:
            raise StretchError(f"it splits {size} into {site.results}")
        sizes = [size // site.results] * site.results
    else:
        sizes = site.numbers(1, "sizes")
        sizes = [n if n >= 0 else size - sum(size for size in sizes if size >= 0) for n in sizes]
    parts = site.builder.call(torch.split, order.node, sizes, axis)
    return [order.like(site.builder.call(operator.getitem, parts, i)) for i in range(site.results)]


def _sliced(site: TfliteSite, order: TfliteView, ranges: list[slice]) -> TfliteView:
    """A part of each axis of the file."""
    items = [slice(None)] * len(ranges)
    for axis, (item, size) in enumerate(zip(ranges, order.shape, strict=True)):
        if (item.start, item.stop, item.step) != (0, size, 1):
            items[_axis(order, axis)] = slice(item.start, item.stop, item.step if item.step != 1 else None)
    return order if items == [slice(None)] * len(items) else order.like(site.builder.call(operator.getitem, order.node, tuple(items)))


@rule("SLICE")
def _slice(site: TfliteSite) -> TfliteView:
    begins, sizes, order = site.numbers(1, "begin"), site.numbers(2, "size"), _ordered(site)
    if not len(begins) == len(sizes) == len(order.shape):
        raise StretchError(f"it cuts {begins} and {sizes} out of {list(order.shape)}")
    ends = [whole if size == -1 else begin + size for begin, size, whole in zip(begins, sizes, order.shape, strict=True)]
    if any(not 0 <= begin < end <= whole for begin, end, whole in zip(begins, ends, order.shape, strict=True)):
        raise StretchError(f"it cuts {begins} and {sizes} out of {list(order.shape)}")
    return _sliced(site, order, [slice(begin, end, 1) for begin, end in zip(begins, ends, strict=True)])


@rule("STRIDED_SLICE")
def _strided_slice(site: TfliteSite) -> TfliteView:
    begins, ends, strides = (site.numbers(i, what) for i, what in ((1, "begin"), (2, "end"), (3, "strides")))
    shape = site.shape()
    if site.setting("ellipsis_mask") or site.setting("new_axis_mask"):
        raise StretchError("it slices with an ellipsis or new axes")
    if not len(begins) == len(ends) == len(strides) <= len(shape):
        raise StretchError(f"it slices {list(shape)} by {begins}, {ends} and {strides}")
    ranges, gone = [slice(0, size, 1) for size in shape], []
    for axis, (begin, end, step) in enumerate(zip(begins, ends, strides, strict=True)):
        if step < 1:
            raise StretchError("it turns the order of elements round")
        if site.setting("shrink_axis_mask") >> axis & 1:
            if not -shape[axis] <= begin < shape[axis]:
                raise StretchError(f"it reads place {begin} of {shape[axis]}")
            gone.append(axis)
            ranges[axis] = slice(begin % shape[axis], begin % shape[axis] + 1, 1)
            continue
        end = begin + end if site.settings.get("offset") else end
        first = None if site.setting("begin_mask") >> axis & 1 else begin
        last = None if site.setting("end_mask") >> axis & 1 else end
        ranges[axis] = slice(*slice(first, last, step).indices(shape[axis]))
    sliced = _sliced(site, _ordered(site), ranges)
    if not gone:
        return sliced
    within = TfliteSite([sliced], site.code, site.name, {}, 1, site.builder)
    return _reshaped(within, [n for axis, n in enumerate(sliced.shape) if axis not in gone])


@rule("GATHER")
def _gather(site: TfliteSite) -> TfliteView:
    if site.setting("batch_dims"):
        raise StretchError("it gathers in batches")
    indices, x = site.known(1, "indices"), site.plain()
    axis = site.setting("axis") % len(shape_of(x))
    size = shape_of(x)[axis]
    if ((indices < 0) | (indices >= size)).any():
        raise StretchError(f"it reads beyond an axis of {size}")
    if indices.ndim == 0:
        return TfliteView(site.builder.call(torch.select, x, axis, int(indices)))
    stored = site.builder.stored(indices.reshape(-1).astype(np.int64), f"{site.name}_indices")
    called = site.builder.call(torch.index_select, x, axis, stored)
    shape = shape_of(x)
    return TfliteView(site.builder.call(torch.reshape, called, (*shape[:axis], *indices.shape, *shape[axis + 1 :])))


@rule("TILE")
def _tile(site: TfliteSite) -> TfliteView:
    return TfliteView(site.builder.method("repeat", site.plain(), *site.numbers(1, "repeats")))


@rule("BROADCAST_TO")
def _broadcast(site: TfliteSite) -> TfliteView:
    return TfliteView(site.builder.method("expand", site.plain(), *site.numbers(1, "shape")))


@rule("REVERSE_V2")
def _reverse(site: TfliteSite) -> TfliteView:
    order = _ordered(site)
    return order.like(site.builder.call(torch.flip, order.node, [_axis(order, axis) for axis in site.numbers(1, "axes")]))


@rule("PAD", "PADV2", "MIRROR_PAD")
def _pad(site: TfliteSite) -> TfliteView:
    """Padding of the last axes; torch takes those as pairs from the last one on."""
    order, widths = _ordered(site), site.known(1, "widths")
    if widths.shape != (len(order.shape), 2) or (widths < 0).any():
        raise StretchError(f"it pads {list(order.shape)} by {widths.tolist()}")
    pairs: list[Any] = [(0, 0)] * len(widths)
    for axis, (before, behind) in enumerate(widths.tolist()):
        pairs[_axis(order, axis)] = (int(before), int(behind))
    while pairs and not any(pairs[0]):
        pairs = pairs[1:]
    flat = [side for pair in reversed(pairs) for side in pair]
    if not flat:
        return order
    if site.code != "MIRROR_PAD":
        value = site.optional(2, "value")
        return order.like(site.builder.call(F.pad, order.node, flat, "constant", 0.0 if value is None else float(value.ravel()[0])))
    if site.setting("mode"):
        raise StretchError("it repeats the border too, which torch's padding does not")
    return order.like(site.builder.call(F.pad, order.node, flat, "reflect"))


@rule("DEPTH_TO_SPACE")
def _depth_to_space(site: TfliteSite) -> TfliteView:
    """Channels count the columns of a block last, as in TensorFlow."""
    x, block = site.image(), site.setting("block_size")
    n, channels, height, width = shape_of(x)
    if block < 1 or channels % block**2:
        raise StretchError(f"it makes blocks of {block} of {channels} channels")
    split = site.builder.call(torch.reshape, x, (n, block, block, channels // block**2, height, width))
    moved = site.builder.call(torch.permute, split, (0, 3, 4, 1, 5, 2))
    return TfliteView(site.builder.call(torch.reshape, moved, (n, channels // block**2, height * block, width * block)), "image")


@rule("SPACE_TO_DEPTH")
def _space_to_depth(site: TfliteSite) -> TfliteView:
    x, block = site.image(), site.setting("block_size")
    n, channels, height, width = shape_of(x)
    if block < 1 or height % block or width % block:
        raise StretchError(f"it makes blocks of {block} of {height}×{width}")
    split = site.builder.call(torch.reshape, x, (n, channels, height // block, block, width // block, block))
    moved = site.builder.call(torch.permute, split, (0, 3, 5, 1, 2, 4))
    return TfliteView(site.builder.call(torch.reshape, moved, (n, channels * block**2, height // block, width // block)), "image")
