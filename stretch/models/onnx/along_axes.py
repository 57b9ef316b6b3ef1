"""Normalisations and reductions of ONNX as torch's modules and functions."""

import operator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes.node import counted
from stretch.models.builder import filled
from stretch.models.onnx.site import RULES, OnnxSite, Rule, rule
from stretch.models.onnx.windows import pooled_to_one

_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


@rule("BatchNormalization")
def _batch_norm(site: OnnxSite) -> fx.Node:
    if site.results > 1 and site.attrs.get("training_mode", 0):
        raise StretchError("it is in training mode")
    module = _BATCH_NORMS[len(site.shape)](site.shape[1], eps=float(site.attrs.get("epsilon", 1e-5)))
    names = ("weight", "bias", "running_mean", "running_var")
    return site.builder.module(filled(module, **{name: site.known(i, name) for i, name in enumerate(names, 1)}), site.x, site.name)


@rule("LayerNormalization")
def _layer_norm(site: OnnxSite) -> fx.Node:
    axis = int(site.attrs.get("axis", -1)) % len(site.shape)
    weight, bias = site.known(1, "scale"), site.optional(2, "bias")
    module = nn.LayerNorm(site.shape[axis:], eps=float(site.attrs.get("epsilon", 1e-5)), bias=bias is not None)
    return site.builder.module(filled(module, weight=weight, bias=bias), site.x, site.name)


@rule("RMSNormalization")
def _rms_norm(site: OnnxSite) -> fx.Node:
    """X over the root of its mean square, times a weight (Zhang and Sennrich, RMSNorm, section 4)."""
    rank = len(site.shape)
    axes = list(range(counted(int(site.attrs.get("axis", -1)), rank), rank))
    mean = site.builder.call(torch.mean, site.builder.call(torch.square, site.x), axes, True)
    root = site.builder.call(torch.rsqrt, site.builder.call(operator.add, mean, float(site.attrs.get("epsilon", 1e-5))))
    return site.builder.call(operator.mul, site.builder.call(operator.mul, site.x, root), site.tensor(1))


@rule("MeanVarianceNormalization")
def _standardised(site: OnnxSite) -> fx.Node:
    """What is left of x without its mean, over its deviation; the number that keeps this from zero is the standard's."""
    axes = [counted(int(axis), len(site.shape)) for axis in site.attrs.get("axes", (0, 2, 3))]
    centred = site.builder.call(operator.sub, site.x, site.builder.call(torch.mean, site.x, axes, True))
    variance = site.builder.call(torch.mean, site.builder.call(torch.square, centred), axes, True)
    deviation = site.builder.call(operator.add, site.builder.call(torch.sqrt, variance), 1e-9)
    return site.builder.call(operator.truediv, centred, deviation)


@rule("InstanceNormalization")
def _instance_norm(site: OnnxSite) -> fx.Node:
    weight, bias = site.tensor(1), site.tensor(2)
    eps = float(site.attrs.get("epsilon", 1e-5))
    return site.builder.call(F.instance_norm, site.x, None, None, weight, bias, True, 0.1, eps)


@rule("GroupNormalization")
def _group_norm(site: OnnxSite) -> fx.Node:
    """Before opset 21 it has a weight a group, which all channels of the group share."""
    groups, weights = int(site.attrs.get("num_groups", 1)), [site.known(1, "scale"), site.known(2, "bias")]
    if site.opset < 21:
        weights = [np.repeat(weight, site.shape[1] // groups) for weight in weights]
    module = nn.GroupNorm(groups, site.shape[1], eps=float(site.attrs.get("epsilon", 1e-5)))
    return site.builder.module(filled(module, weight=weights[0], bias=weights[1]), site.x, site.name)


@rule("LpNormalization")
def _lp_normalise(site: OnnxSite) -> fx.Node:
    return site.builder.call(F.normalize, site.x, float(site.attrs.get("p", 2)), int(site.attrs.get("axis", -1)))


@rule("LRN")
def _local_response(site: OnnxSite) -> fx.Node:
    numbers = [float(site.attrs.get(name, usual)) for name, usual in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))]
    return site.builder.call(F.local_response_norm, site.x, int(site.attrs["size"]), *numbers)


def _soft(function: Any) -> Rule:
    def softened(site: OnnxSite) -> fx.Node:
        """Before opset 13 all axes from the stated one on are one."""
        rank = len(site.shape)
        axis = int(site.attrs.get("axis", -1 if site.opset >= 13 else 1)) % rank
        if site.opset >= 13 or axis == rank - 1:
            return site.builder.call(function, site.x, axis)
        flat = site.builder.call(torch.flatten, site.x, axis)
        return site.builder.call(torch.reshape, site.builder.call(function, flat, axis), site.shape)

    return softened


RULES.update({"Softmax": _soft(torch.softmax), "LogSoftmax": _soft(torch.log_softmax)})


def _axes(site: OnnxSite) -> tuple[list[int], bool]:
    """Axes that are reduced, counted from the first, and whether they are kept as 1."""
    axes, rank = site.numbers("axes", 1), len(site.shape)
    if not axes and site.attrs.get("noop_with_empty_axes", 0):
        raise StretchError("it reduces nothing")
    return sorted(axis % rank for axis in axes or range(rank)), bool(site.attrs.get("keepdims", 1))


@rule("ReduceMean")
def _mean(site: OnnxSite) -> fx.Node:
    """A mean; over height and width it is what torch's networks call a pool."""
    axes, keep = _axes(site)
    if axes == [2, 3] and len(site.shape) == 4 and keep:
        return pooled_to_one(site)
    return site.builder.call(torch.mean, site.x, axes, keep)


def _reduced(function: Any, before: Any = None, after: Any = None, **more: Any) -> Rule:
    """The rule of a reduction, of what a function makes of each element before, and of its result."""

    def reduce(site: OnnxSite) -> fx.Node:
        axes, keep = _axes(site)
        x = site.x if before is None else site.builder.call(before, site.x)
        total = site.builder.call(function, x, dim=axes, keepdim=keep, **more)
        return total if after is None else site.builder.call(after, total)

    return reduce


RULES.update(
    {
        "ReduceSum": _reduced(torch.sum),
        "ReduceSumSquare": _reduced(torch.sum, before=torch.square),
        "ReduceLogSum": _reduced(torch.sum, after=torch.log),
        "ReduceMax": _reduced(torch.amax),
        "ReduceMin": _reduced(torch.amin),
        "ReduceLogSumExp": _reduced(torch.logsumexp),
        "ReduceL1": _reduced(torch.linalg.vector_norm, ord=1),
        "ReduceL2": _reduced(torch.linalg.vector_norm, ord=2),
    }
)


@rule("ReduceProd")
def _product(site: OnnxSite) -> fx.Node:
    axes, keep = _axes(site)
    x = site.x
    for axis in reversed(axes):
        x = site.builder.call(torch.prod, x, axis, keep)
    return x


@rule("TopK")
def _largest(site: OnnxSite) -> list[fx.Node]:
    """The largest or smallest elements, in order, and their places."""
    count, axis = int(site.known(1, "number").ravel()[0]), int(site.attrs.get("axis", -1))
    called = site.builder.call(torch.topk, site.x, count, axis, bool(site.attrs.get("largest", 1)), True)
    return [site.builder.call(operator.getitem, called, i) for i in range(site.results)]


def _placed(function: Any) -> Rule:
    return lambda site: site.builder.call(function, site.x, int(site.attrs.get("axis", 0)), bool(site.attrs.get("keepdims", 1)))


RULES.update({"ArgMax": _placed(torch.argmax), "ArgMin": _placed(torch.argmin)})


def _cumulated(function: Any, neutral: float) -> Rule:
    def cumulate(site: OnnxSite) -> fx.Node:
        """Up to each element, or to before it (`exclusive`), or from behind (`reverse`)."""
        axis, x = counted(int(site.known(1, "axis").item()), len(site.shape)), site.x
        back = bool(site.attrs.get("reverse", 0))
        x = site.builder.call(torch.flip, x, [axis]) if back else x
        if site.attrs.get("exclusive", 0):
            widths = [0, 0] * (len(site.shape) - 1 - axis) + [1, 0]
            later = site.builder.call(F.pad, x, widths, "constant", neutral)
            x = site.builder.call(torch.narrow, later, axis, 0, site.shape[axis])
        called = site.builder.call(function, x, axis)
        return site.builder.call(torch.flip, called, [axis]) if back else called

    return cumulate


RULES.update({"CumSum": _cumulated(torch.cumsum, 0.0), "CumProd": _cumulated(torch.cumprod, 1.0)})


@rule("Hardmax")
def _hard_max(site: OnnxSite) -> fx.Node:
    """1 where the largest element is, the first of several."""
    rank = len(site.shape)
    axis = counted(int(site.attrs.get("axis", -1 if site.opset >= 13 else 1)), rank)
    if site.opset < 13 and axis != rank - 1:
        raise StretchError("before opset 13 several axes are one for it")
    numbers = np.arange(site.shape[axis]).reshape(-1, *(1,) * (rank - 1 - axis))
    largest = site.builder.call(torch.argmax, site.x, axis, True)
    equal = site.builder.call(torch.eq, largest, site.builder.stored(numbers, f"{site.name}_numbers"))
    return site.builder.method("to", equal, torch.float32)
