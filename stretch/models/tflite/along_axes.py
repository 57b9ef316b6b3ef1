"""Reductions, normalisations and products of matrices of TFLite as torch's modules and functions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from predictors.errors import StretchError
from stretch.models.builder import filled, shape_of
from stretch.models.tflite.site import FIRST, RULES, TfliteSite, TfliteView, flattened, module, rule


def _axes(site: TfliteSite, numbers: list[int] | None = None) -> list[int]:
    """Axes of the first input in the file, counted from the first."""
    rank = len(site.shape())
    axes = site.numbers(1, "axes") if numbers is None else numbers
    if any(not -rank <= axis < rank for axis in axes):
        raise StretchError(f"it has the axes {axes} of {rank}")
    return sorted({axis % rank for axis in axes})


def _reduced(function: Callable[..., Any], site: TfliteSite) -> TfliteView:
    """Over some axes of the file; an image stays one if no axis of it goes."""
    axes, keep = _axes(site), bool(site.settings.get("keep_dims"))
    seen = site.seen(0)
    if not axes:
        return seen
    if seen.form == "image" and keep:
        return seen.like(site.builder.call(function, seen.node, [FIRST[axis] for axis in axes], True))
    return TfliteView(site.builder.call(function, site.plain(), axes, keep))


RULES.update(
    {"SUM": partial(_reduced, torch.sum), "REDUCE_MAX": partial(_reduced, torch.amax), "REDUCE_MIN": partial(_reduced, torch.amin)}
)


@rule("MEAN")
def _mean(site: TfliteSite) -> TfliteView:
    """A mean; over height and width it is what torch's networks call a pool."""
    if site.seen(0).form != "image" or _axes(site) != [1, 2]:
        return _reduced(torch.mean, site)
    pooled = module(site, nn.AdaptiveAvgPool2d(1), site.image())
    return TfliteView(pooled, "image") if site.settings.get("keep_dims") else flattened(site.builder, pooled)


@rule("REDUCE_PROD")
def _product(site: TfliteSite) -> TfliteView:
    x = site.plain()
    for axis in reversed(_axes(site)):
        x = site.builder.call(torch.prod, x, axis, bool(site.settings.get("keep_dims")))
    return TfliteView(x)


@rule("ARG_MAX", "ARG_MIN")
def _place(site: TfliteSite) -> TfliteView:
    (axis,) = _axes(site)
    function = torch.argmax if site.code == "ARG_MAX" else torch.argmin
    return TfliteView(site.builder.call(function, site.plain(), axis))


@rule("CUMSUM")
def _cum_sum(site: TfliteSite) -> TfliteView:
    if site.settings.get("exclusive") or site.settings.get("reverse"):
        raise StretchError("it sums up to before each element, or from behind")
    (axis,) = _axes(site)
    return TfliteView(site.builder.call(torch.cumsum, site.plain(), axis))


def _last(function: Callable[..., Any], site: TfliteSite, *more: Any) -> TfliteView:
    """A function along the last axis."""
    seen = site.seen(0)
    if seen.form == "image":
        return seen.like(site.builder.call(function, seen.node, *more, 1))
    return TfliteView(site.builder.call(function, site.plain(), *more, len(seen.shape) - 1))


@rule("SOFTMAX")
def _softmax(site: TfliteSite) -> TfliteView:
    beta = float(site.settings.get("beta", 0.0))
    if beta == 1:
        return _last(torch.softmax, site)
    seen = site.seen(0)
    scaled = seen.like(site.builder.call(torch.mul, seen.node, beta))
    return _last(torch.softmax, TfliteSite([scaled], site.code, site.name, {}, 1, site.builder))


@rule("LOG_SOFTMAX")
def _log_softmax(site: TfliteSite) -> TfliteView:
    return _last(torch.log_softmax, site)


@rule("L2_NORMALIZATION")
def _l2_normalise(site: TfliteSite) -> TfliteView:
    seen = _last(F.normalize, site, 2.0)
    return seen.like(site.activated(seen.node))


@rule("LOCAL_RESPONSE_NORMALIZATION")
def _local_response(site: TfliteSite) -> TfliteView:
    """The sum of squares is not divided by their number, as torch does."""
    size = 2 * site.setting("radius") + 1
    alpha, beta, bias = (float(site.settings.get(name, 0.0)) for name in ("alpha", "beta", "bias"))
    return TfliteView(site.builder.call(F.local_response_norm, site.image(), size, alpha * size, beta, bias), "image")


@rule("FULLY_CONNECTED")
def _fully_connected(site: TfliteSite) -> TfliteView:
    """A matrix on the last axis, or on rows as long as it reads; columns are put into the order of a flattened image."""
    if site.setting("weights_format"):
        raise StretchError("its weights are shuffled for one runtime")
    bias = site.optional(2, "bias")
    weight = site.value(1)
    if not isinstance(weight, np.ndarray):
        x = site.builder.call(torch.matmul, site.plain(), site.builder.call(torch.transpose, site.plain(1), 0, 1))
        x = x if bias is None else site.builder.call(torch.add, x, site.seen(2).node)
        return TfliteView(site.activated(x))
    if weight.ndim != 2 or weight.dtype != np.float32:
        raise StretchError(f"its weight has the shape {list(weight.shape)} and type {weight.dtype}")
    seen = site.seen(0)
    layer = filled(nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta"), weight=weight, bias=bias)
    keep = bool(site.settings.get("keep_num_dims"))
    if not keep and seen.form == "image" and np.prod(seen.shape[1:]) == weight.shape[1]:
        seen = flattened(site.builder, seen.node)
    if seen.form == "row" and seen.shape[1] == weight.shape[1]:
        height, width, channels = seen.size
        ordered = weight.reshape(-1, height, width, channels).transpose(0, 3, 1, 2).reshape(weight.shape)
        return TfliteView(site.activated(module(site, filled(layer, weight=np.ascontiguousarray(ordered)), seen.node)))
    x = site.plain() if seen is site.seen(0) or seen.form != "plain" else seen.node
    if not keep and shape_of(x) != (shape_of(x)[0], weight.shape[1]):
        x = site.builder.call(torch.reshape, x, (-1, weight.shape[1]))
    return TfliteView(site.activated(module(site, layer, x)))


@rule("BATCH_MATMUL")
def _matmul(site: TfliteSite) -> TfliteView:
    sides = [_swapped(site, i, bool(site.settings.get(name))) for i, name in enumerate(("adj_x", "adj_y"))]
    return TfliteView(site.builder.call(torch.matmul, *sides))


def _swapped(site: TfliteSite, i: int, swap: bool) -> fx.Node:
    x = site.plain(i)
    return site.builder.call(torch.transpose, x, -2, -1) if swap else x
