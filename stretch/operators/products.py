"""Convolutions and matrices in torch, ONNX and TFLite."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.shapes import Attr, Attrs, Shape, integer, ints, same_padding
from scheduler.formats.onnx.file import WINDOW_ATTRIBUTES
from stretch.operators.capturing import (
    Step,
    TracedCall,
    calls,
    constants,
    module_chain,
    modules,
    pair,
    require_supported,
    window_padding,
)
from stretch.operators.formats.tflite import SubgraphBuilder, SubgraphSource, Value, matrix, pad, to_nhwc, window
from stretch.operators.lowerings import onnx_node, register


class PaddedConv2d(nn.Conv2d):
    """A convolution whose padding differs between sides; `pads` is (top, left, bottom, right)."""

    def __init__(self, *args: Any, pads: tuple[int, ...], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pads = pads

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        # other code that convolves with different weights, for example rounded ones, then also pads
        top, left, bottom, right = self.pads
        result: torch.Tensor = super()._conv_forward(F.pad(input, (left, right, top, bottom)), weight, bias)
        return result


def pointwise(out: int, bias: bool) -> dict[str, Attr]:
    """Return the attributes of a 1×1 convolution."""
    return {"out_channels": out, "kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1, "bias": bias}


@modules("Conv2d", "Conv2dSame", "PaddedConv2d")
def _module(m: nn.Conv2d, shape: Shape) -> list[Step]:
    require_supported(m.padding_mode == "zeros", f"padding mode `{m.padding_mode}` is not supported")
    padding = getattr(m, "pads", m.padding)
    if type(m).__name__ == "Conv2dSame":
        padding = same_padding(shape[2:], pair(m.kernel_size), pair(m.stride), pair(m.dilation))
    weights = {"weight": m.weight, "bias": m.bias}
    return module_chain(convolution, shape, **weights, stride=m.stride, padding=padding, dilation=m.dilation, groups=m.groups)


@calls(F.conv2d, torch.conv2d)
def convolution(
    call: TracedCall, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Step:
    """Lower a convolution; `padding` is torch's, or the four sides top, left, bottom, right."""
    weights = constants(weight=weight, bias=bias)
    out, _, *kernel = (int(n) for n in weights["weight"].shape)
    if padding == "same":
        padding = same_padding(call.shapes[x][2:], kernel, (1, 1), pair(dilation))
    sides = (
        tuple(padding) if isinstance(padding, tuple | list) and len(padding) == 4 else window_padding(0 if padding == "valid" else padding)
    )
    attrs: dict[str, Attr] = {
        "out_channels": out,
        "kernel": tuple(kernel),
        "stride": pair(stride),
        "padding": sides,
        "dilation": pair(dilation),
        "groups": int(groups),
        "bias": bias is not None,
    }
    return Step("conv", attrs, (x,), weights)


def _make(ins: list[Shape], a: Attrs) -> nn.Module:
    top, left, bottom, right = ints(a, "padding")
    common: dict[str, Any] = {
        "in_channels": ins[0][1],
        "out_channels": integer(a, "out_channels"),
        "kernel_size": ints(a, "kernel"),
        "stride": ints(a, "stride"),
        "dilation": ints(a, "dilation"),
        "groups": integer(a, "groups"),
        "bias": bool(a["bias"]),
    }
    if (top, left) == (bottom, right):
        return nn.Conv2d(**common, padding=(top, left))
    return PaddedConv2d(**common, pads=(top, left, bottom, right))


def _tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write a convolution: depthwise if every channel is a group, else grouped."""
    a = op.attrs
    image = source.graph.input_shapes(op)[0]
    groups, stride, dilation = integer(a, "groups"), ints(a, "stride"), ints(a, "dilation")
    sliding = window(a, image, op.shape)
    x = pad(b, op, ins[0], sliding.before, sliding.after) if sliding.explicit else ins[0]
    settings = {
        "padding": sliding.padding,
        "stride_h": stride[0],
        "stride_w": stride[1],
        "dilation_h_factor": dilation[0],
        "dilation_w_factor": dilation[1],
    }
    depthwise = groups == image[1] and groups > 1
    # OIHW to OHWI; depthwise O1HW to 1HWO, whose output channels are in the same order.
    order = (1, 2, 3, 0) if depthwise else (0, 2, 3, 1)
    inputs = matrix(b, source, op, x, order, 3 if depthwise else 0)
    if depthwise:
        multiplier = op.shape[1] // groups
        return b.write("DEPTHWISE_CONV_2D", op.name, inputs, to_nhwc(op.shape), b.scale(op), depth_multiplier=multiplier, **settings)
    version = 6 if groups > 1 else None
    return b.write("CONV_2D", op.name, inputs, to_nhwc(op.shape), b.scale(op), version=version, **settings)


register("conv", _make, onnx_node("Conv", WINDOW_ATTRIBUTES, ("weight", "bias")), _tflite, stored=("weight", "bias"), activates=True)


@calls(F.linear, classes=("Linear",), fields=("weight", "bias"), last=True)
def _linear(call: TracedCall, x: Any, weight: Any, bias: Any = None) -> Step:
    weights, rank = constants(weight=weight, bias=bias), len(call.shapes[x])
    out = int(weights["weight"].shape[0])
    if rank == 4:
        # Only tensors with channels in the last dimension have four dimensions here.
        return Step("conv", pointwise(out, bias is not None), (x,), {**weights, "weight": weights["weight"][:, :, None, None]})
    require_supported(rank == 2, f"a linear layer over {rank} dimensions is not supported")
    return Step("linear", {"out_features": out, "bias": bias is not None}, (x,), weights)


def _matrix_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write a matrix; for a flattened image its columns are put into NHWC order."""
    x = ins[0]
    if len(x.shape) != 2:
        raise StretchError(f"operator `{op.name}` (linear) reads {len(x.shape)} axes, TFLite's is written for 2", "keep this model in ONNX")
    inputs = matrix(b, source, op, x, (0, 1), 0, x.flattened)
    return b.write("FULLY_CONNECTED", op.name, inputs, op.shape, b.scale(op))


register(
    "linear",
    lambda ins, a: nn.Linear(ins[0][-1], integer(a, "out_features"), bias=bool(a["bias"])),
    onnx_node("Gemm", weights=("weight", "bias"), transB=1),
    _matrix_tflite,
    stored=("weight", "bias"),
    activates=True,
)
