"""Matrices in torch, ONNX and TFLite."""

from typing import Any

import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.shapes import Shape, integer
from stretch.formats.onnx import OnnxWriter
from stretch.formats.tflite.builder import SubgraphBuilder, Value
from stretch.formats.tflite.source import SubgraphSource
from stretch.formats.tflite.weights import matrix
from stretch.operators.capturing import Chain, Lowered, TracedCall, constant, functions, modules
from stretch.operators.convolution import pointwise
from stretch.operators.lowerings import Lowering, lowerings
from stretch.operators.settings import Refusal


def _pointwise(m: nn.Linear, shape: Shape) -> list[Lowered]:
    """A linear layer over channels that lie last: a 1×1 convolution."""
    weights = {"weight": m.weight[:, :, None, None]} | ({"bias": m.bias} if m.bias is not None else {})
    return [("", "conv", pointwise(m.out_features, m.bias is not None), weights)]


@modules("Linear", last=_pointwise)
def _module(m: nn.Linear, shape: Shape) -> list[Lowered]:
    if len(shape) != 2:
        raise Refusal(f"a linear layer over {len(shape)} dimensions is not supported")
    weights = {"weight": m.weight} | ({"bias": m.bias} if m.bias is not None else {})
    return [("", "linear", {"out_features": m.out_features, "bias": m.bias is not None}, weights)]


@functions(F.linear, last=True)
def _function(call: TracedCall, x: Any, weight: Any, bias: Any = None) -> Chain:
    weights = {"weight": constant(weight, "weight")} | ({} if bias is None else {"bias": constant(bias, "bias")})
    if len(call.shapes[x]) == 4:
        # Only channels that lie last come here with four dimensions.
        weights["weight"] = weights["weight"][:, :, None, None]
        return [x], "conv", pointwise(call.out[1], bias is not None), weights
    if len(call.shapes[x]) != 2:
        raise Refusal(f"a linear layer over {len(call.shapes[x])} dimensions is not supported")
    return [x], "linear", {"out_features": call.out[1], "bias": bias is not None}, weights


def _onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Gemm", op, [ins[0], w.weight(op, "weight"), *([w.weight(op, "bias")] if op.attrs["bias"] else [])], transB=1)


def _tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """The columns of a matrix that reads a flattened image are put into the order NHWC."""
    x = ins[0]
    if len(x.shape) != 2:
        raise StretchError(f"operator `{op.name}` (linear) reads {len(x.shape)} axes, TFLite's is written for 2", "keep this model in ONNX")
    inputs = matrix(b, source, op, x, (0, 1), 0, x.flattened)
    return b.write("FULLY_CONNECTED", op.name, inputs, op.shape, b.scale(op))


lowerings.register("linear")(
    Lowering(
        lambda ins, a: nn.Linear(ins[0][-1], integer(a, "out_features"), bias=bool(a["bias"])),
        _onnx,
        _tflite,
        stored=("weight", "bias"),
        activates=True,
    )
)
