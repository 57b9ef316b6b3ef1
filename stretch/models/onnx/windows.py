"""Convolutions and pools of ONNX as torch's modules, the padding before them part of their windows."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from predictors.errors import StretchError
from predictors.shapes import same_padding
from stretch.models.builder import Builder, filled, shape_of
from stretch.models.onnx.site import OnnxSite, rule
from stretch.operators.convolution import PaddedConv2d
from stretch.operators.pooling import padded_pool

_CONVOLUTIONS = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_TRANSPOSED = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}
_MAX_POOLS = {3: nn.MaxPool1d, 4: nn.MaxPool2d, 5: nn.MaxPool3d}
_AVERAGE_POOLS = {3: nn.AvgPool1d, 4: nn.AvgPool2d, 5: nn.AvgPool3d}

#: Functions whose results are never below zero, and those whose results are not where what they read is not.
_POSITIVE = {torch.relu, F.relu6, torch.sigmoid, F.hardsigmoid, torch.softmax, torch.abs, torch.exp}
_KEEPING = {torch.flatten, torch.reshape, torch.permute, torch.cat, F.interpolate, torch.mean, torch.amax}
_KEEPING_MODULES = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)

#: So low that nothing is lower: what stands for minus infinity where a format has none.
_LOWEST = -1e38


@dataclass(frozen=True)
class Window:
    """How a window slides over an image; of each axis a number."""

    x: fx.Node  # The image.
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]  # Padding.
    behind: tuple[int, ...]

    @classmethod
    def of(cls, site: OnnxSite, kernel: Sequence[int]) -> "Window":
        """The window of a node; padding is worked out where the file leaves it to the runtime."""
        axes, auto = len(kernel), site.attrs.get("auto_pad", "NOTSET")
        stride, dilation = tuple(site.pair("strides")), tuple(site.pair("dilations"))
        if auto in ("NOTSET", "VALID"):
            pads = tuple(int(n) for n in site.attrs.get("pads", [0] * 2 * axes)) if auto == "NOTSET" else (0,) * 2 * axes
            if len(pads) != 2 * axes or min(pads) < 0:
                raise StretchError(f"its pads are {list(pads)} for {axes} axes")
        else:
            pads = same_padding(site.shape[2:], kernel, stride, dilation, odd_first=auto == "SAME_LOWER")
        return cls(site.x, tuple(kernel), stride, dilation, pads[:axes], pads[axes:])

    @property
    def even(self) -> bool:
        """Whether both sides are padded alike."""
        return self.before == self.behind

    @property
    def halved(self) -> bool:
        """Whether torch's pools take this padding: equal on both sides, and at most half a window."""
        return self.even and all(pad <= k // 2 for pad, k in zip(self.before, self.kernel, strict=True))

    def padded(self, builder: Builder, value: float = 0.0) -> fx.Node:
        """The image with a number around it."""
        flat = [side for pair in zip(reversed(self.before), reversed(self.behind), strict=True) for side in pair]
        return builder.call(F.pad, self.x, flat, "constant", value) if any(flat) else self.x

    def unpadded(self, *allowed: float) -> "Window":
        """The window with a padding by one of these numbers, of which the image is the result, as part of its own."""
        axes = len(self.kernel)
        if self.x.op != "call_function" or self.x.target is not F.pad or self.x.args[2] != "constant":
            return self
        earlier, flat, _, value = self.x.args
        sides: list[int] = list(flat)  # type: ignore[arg-type]
        if (value not in allowed and not (-inf in allowed and value <= _LOWEST)) or not 0 < len(sides) <= 2 * axes or min(sides) < 0:  # type: ignore[operator]
            return self
        sides += [0] * (2 * axes - len(sides))
        assert isinstance(earlier, fx.Node)
        before, behind = (
            tuple(a + b for a, b in zip(sides[i::2][::-1], own, strict=True)) for i, own in enumerate((self.before, self.behind))
        )
        return replace(self, x=earlier, before=before, behind=behind)

    def evened(self) -> "Window":
        """As much padding behind each axis as before it where no window reads what that adds: torch pads both sides alike."""
        behind = []
        for size, k, s, d, first, last in zip(
            shape_of(self.x)[2:], self.kernel, self.stride, self.dilation, self.before, self.behind, strict=True
        ):
            counts = [(size + first + more - d * (k - 1) - 1) // s for more in (last, first)]
            behind.append(first if last < first and counts[0] == counts[1] else last)
        return replace(self, behind=tuple(behind))

    def pool(self, kind: str, **more: Any) -> nn.Module:
        """A pool of one of our kinds, whose sides may be padded differently."""
        return padded_pool(kind, {"kernel": self.kernel, "stride": self.stride, "padding": (*self.before, *self.behind), **more})


def _weighted(site: OnnxSite) -> tuple[np.ndarray, np.ndarray | None]:
    weight, bias = site.known(1, "weight"), site.optional(2, "bias")
    if weight.ndim != len(site.shape) or weight.ndim not in _CONVOLUTIONS:
        raise StretchError(f"its input and weight have the shapes {list(site.shape)} and {list(weight.shape)}")
    return weight, bias


@rule("Conv")
def _conv(site: OnnxSite) -> fx.Node:
    weight, bias = _weighted(site)
    groups = int(site.attrs.get("group", 1))
    if groups < 1 or weight.shape[0] % groups or weight.shape[1] * groups != site.shape[1]:
        raise StretchError(f"its {groups} groups of weights of the shape {list(weight.shape)} do not fit {list(site.shape)}")
    window = Window.of(site, weight.shape[2:]).unpadded(0.0).evened()
    shape = (weight.shape[1] * groups, weight.shape[0], window.kernel, window.stride)
    more: dict[str, Any] = {"dilation": window.dilation, "groups": groups, "bias": bias is not None, "device": "meta"}
    if not window.even and weight.ndim == 4:
        module: nn.Module = PaddedConv2d(*shape, pads=(*window.before, *window.behind), **more)
    else:
        module = _CONVOLUTIONS[weight.ndim](*shape, padding=window.before if window.even else 0, **more)  # type: ignore[arg-type]
    x = window.x if window.even or weight.ndim == 4 else window.padded(site.builder)
    return site.builder.module(filled(module, weight=weight, bias=bias), x, site.name)


@rule("ConvTranspose")
def _conv_transpose(site: OnnxSite) -> fx.Node:
    weight, bias = _weighted(site)
    if "output_shape" in site.attrs or site.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        raise StretchError("it leaves its padding to the runtime")
    window = Window.of(site, weight.shape[2:])
    if not window.even:
        raise StretchError("its padding differs between sides")
    groups = int(site.attrs.get("group", 1))
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
    return site.builder.module(filled(module, weight=weight, bias=bias), site.x, site.name)


@rule("MaxPool")
def _max_pool(site: OnnxSite) -> fx.Node:
    """The largest of each window; what is padded never is."""
    if site.results > 1 or site.attrs.get("storage_order", 0):
        raise StretchError("it gives the places of the largest elements too")
    window, up = Window.of(site, site.pair("kernel_shape")), bool(site.attrs.get("ceil_mode", 0))
    earlier = site.x.args[0] if site.x.op == "call_function" and site.x.target is F.pad else site.x
    # Where nothing is below zero, zeros are never larger than the largest either.
    floor = isinstance(earlier, fx.Node) and nonnegative(earlier, site.builder, of_input=False)
    window = window.unpadded(*([-inf, 0.0] if floor else [-inf]))
    window = window if up else window.evened()
    make = _MAX_POOLS[len(site.shape)]
    if window.halved:
        return site.builder.module(make(window.kernel, window.stride, window.before, window.dilation, ceil_mode=up), window.x, site.name)
    if len(window.kernel) == 2:
        return site.builder.module(window.pool("max_pool", ceil_mode=up, dilation=window.dilation), window.x, site.name)
    if up:
        raise StretchError(f"its padding {list(window.before)} and {list(window.behind)} differs between sides, and it rounds up")
    return site.builder.module(make(window.kernel, window.stride, 0, window.dilation), window.padded(site.builder, -inf), site.name)


@rule("AveragePool")
def _average_pool(site: OnnxSite) -> fx.Node:
    if any(n != 1 for n in site.pair("dilations")):
        raise StretchError("its window has gaps")
    return _mean(site, site.x, counted=bool(site.attrs.get("count_include_pad", 0)), up=bool(site.attrs.get("ceil_mode", 0)))


def _mean(site: OnnxSite, x: fx.Node, *, counted: bool, up: bool) -> fx.Node:
    """The mean of each window. `counted`: whether padding counts; `up`: whether windows may overhang."""
    window = replace(Window.of(site, site.pair("kernel_shape")), x=x)
    halved = window.halved
    if not any((*window.before, *window.behind)) and not up:
        inner = window.unpadded(0.0).evened()
        window = inner if inner.halved else window
        # Without padding it does not matter, and torch's own networks count it.
        halved, counted = True, True
    make = _AVERAGE_POOLS[len(site.shape)]
    if halved:
        return site.builder.module(make(window.kernel, window.stride, window.before, up, counted), window.x, site.name)
    if len(window.kernel) == 2:
        return site.builder.module(window.pool("avg_pool", ceil_mode=up, count_include_pad=counted), window.x, site.name)
    if not counted or up:
        raise StretchError(f"its padding {list(window.before)} and {list(window.behind)} differs between sides and is left out of the mean")
    return site.builder.module(make(window.kernel, window.stride, 0, False, True), window.padded(site.builder), site.name)


@rule("LpPool")
def _norm_pool(site: OnnxSite) -> fx.Node:
    """The p-norm of each window: the mean of powers, times how many they are."""
    kernel, p = site.pair("kernel_shape"), int(site.attrs.get("p", 2))
    if p < 1 or site.attrs.get("ceil_mode", 0) or any(n != 1 for n in site.pair("dilations")):
        raise StretchError("its window has gaps or overhangs, or it is of no norm")
    power = site.builder.call(torch.abs, site.x)
    power = power if p == 1 else site.builder.call(torch.pow, power, p)
    total = site.builder.call(operator.mul, _mean(site, power, counted=True, up=False), prod(kernel))
    return total if p == 1 else site.builder.call(torch.pow, total, 1 / p)


@rule("GlobalLpPool")
def _norm_of_image(site: OnnxSite) -> fx.Node:
    p = int(site.attrs.get("p", 2))
    if p < 1 or len(site.shape) < 3:
        raise StretchError(f"it is of the norm {p}, of a tensor of shape {list(site.shape)}")
    return site.builder.call(torch.linalg.vector_norm, site.x, p, list(range(2, len(site.shape))), True)


@rule("GlobalMaxPool")
def _global_max(site: OnnxSite) -> fx.Node:
    _check_image(site)
    return site.builder.module(nn.AdaptiveMaxPool2d(1), site.x, site.name)


@rule("GlobalAveragePool")
def pooled_to_one(site: OnnxSite) -> fx.Node:
    """The mean of each channel of an image, as an image of one pixel."""
    _check_image(site)
    return site.builder.module(nn.AdaptiveAvgPool2d(1), site.x, site.name)


def _check_image(site: OnnxSite) -> None:
    if len(shape_of(site.x)) != 4:
        raise StretchError(f"it pools a tensor of shape {list(site.shape)}, which is no image")


def nonnegative(x: fx.Node, builder: Builder, *, of_input: bool) -> bool:
    """Whether no number of a tensor is below zero for sure; `given` says whether none of the network's input is."""
    waiting, seen = [x], set()
    while waiting:
        node = waiting.pop()
        if node in seen or (node.op == "placeholder" and of_input) or _positive(node):
            continue
        seen.add(node)
        if node.op == "call_module" and not isinstance(builder.behind(node), _KEEPING_MODULES):
            return False
        if node.op in ("placeholder", "get_attr", "call_method") or (node.op == "call_function" and node.target not in _KEEPING):
            return False
        waiting += node.all_input_nodes
    return True


def _positive(node: fx.Node) -> bool:
    return node.op == "call_function" and (node.target in _POSITIVE or _cut_at_zero(node.target, node.args))


def _cut_at_zero(target: Any, args: Sequence[Any]) -> bool:
    return target is torch.clamp and len(args) > 1 and isinstance(args[1], int | float) and args[1] >= 0
