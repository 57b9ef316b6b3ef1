"""Convolutions and pools of TFLite as torch's modules."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import fx, nn

from predictors.errors import StretchError
from stretch.models.builder import filled, shape_of
from stretch.models.tflite.site import TfliteSite, TfliteView, module, rule
from stretch.models.windows import convolved, max_pooled, mean_pooled

_SAME, _VALID = 0, 1


def _sides(
    site: TfliteSite, sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]]:
    """Padding before and behind each axis: SAME leaves as many windows as strides fit into the image, the odd one behind."""
    if site.setting("padding") not in (_SAME, _VALID):
        raise StretchError(f"its padding is number {site.setting('padding')}")
    sides = []
    for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        total = max(0, (-(-size // s) - 1) * s + d * (k - 1) + 1 - size) if site.setting("padding") == _SAME else 0
        sides.append((total // 2, total - total // 2))
    return sides


def _steps(site: TfliteSite, *names: str) -> list[int]:
    """Two settings that a window moves by, rows first."""
    settings = [site.setting(name) for name in names]
    if min(settings) < 1 or max(settings) > 1 << 16:
        raise StretchError(f"its {names[0].removesuffix('_h')} is {settings}")
    return settings


def _weights(site: TfliteSite, i: int) -> tuple[np.ndarray, np.ndarray | None]:
    weight, bias = site.known(i, "weight"), site.optional(i + 1 if site.code != "TRANSPOSE_CONV" else 3, "bias")
    if weight.ndim != 4 or weight.dtype != np.float32 or (bias is not None and bias.dtype != np.float32):
        raise StretchError(f"its weights have the shape {list(weight.shape)} and type {weight.dtype}")
    return weight, None if bias is None else bias.reshape(-1)


@rule("CONV_2D", "DEPTHWISE_CONV_2D")
def _convolution(site: TfliteSite) -> TfliteView:
    """Weights are out × height × width × in; those of depthwise ones 1 × height × width × out."""
    x = site.image()
    weight, bias = _weights(site, 1)
    deep = site.code == "DEPTHWISE_CONV_2D"
    weight = weight.transpose(3, 0, 1, 2) if deep else weight.transpose(0, 3, 1, 2)
    channels = shape_of(x)[1]
    if not weight.shape[1] or channels % weight.shape[1]:
        raise StretchError(f"its weight reads {weight.shape[1]} channels of {channels}")
    stride, dilation = _steps(site, "stride_h", "stride_w"), _steps(site, "dilation_h_factor", "dilation_w_factor")
    sides = _sides(site, shape_of(x)[2:], weight.shape[2:], stride, dilation)
    built = convolved(
        site.builder,
        x,
        weight,
        bias,
        stride=stride,
        dilation=dilation,
        groups=channels // weight.shape[1],
        before=[before for before, _ in sides],
        behind=[behind for _, behind in sides],
        name=site.name,
    )
    return TfliteView(site.activated(built), "image")


@rule("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(site: TfliteSite) -> TfliteView:
    """Padding is left out of means."""
    x = site.image()
    kernel, stride = _steps(site, "filter_height", "filter_width"), _steps(site, "stride_h", "stride_w")
    sides = _sides(site, shape_of(x)[2:], kernel, stride, (1, 1))
    before, behind = [before for before, _ in sides], [behind for _, behind in sides]
    if site.code == "MAX_POOL_2D":
        built = max_pooled(site.builder, x, kernel=kernel, stride=stride, dilation=(1, 1), before=before, behind=behind, name=site.name)
    elif tuple(kernel) == shape_of(x)[2:] and not any((*before, *behind)):
        built = module(site, nn.AdaptiveAvgPool2d(1), x)
    else:
        built = mean_pooled(site.builder, x, kernel=kernel, stride=stride, before=before, behind=behind, counted=False, name=site.name)
    return TfliteView(site.activated(built), "image")


@rule("TRANSPOSE_CONV")
def _transposed(site: TfliteSite) -> TfliteView:
    """Its first input is the shape that it makes; what SAME has too much of is cut off, the odd row behind."""
    wanted, x = site.numbers(0, "shape"), site.image(2)
    weight, bias = _weights(site, 1)
    weight = weight.transpose(3, 0, 1, 2)
    kernel, stride = weight.shape[2:], _steps(site, "stride_h", "stride_w")
    if len(wanted) != 4 or weight.shape[0] != shape_of(x)[1]:
        raise StretchError(f"its weight of shape {list(weight.shape)} does not make {wanted} of {list(shape_of(x))}")
    whole = [(size - 1) * s + k for size, s, k in zip(shape_of(x)[2:], stride, kernel, strict=True)]
    total = [have - want for have, want in zip(whole, wanted[1:3], strict=True)]
    before = [max(0, n) // 2 if site.setting("padding") == _SAME else 0 for n in total]
    more = [max(0, -n) for n in total]
    if any(m >= s for m, s in zip(more, stride, strict=True) if m):
        raise StretchError(f"it makes {wanted} of {list(shape_of(x))}, more than its windows reach")
    even = all(n == 2 * b - m for n, b, m in zip(total, before, more, strict=True))
    sizes = (weight.shape[0], weight.shape[1], tuple(kernel), tuple(stride))
    conv_transpose2d = nn.ConvTranspose2d(*sizes, tuple(before) if even else 0, tuple(more), bias=bias is not None, device="meta")
    result = module(site, filled(conv_transpose2d, weight=weight, bias=bias), x)
    if not even:
        result = _cut(site, result, before, wanted[1:3])
    return TfliteView(site.activated(result), "image")


def _cut(site: TfliteSite, x: fx.Node, before: Sequence[int], sizes: Sequence[int]) -> fx.Node:
    for axis, (start, size) in enumerate(zip(before, sizes, strict=True), 2):
        x = site.builder.call(torch.narrow, x, axis, start, size)
    return x
