"""Convolutions and pools of files as torch's modules, the padding before them part of their windows."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from predictors.errors import StretchError
from stretch.models.builder import Builder, filled, shape_of
from stretch.operators.convolution import PaddedConv2d
from stretch.operators.pooling import padded_pool

CONVOLUTIONS = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_MAX_POOLS = {3: nn.MaxPool1d, 4: nn.MaxPool2d, 5: nn.MaxPool3d}
_AVERAGE_POOLS = {3: nn.AvgPool1d, 4: nn.AvgPool2d, 5: nn.AvgPool3d}

#: Functions whose results are never below zero, and those whose results are not where what they read is not.
_POSITIVE = {torch.relu, F.relu6, torch.sigmoid, F.hardsigmoid, torch.softmax, torch.abs, torch.exp}
_KEEPING = {torch.flatten, torch.reshape, torch.permute, torch.cat, F.interpolate, torch.mean, torch.amax}
_KEEPING_MODULES = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)

#: So low that nothing is lower: what stands for minus infinity where a format has none.
_LOWEST = -1e38


def padded(builder: Builder, x: fx.Node, before: Sequence[int], behind: Sequence[int], value: float = 0.0) -> fx.Node:
    """The tensor with so much of a number around its last axes."""
    flat = [side for pair in reversed(list(zip(before, behind, strict=True))) for side in pair]
    return builder.call(F.pad, x, flat, "constant", value) if any(flat) else x


def unpadded(x: fx.Node, before: Sequence[int], behind: Sequence[int], allowed: Sequence[float]) -> tuple[fx.Node, list[int], list[int]]:
    """What a padding by one of these numbers reads, and the sides of both paddings together; the tensor itself if it is none."""
    sides = [int(n) for n in before], [int(n) for n in behind]
    if x.op != "call_function" or x.target is not F.pad or x.args[2] != "constant":
        return x, *sides
    flat, value = list(x.args[1]), x.args[3]
    if value not in allowed and not (-inf in allowed and value <= _LOWEST):
        return x, *sides
    if not flat or len(flat) > 2 * len(before) or min(flat) < 0:
        return x, *sides
    flat += [0] * (2 * len(before) - len(flat))
    pairs = [flat[i : i + 2] for i in range(0, len(flat), 2)][::-1]
    earlier = x.args[0]
    assert isinstance(earlier, fx.Node)
    return (
        earlier,
        [a + b for (a, _), b in zip(pairs, sides[0], strict=True)],
        [a + b for (_, a), b in zip(pairs, sides[1], strict=True)],
    )


def _evened(
    x: fx.Node, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], before: list[int], behind: list[int]
) -> list[int]:
    """Padding behind each axis, as much as before it where no window reads what that adds: torch pads both sides alike."""
    evened = []
    for size, k, s, d, first, last in zip(shape_of(x)[2:], kernel, stride, dilation, before, behind, strict=True):
        reach = d * (k - 1) + 1
        counts = [(size + first + more - reach) // s for more in (last, first)]
        evened.append(first if last < first and counts[0] == counts[1] else last)
    return evened


def convolved(
    builder: Builder,
    x: fx.Node,
    weight: np.ndarray,
    bias: np.ndarray | None,
    *,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    before: Sequence[int],
    behind: Sequence[int],
    name: str,
) -> fx.Node:
    """A convolution; `weight` is out × in / groups × height × width."""
    if groups < 1 or weight.shape[0] % groups or weight.shape[1] * groups != shape_of(x)[1]:
        raise StretchError(f"its {groups} groups of weights of the shape {list(weight.shape)} do not fit {list(shape_of(x))}")
    inner, before, behind = unpadded(x, before, behind, [0.0])
    behind = _evened(inner, weight.shape[2:], stride, dilation, before, behind)
    even, plane = before == behind, weight.ndim == 4
    shape: tuple[Any, ...] = (weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), tuple(stride))
    more: dict[str, Any] = {"dilation": tuple(dilation), "groups": groups, "bias": bias is not None, "device": "meta"}
    if even or not plane:
        module = CONVOLUTIONS[weight.ndim](*shape, padding=tuple(before) if even else 0, **more)
        x = inner if even else padded(builder, inner, before, behind)
    else:
        module, x = PaddedConv2d(*shape, pads=(*before, *behind), **more), inner
    return builder.module(filled(module, weight=weight, bias=bias), x, name)


def max_pooled(
    builder: Builder,
    x: fx.Node,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    before: Sequence[int],
    behind: Sequence[int],
    up: bool = False,
    name: str,
) -> fx.Node:
    """The largest of each window; what is padded never is. `up`: whether windows may overhang."""
    earlier = x.args[0] if x.op == "call_function" and x.target is F.pad else x
    # Where nothing is below zero, zeros are never larger than the largest either.
    floor = isinstance(earlier, fx.Node) and nonnegative(earlier, builder, of_input=False)
    inner, before, behind = unpadded(x, before, behind, [-inf, 0.0] if floor else [-inf])
    behind = behind if up else _evened(inner, kernel, stride, dilation, before, behind)
    if _halved(before, behind, kernel):
        module = _MAX_POOLS[len(shape_of(x))](tuple(kernel), tuple(stride), tuple(before), tuple(dilation), ceil_mode=up)
        return builder.module(module, inner, name)
    if len(kernel) == 2:
        sides = {"padding": (*before, *behind), "ceil_mode": up, "dilation": tuple(dilation)}
        return builder.module(padded_pool("max_pool", {"kernel": tuple(kernel), "stride": tuple(stride), **sides}), inner, name)
    if up:
        raise StretchError(f"its padding {before} and {behind} differs between sides, and it rounds up")
    module = _MAX_POOLS[len(shape_of(x))](tuple(kernel), tuple(stride), 0, tuple(dilation))
    return builder.module(module, padded(builder, inner, before, behind, -inf), name)


def mean_pooled(
    builder: Builder,
    x: fx.Node,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    before: Sequence[int],
    behind: Sequence[int],
    counted: bool,
    up: bool = False,
    name: str,
) -> fx.Node:
    """The mean of each window. `counted`: whether padding counts; `up`: whether windows may overhang."""
    halved, none = _halved(before, behind, kernel), not any((*before, *behind))
    if none and not up:
        inner, before, behind = unpadded(x, before, behind, [0.0])
        behind = _evened(inner, kernel, stride, [1] * len(kernel), before, behind)
        x = inner if _halved(before, behind, kernel) else x
        before, behind = (before, behind) if x is inner else ([0] * len(kernel), [0] * len(kernel))
        # Without padding it does not matter, and torch's own networks count it.
        halved, counted = True, True
    if halved:
        module = _AVERAGE_POOLS[len(shape_of(x))](tuple(kernel), tuple(stride), tuple(before), up, counted)
        return builder.module(module, x, name)
    if len(kernel) == 2:
        sides = {"padding": (*before, *behind), "ceil_mode": up, "count_include_pad": counted}
        return builder.module(padded_pool("avg_pool", {"kernel": tuple(kernel), "stride": tuple(stride), **sides}), x, name)
    if not counted or up:
        raise StretchError(f"its padding {list(before)} and {list(behind)} differs between sides and is left out of the mean")
    module = _AVERAGE_POOLS[len(shape_of(x))](tuple(kernel), tuple(stride), 0, False, True)
    return builder.module(module, padded(builder, x, before, behind), name)


def _halved(before: Sequence[int], behind: Sequence[int], kernel: Sequence[int]) -> bool:
    """Whether torch's pools take this padding: equal on both sides, and at most half a window."""
    return list(before) == list(behind) and all(pad <= k // 2 for pad, k in zip(before, kernel, strict=True))


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
