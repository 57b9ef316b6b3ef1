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

#: Modules of one tensor, made of the arguments behind it: named like their operators, and those that are not.
_ALIKE = (nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh, nn.GELU)
_MODULES: dict[str, Callable[..., nn.Module]] = {
    **{make.__name__.lower(): make for make in _ALIKE},
    "leaky_relu": nn.LeakyReLU,
    **dict.fromkeys(("adaptive_avg_pool2d", "_adaptive_avg_pool2d"), nn.AdaptiveAvgPool2d),
}

#: Functions with the arguments of the operator.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{value.__name__: value for value in (torch.cat, torch.flatten, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze)},
    **{value.__name__: value for value in (torch.clamp, torch.mean, torch.softmax, torch.log_softmax, F.pixel_shuffle)},
    **dict.fromkeys(("reshape", "view", "_unsafe_view"), torch.reshape),
    "_softmax": torch.softmax,
    "_log_softmax": torch.log_softmax,
}

_PAIRS: dict[str, Callable[..., Any]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}


def _module(make: Callable[..., nn.Module]) -> Rule:
    return lambda site: site.called(make(*list(site.arguments.values())[1:]))


def _function(function: Callable[..., Any]) -> Rule:
    def apply(site: Site) -> Value:
        arguments = dict(site.arguments)
        # in another type it is no call that capture knows
        if any((arguments.pop("dtype", None), arguments.pop("half_to_float", None))):
            return None
        return site.builder.call(function, *site.written(list(arguments.values())))

    return apply


def _pair(function: Callable[..., Any]) -> Rule:
    def combine(site: Site) -> Value:
        x, other = site.arguments["self"], site.arguments["other"]
        if site.arguments.get("alpha", 1) != 1 or site.arguments.get("rounding_mode") is not None:
            return None
        # decompositions write SiLU as a product with the sigmoid of the same tensor
        gated = function is operator.mul and isinstance(other, fx.Node) and isinstance(site.builder.behind(other), nn.Sigmoid)
        return site.called(nn.SiLU()) if gated and other.args[0] is x else site.builder.call(function, *site.written([x, other]))

    return combine


RULES.update({name: _module(make) for name, make in _MODULES.items()})
RULES.update({name: _function(function) for name, function in _FUNCTIONS.items()})
RULES.update({name: _pair(function) for name, function in _PAIRS.items()})


@rule("contiguous", "clone", "detach", "alias", "lift_fresh_copy", "to", "_to_copy", "type_as")
def _pass(site: Site) -> Value:
    """What it reads, unless its type changes."""
    to = site.arguments.get("dtype")
    if isinstance(site.arguments.get("other"), fx.Node):
        to = site.arguments["other"].meta["val"].dtype
    return site.x if to is None or to == site.x.meta["val"].dtype else None


@rule("dropout", "feature_dropout", "alpha_dropout", "native_dropout")
def _drop(site: Site) -> Value:
    """Nothing is dropped once a network is trained."""
    return site.called(nn.Dropout(float(site.arguments["p"])), x="input")


@rule("elu")
def _elu(site: Site) -> Value:
    if site.arguments["scale"] != 1 or site.arguments["input_scale"] != 1:
        return None
    return site.called(nn.ELU(float(site.arguments["alpha"])))


@rule("max_pool2d", "max_pool2d_with_indices", "avg_pool2d")
def _pool(site: Site) -> Value:
    options = {key: _two(value) for key, value in list(site.arguments.items())[1:]}
    make = nn.AvgPool2d if site.name == "avg_pool2d" else nn.MaxPool2d
    return site.called(make(**options | {"stride": options["stride"] or options["kernel_size"]}))


def _two(value: Any) -> Any:
    """A pair, which torch's modules do not make of a list of one."""
    return tuple(value) * (2 if len(value) == 1 else 1) if isinstance(value, list | tuple) else value


@rule("split", "split_with_sizes", "chunk")
def _split(site: Site) -> Value:
    parts = site.builder.call(torch.chunk if site.name == "chunk" else torch.split, *site.written(list(site.arguments.values())[:3]))
    return [site.builder.call(operator.getitem, parts, i) for i in range(len(parts.meta["val"]))]


@rule("slice")
def _slice(site: Site) -> Value:
    shape = shape_of(site.x)
    axis, step = int(site.arguments["dim"]) % len(shape), int(site.arguments["step"])
    if step < 1:
        raise StretchError(f"it slices with a step of {step}")
    first, last, _ = slice(site.arguments["start"], site.arguments["end"], step).indices(shape[axis])
    if (first, last, step) == (0, shape[axis], 1):
        return site.x
    items = [slice(None)] * axis + [slice(first, last, step if step != 1 else None)]
    return site.builder.call(operator.getitem, site.x, tuple(items))


@rule("select")
def _select(site: Site) -> Value:
    axis = int(site.arguments["dim"]) % len(shape_of(site.x))
    return site.builder.call(operator.getitem, site.x, (*[slice(None)] * axis, int(site.arguments["index"])))


@rule("expand")
def _expand(site: Site) -> Value:
    return site.builder.method("expand", site.x, *site.arguments["size"])


@rule("constant_pad_nd", "pad")
def _pad(site: Site) -> Value:
    mode, value = str(site.arguments.get("mode", "constant")), site.arguments["value"]
    return site.builder.call(F.pad, site.x, list(site.arguments["pad"]), mode, value or 0.0)


@rule("upsample_nearest2d")
def _enlarge(site: Site) -> Value:
    """By whole factors; torch rounds those of others in ways of its own."""
    x, out = shape_of(site.x), site.arguments["output_size"]
    factors = site.arguments.get("scale_factors") or [site.arguments.get("scales_h"), site.arguments.get("scales_w")]
    size = [int(n) for n in out] if out is not None else [int(n * factor) for n, factor in zip(x[2:], factors, strict=True)]
    exact = all(new % old == 0 and factor in (None, new / old) for new, old, factor in zip(size, x[2:], factors, strict=True))
    return site.builder.call(F.interpolate, site.x, size=size) if exact else None
