"""Matrices in torch, ONNX and TFLite."""

from typing import Any

import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.shapes import integer
from stretch.formats.onnx import OnnxWriter
from stretch.formats.tflite.builder import SubgraphBuilder, SubgraphSource, Value, matrix
from stretch.operators.capturing import Chain, Refusal, TracedCall, calls, constants
from stretch.operators.convolution import pointwise
from stretch.operators.lowerings import Lowering, lowerings


@calls(F.linear, classes=("Linear",), fields=("weight", "bias"), last=True)
def _linear(call: TracedCall, x: Any, weight: Any, bias: Any = None) -> Chain:
    weights, rank = constants(weight=weight, bias=bias), len(call.shapes[x])
    out = int(weights["weight"].shape[0])
    if rank == 4:
        # Only channels that lie last come here with four dimensions.
        return [x], "conv", pointwise(out, bias is not None), {**weights, "weight": weights["weight"][:, :, None, None]}
    if rank != 2:
        raise Refusal(f"a linear layer over {rank} dimensions is not supported")
    return [x], "linear", {"out_features": out, "bias": bias is not None}, weights


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
