"""Operators of ONNX that read or write where another tensor says, as torch's functions."""

import operator
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes.node import counted
from stretch.models.builder import MAX_KNOWN, shape_of
from stretch.models.onnx.site import OnnxSite, Value, rule

#: What torch calls what is done with a number that is written where others are.
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}

#: Names of what samples an image; ONNX's had others before opset 20.
_SAMPLED = {"linear": "bilinear", "cubic": "bicubic"}


def _axis(site: OnnxSite, usual: int = 0) -> int:
    return counted(int(site.attrs.get("axis", usual)), len(site.shape))


def _sizes_of(value: Value) -> tuple[int, ...]:
    return () if value is None else tuple(value.shape) if isinstance(value, np.ndarray) else shape_of(value)


def _places(site: OnnxSite, sizes: Sequence[int]) -> fx.Node | np.ndarray:
    """Input 1, indices into axes of these sizes (one, or one for each place along its last axis), counted from the first."""
    value = site.value(1)
    bound = np.array(sizes, np.int64) if len(sizes) > 1 else np.array(sizes[0], np.int64)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iu":
            raise StretchError(f"its indices are of type {value.dtype}")
        if ((value < -bound) | (value >= bound)).any():
            raise StretchError(f"it reads beyond an axis of {' or '.join(map(str, sizes))}")
        return np.where(value < 0, value + bound, value).astype(np.int64)
    x = site.tensor(1)
    kind = x.meta["val"].dtype
    if kind not in (torch.int32, torch.int64):
        raise StretchError("its indices are no whole numbers")
    x = x if kind == torch.int64 else site.builder.method("to", x, torch.int64)
    by = sizes[0] if len(sizes) == 1 else site.builder.stored(bound, f"{site.name}_sizes")
    return site.builder.call(torch.remainder, x, by)


def _as_tensor(site: OnnxSite, places: fx.Node | np.ndarray) -> fx.Node:
    return places if isinstance(places, fx.Node) else site.builder.stored(places, f"{site.name}_indices")


def _reshaped(site: OnnxSite, x: fx.Node, shape: Sequence[int]) -> fx.Node:
    return x if shape_of(x) == tuple(shape) else site.builder.call(torch.reshape, x, tuple(shape))


@rule("Gather")
def _gather(site: OnnxSite) -> fx.Node:
    axis, shape = _axis(site), site.shape
    places = _places(site, shape[axis : axis + 1])
    if isinstance(places, np.ndarray) and places.ndim == 0:
        return site.builder.call(torch.select, site.x, axis, int(places))
    sizes = _sizes_of(places)
    flat = places.reshape(-1) if isinstance(places, np.ndarray) else _reshaped(site, places, (prod(sizes),))
    called = site.builder.call(torch.index_select, site.x, axis, _as_tensor(site, flat))
    return _reshaped(site, called, (*shape[:axis], *sizes, *shape[axis + 1 :]))


@rule("GatherElements")
def _gather_elements(site: OnnxSite) -> fx.Node:
    axis = _axis(site)
    return site.builder.call(torch.gather, site.x, axis, _as_tensor(site, _places(site, site.shape[axis : axis + 1])))


def _reduction(site: OnnxSite) -> str | None:
    """What is done with a number that is written where others are, as torch names it; None for none."""
    how = str(site.attrs.get("reduction", "none"))
    if how != "none" and how not in _REDUCTIONS:
        raise StretchError(f"its reduction is `{how[:20]}`")
    return _REDUCTIONS.get(how)


def _scattered(site: OnnxSite, x: fx.Node, axis: int, places: fx.Node, written: fx.Node, how: str | None) -> fx.Node:
    """A tensor with numbers written into it, or combined with those that are there."""
    if how is None:
        return site.builder.call(torch.scatter, x, axis, places, written)
    return site.builder.call(torch.scatter_reduce, x, axis, places, written, how)


@rule("ScatterElements", "Scatter")
def _scatter_elements(site: OnnxSite) -> fx.Node:
    axis, how = _axis(site), _reduction(site)
    if _sizes_of(site.value(1)) != _sizes_of(site.value(2)):
        raise StretchError(f"it writes {list(_sizes_of(site.value(2)))} where {list(_sizes_of(site.value(1)))} goes")
    return _scattered(site, site.x, axis, _as_tensor(site, _places(site, site.shape[axis : axis + 1])), site.tensor(2), how)


def _flat(site: OnnxSite, batch: int) -> tuple[fx.Node | np.ndarray, int]:
    """Indices of several axes as one number each, counted over all of these axes, and how many axes these are with the batch's."""
    shape, sizes = site.shape, _sizes_of(site.value(1))
    if not sizes or not 0 <= batch < min(len(sizes), len(shape)) or shape[:batch] != sizes[:batch]:
        raise StretchError(f"its indices have the shape {list(sizes)} for {list(shape)}, {batch} axes of them alike")
    last = batch + sizes[-1]
    if not batch < last <= len(shape):
        raise StretchError(f"its indices have the shape {list(sizes)} for {list(shape)}")
    places = _places(site, shape[batch:last])
    strides = np.array([prod(shape[i + 1 : last]) for i in range(batch, last)], np.int64)
    before = np.arange(prod(shape[:batch])).reshape(*shape[:batch], *(1,) * (len(sizes) - 1 - batch)) * prod(shape[batch:last])
    if isinstance(places, np.ndarray):
        return (places * strides).sum(-1) + before, last
    scaled = site.builder.call(operator.mul, places, site.builder.stored(strides, f"{site.name}_strides"))
    total = site.builder.call(torch.sum, scaled, -1)
    return (total if not batch else site.builder.call(operator.add, total, site.builder.stored(before, f"{site.name}_batches"))), last


@rule("GatherND")
def _gather_nd(site: OnnxSite) -> fx.Node:
    """All axes that are pointed into are one, into which single numbers point."""
    shape = site.shape
    places, last = _flat(site, int(site.attrs.get("batch_dims", 0)))
    sizes = _sizes_of(places)
    flat = places.reshape(-1) if isinstance(places, np.ndarray) else _reshaped(site, places, (prod(sizes),))
    rows = _reshaped(site, site.x, (prod(shape[:last]), *shape[last:]))
    called = site.builder.call(torch.index_select, rows, 0, _as_tensor(site, flat))
    return _reshaped(site, called, (*sizes, *shape[last:]))


@rule("ScatterND")
def _scatter_nd(site: OnnxSite) -> fx.Node:
    """All axes that are pointed into are one, and all others another."""
    shape, how = site.shape, _reduction(site)
    places, last = _flat(site, 0)
    sizes, width = _sizes_of(places), prod(shape[last:])
    if _sizes_of(site.value(2)) != (*sizes, *shape[last:]):
        raise StretchError(f"it writes {list(_sizes_of(site.value(2)))} where {[*sizes, *shape[last:]]} goes")
    rows = _reshaped(site, site.x, (prod(shape[:last]), width))
    written = _reshaped(site, site.tensor(2), (prod(sizes), width))
    column = _reshaped(site, _as_tensor(site, places), (prod(sizes), 1))
    wide = column if width == 1 else site.builder.method("expand", column, prod(sizes), width)
    return _reshaped(site, _scattered(site, rows, 0, wide, written, how), shape)


@rule("OneHot")
def _one_hot(site: OnnxSite) -> fx.Node:
    """Where a place has the number that the tensor says, counted from the first or the last."""
    values, depth = site.known(2, "values").reshape(-1), int(site.known(1, "depth").reshape(-1)[0])
    rank = len(site.shape)
    axis = counted(int(site.attrs.get("axis", -1)), rank + 1)
    if values.shape != (2,) or not 0 < depth <= MAX_KNOWN:
        raise StretchError(f"it has {values.size} values and the depth {depth}")
    called = site.builder.call(torch.unsqueeze, site.x, axis)
    numbers = [np.arange(n, n + depth).reshape(-1, *(1,) * (rank - axis)) for n in (0, -depth)]
    equal = [site.builder.call(torch.eq, called, site.builder.stored(number, f"{site.name}_numbers")) for number in numbers]
    mask = site.builder.call(torch.logical_or, *equal)
    off, on = (value.item() for value in values)
    method = site.builder.method("to", mask, torch.from_numpy(values.copy()).dtype)
    method = method if on - off == 1 else site.builder.call(operator.mul, method, on - off)
    return site.builder.call(operator.add, method, off) if off else method


@rule("GridSample")
def _grid_sample(site: OnnxSite) -> fx.Node:
    mode = str(site.attrs.get("mode", "bilinear" if site.opset < 20 else "linear"))
    more = {"padding_mode": str(site.attrs.get("padding_mode", "zeros")), "align_corners": bool(site.attrs.get("align_corners", 0))}
    return site.builder.call(F.grid_sample, site.x, site.tensor(1), mode=_SAMPLED.get(mode, mode), **more)


@rule("AffineGrid")
def _affine_grid(site: OnnxSite) -> fx.Node:
    """Places of an image of this size after an affine map."""
    size = [int(n) for n in site.known(1, "size").ravel()]
    return site.builder.call(F.affine_grid, site.x, size, bool(site.attrs.get("align_corners", 0)))
