"""Calls without weights as torch's modules and functions that `stretch.capture` sees single channels through."""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from predictors.errors import StretchError
from stretch.models.builder import shape_of
from stretch.models.pt2.site import RULES, Rule, Site, Value, rule

#: Modules of one tensor, made of the arguments behind it.
_MODULES: dict[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
    "_adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
}

#: Functions with the arguments of the operator.
_SAME: dict[str, Callable[..., Any]] = {
    "cat": torch.cat,
    "flatten": torch.flatten,
    "permute": torch.permute,
    "transpose": torch.transpose,
    "reshape": torch.reshape,
    "view": torch.reshape,
    "_unsafe_view": torch.reshape,
    "clamp": torch.clamp,
    "pixel_shuffle": F.pixel_shuffle,
}

_PAIRS: dict[str, Callable[..., Any]] = {"add": operator.add, "sub": operator.sub, "div": operator.truediv}

_PASSING = ("contiguous", "clone", "detach", "alias", "lift_fresh_copy", "to", "_to_copy", "type_as")
_DROPPING = ("dropout", "feature_dropout", "alpha_dropout", "native_dropout")


def _module(make: Callable[..., nn.Module]) -> Rule:
    return lambda site: site.called(make(*list(site.given.values())[1:]))


def _same(function: Callable[..., Any]) -> Rule:
    return lambda site: site.builder.call(function, *site.written(list(site.given.values())))


def _pair(function: Callable[..., Any]) -> Rule:
    def combine(site: Site) -> Value:
        if site.given.get("alpha", 1) != 1 or site.given.get("rounding_mode") is not None:
            return None
        return site.builder.call(function, site.written(site.given["self"]), site.written(site.given["other"]))

    return combine


RULES.update({name: _module(make) for name, make in _MODULES.items()})
RULES.update({name: _same(function) for name, function in _SAME.items()})
RULES.update({name: _pair(function) for name, function in _PAIRS.items()})


@rule("mul")
def _product(site: Site) -> Value:
    """A product; by the sigmoid of the same tensor it is SiLU, which decompositions write so."""
    x, gate = site.given["self"], site.given["other"]
    if isinstance(x, fx.Node) and isinstance(gate, fx.Node) and isinstance(site.builder.behind(gate), nn.Sigmoid) and gate.args[0] is x:
        return site.called(nn.SiLU())
    return _pair(operator.mul)(site)


@rule(*_PASSING)
def _pass(site: Site) -> Value:
    """What it reads, unless its type changes."""
    to = site.given.get("dtype")
    if isinstance(site.given.get("other"), fx.Node):
        to = site.given["other"].meta["val"].dtype
    return site.x if to is None or to == site.x.meta["val"].dtype else None


@rule(*_DROPPING)
def _drop(site: Site) -> Value:
    """Nothing is dropped once a network is trained."""
    return site.called(nn.Dropout(float(site.given["p"])), x="input")


@rule("gelu")
def _gelu(site: Site) -> Value:
    return site.called(nn.GELU(str(site.given["approximate"])))


@rule("elu")
def _elu(site: Site) -> Value:
    if site.given["scale"] != 1 or site.given["input_scale"] != 1:
        return None
    return site.called(nn.ELU(float(site.given["alpha"])))


@rule("mean")
def _mean(site: Site) -> Value:
    if "dim" not in site.given or site.given.get("dtype") is not None:
        return None
    return site.builder.call(torch.mean, site.x, site.given["dim"], bool(site.given["keepdim"]))


@rule("softmax", "_softmax", "log_softmax", "_log_softmax")
def _softmax(site: Site) -> Value:
    if site.given.get("dtype") is not None or site.given.get("half_to_float"):
        return None
    name = site.operator._overloadpacket.__name__.removeprefix("_")
    return site.builder.call(getattr(torch, name), site.x, int(site.given["dim"]))


@rule("max_pool2d", "max_pool2d_with_indices")
def _max_pool(site: Site) -> Value:
    given = site.given
    step = given["stride"] or given["kernel_size"]
    return site.called(
        nn.MaxPool2d(
            *(_two(each) for each in (given["kernel_size"], step, given["padding"], given["dilation"])), ceil_mode=given["ceil_mode"]
        )
    )


@rule("avg_pool2d")
def _average_pool(site: Site) -> Value:
    given = site.given
    if given["divisor_override"] is not None:
        return None
    sizes = [_two(each) for each in (given["kernel_size"], given["stride"] or given["kernel_size"], given["padding"])]
    return site.called(nn.AvgPool2d(*sizes, bool(given["ceil_mode"]), bool(given["count_include_pad"])))


def _two(value: Any) -> Any:
    """A pair, which torch's modules do not make of a list of one."""
    return tuple(value) * (2 if len(value) == 1 else 1) if isinstance(value, list | tuple) else value


@rule("split", "split_with_sizes", "chunk")
def _split(site: Site) -> Value:
    x, how, axis = site.written(list(site.given.values())[:3])
    parts = site.builder.call(torch.chunk if site.operator._overloadpacket.__name__ == "chunk" else torch.split, x, how, axis)
    return [site.builder.call(operator.getitem, parts, i) for i in range(len(parts.meta["val"]))]


@rule("slice")
def _slice(site: Site) -> Value:
    shape = shape_of(site.x)
    axis, step = int(site.given["dim"]) % len(shape), int(site.given["step"])
    if step < 1:
        raise StretchError(f"it slices with a step of {step}")
    first, last, _ = slice(site.given["start"], site.given["end"], step).indices(shape[axis])
    if (first, last, step) == (0, shape[axis], 1):
        return site.x
    items = [slice(None)] * axis + [slice(first, last, step if step != 1 else None)]
    return site.builder.call(operator.getitem, site.x, tuple(items))


@rule("select")
def _select(site: Site) -> Value:
    axis = int(site.given["dim"]) % len(shape_of(site.x))
    return site.builder.call(operator.getitem, site.x, (*[slice(None)] * axis, int(site.given["index"])))


@rule("unsqueeze")
def _unsqueeze(site: Site) -> Value:
    return site.builder.call(torch.unsqueeze, site.x, int(site.given["dim"]))


@rule("squeeze")
def _squeeze(site: Site) -> Value:
    return site.builder.call(torch.squeeze, *site.written([each for each in site.given.values() if each is not None]))


@rule("expand")
def _expand(site: Site) -> Value:
    return site.builder.method("expand", site.x, *site.given["size"])


@rule("constant_pad_nd", "pad")
def _pad(site: Site) -> Value:
    value = site.given["value"]
    return site.builder.call(
        F.pad, site.x, list(site.given["pad"]), str(site.given.get("mode", "constant")), 0.0 if value is None else value
    )


@rule("upsample_nearest2d")
def _enlarge(site: Site) -> Value:
    """By whole factors; torch rounds those of others in ways of its own."""
    x, out = shape_of(site.x), site.given["output_size"]
    factors = site.given.get("scale_factors") or [site.given.get("scales_h"), site.given.get("scales_w")]
    size = [int(n) for n in out] if out is not None else [int(n * factor) for n, factor in zip(x[2:], factors, strict=True)]
    exact = all(new % old == 0 and factor in (None, new / old) for new, old, factor in zip(size, x[2:], factors, strict=True))
    return site.builder.call(F.interpolate, site.x, size=size) if exact else None
