"""Convolutions and pools of ONNX as torch's modules and functions."""

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from predictors.errors import StretchError
from stretch.models.builder import filled, shape_of
from stretch.models.onnx.site import Site, rule
from stretch.models.windows import CONVOLUTIONS, convolved, max_pooled, mean_pooled

_TRANSPOSED = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}


def _sides(site: Site, kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """Padding before and behind each axis; worked out where the file leaves it to the runtime."""
    axes, auto = len(kernel), site.attrs.get("auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID"):
        pads = [int(n) for n in site.attrs.get("pads", [0] * 2 * axes)] if auto == "NOTSET" else [0] * 2 * axes
        if len(pads) != 2 * axes or min(pads) < 0:
            raise StretchError(f"its pads are {pads} for {axes} axes")
        return pads[:axes], pads[axes:]
    before, behind = [], []
    for size, k, s, d in zip(site.shape[2:], kernel, site.pair("strides"), site.pair("dilations"), strict=True):
        total = max(0, (-(-size // s) - 1) * s + d * (k - 1) + 1 - size)
        small, large = total // 2, total - total // 2
        before.append(large if auto == "SAME_LOWER" else small)
        behind.append(small if auto == "SAME_LOWER" else large)
    return before, behind


def _weighted(site: Site) -> tuple[np.ndarray, np.ndarray | None]:
    weight, bias = site.known(1, "weight"), site.optional(2, "bias")
    if weight.ndim != len(site.shape) or weight.ndim not in CONVOLUTIONS:
        raise StretchError(f"its input and weight have the shapes {list(site.shape)} and {list(weight.shape)}")
    return weight, bias


@rule("Conv")
def _conv(site: Site) -> fx.Node:
    weight, bias = _weighted(site)
    before, behind = _sides(site, weight.shape[2:])
    return convolved(
        site.builder,
        site.x,
        weight,
        bias,
        stride=site.pair("strides"),
        dilation=site.pair("dilations"),
        groups=int(site.attrs.get("group", 1)),
        before=before,
        behind=behind,
        name=site.name,
    )


@rule("ConvTranspose")
def _conv_transpose(site: Site) -> fx.Node:
    weight, bias = _weighted(site)
    if "output_shape" in site.attrs or site.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        raise StretchError("it leaves its padding to the runtime")
    before, behind = _sides(site, weight.shape[2:])
    if before != behind:
        raise StretchError("its padding differs between sides")
    groups = int(site.attrs.get("group", 1))
    module = _TRANSPOSED[weight.ndim](
        weight.shape[0],
        weight.shape[1] * groups,
        weight.shape[2:],
        site.pair("strides"),
        before,
        site.pair("output_padding", 0),
        groups,
        bias is not None,
        site.pair("dilations"),
        device="meta",
    )
    return site.builder.module(filled(module, weight=weight, bias=bias), site.x, site.name)


@rule("MaxPool")
def _max_pool(site: Site) -> fx.Node:
    if site.results > 1 or site.attrs.get("storage_order", 0):
        raise StretchError("it gives the places of the largest elements too")
    kernel = site.pair("kernel_shape")
    before, behind = _sides(site, kernel)
    return max_pooled(
        site.builder,
        site.x,
        kernel=kernel,
        stride=site.pair("strides"),
        dilation=site.pair("dilations"),
        before=before,
        behind=behind,
        up=bool(site.attrs.get("ceil_mode", 0)),
        name=site.name,
    )


@rule("AveragePool")
def _average_pool(site: Site) -> fx.Node:
    kernel = site.pair("kernel_shape")
    before, behind = _sides(site, kernel)
    if any(n != 1 for n in site.pair("dilations")):
        raise StretchError("its window has gaps")
    return mean_pooled(
        site.builder,
        site.x,
        kernel=kernel,
        stride=site.pair("strides"),
        before=before,
        behind=behind,
        counted=bool(site.attrs.get("count_include_pad", 0)),
        up=bool(site.attrs.get("ceil_mode", 0)),
        name=site.name,
    )


@rule("LpPool")
def _norm_pool(site: Site) -> fx.Node:
    """The p-norm of each window: the mean of powers, times how many they are."""
    kernel, p = site.pair("kernel_shape"), int(site.attrs.get("p", 2))
    before, behind = _sides(site, kernel)
    if p < 1 or site.attrs.get("ceil_mode", 0) or any(n != 1 for n in site.pair("dilations")):
        raise StretchError("its window has gaps or overhangs, or it is of no norm")
    power = site.builder.call(torch.abs, site.x)
    power = power if p == 1 else site.builder.call(torch.pow, power, p)
    sides: dict[str, Any] = {"stride": site.pair("strides"), "before": before, "behind": behind}
    mean = mean_pooled(site.builder, power, kernel=kernel, counted=True, name=site.name, **sides)
    total = site.builder.call(operator.mul, mean, prod(kernel))
    return total if p == 1 else site.builder.call(torch.pow, total, 1 / p)


@rule("GlobalLpPool")
def _norm_of_image(site: Site) -> fx.Node:
    p = int(site.attrs.get("p", 2))
    if p < 1 or len(site.shape) < 3:
        raise StretchError(f"it is of the norm {p}, of a tensor of shape {list(site.shape)}")
    return site.builder.call(torch.linalg.vector_norm, site.x, p, list(range(2, len(site.shape))), True)


@rule("GlobalAveragePool")
def _global_average(site: Site) -> fx.Node:
    return pooled_to_one(site)


@rule("GlobalMaxPool")
def _global_max(site: Site) -> fx.Node:
    _check_image(site)
    return site.builder.module(nn.AdaptiveMaxPool2d(1), site.x, site.name)


def pooled_to_one(site: Site) -> fx.Node:
    """The mean of each channel of an image, as an image of one pixel."""
    _check_image(site)
    return site.builder.module(nn.AdaptiveAvgPool2d(1), site.x, site.name)


def _check_image(site: Site) -> None:
    if len(shape_of(site.x)) != 4:
        raise StretchError(f"it pools a tensor of shape {list(site.shape)}, which is no image")
