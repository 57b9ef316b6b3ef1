"""Batch-norms of an ONNX model folded into the convolutions and matrices before them.

Folded before quantisation, so that the weights are rounded once, in the form
that is computed, and no scale is spent on a tensor between the two.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from predictors.shapes import Attr
from scheduler.formats.onnx import state, stated

Array = NDArray[Any]

#: A convolution of single pixels, with a bias.
_ONE_PIXEL: dict[str, Attr] = {
    **{"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)},
    "bias": True,
}


def fold_batch_norms(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model that computes the same without batch-norms.

    With y = γ·(x − μ)/√(σ² + ε) + β, a batch-norm is a factor a = γ/√(σ² + ε)
    and an offset β − a·μ a channel. They go into the weights and the bias of the
    ``Conv`` or ``Gemm`` that x comes from, if nothing else reads x. Any other
    batch-norm of images becomes a 1×1 depthwise convolution.
    """
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    graph = folded.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    rank = _ranks(folded)
    kept: list[NodeProto] = []
    for node in graph.node:
        if node.op_type != "BatchNormalization" or not all(name in weights for name in node.input[1:]):
            kept.append(node)
            continue
        factor, offset = _factor_offset(node, weights)
        before = next((other for other in kept if node.input[0] in other.output), None)
        if before is not None and _foldable(before, node.input[0], graph, weights):
            _fold(before, factor, offset, weights)
            before.output[0] = node.output[0]
            _restate(before, bias=True)
        elif rank.get(node.input[0]) == 4:
            kept.append(_depthwise(node, factor, offset, weights))
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    del graph.initializer[:]
    graph.initializer.extend(tensor for name, tensor in weights.items() if name in used)
    return folded


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model).graph
    return {value.name: len(value.type.tensor_type.shape.dim) for value in (*inferred.input, *inferred.value_info, *inferred.output)}


def _factor_offset(node: NodeProto, weights: dict[str, onnx.TensorProto]) -> tuple[Array, Array]:
    gamma, beta, mean, variance = (numpy_helper.to_array(weights[name]).astype(np.float64) for name in node.input[1:5])
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    factor = gamma / np.sqrt(variance + epsilon)
    return factor, beta - factor * mean


def _foldable(before: NodeProto, tensor: str, graph: onnx.GraphProto, weights: dict[str, onnx.TensorProto]) -> bool:
    readers = sum(name == tensor for node in graph.node for name in node.input)
    is_output = any(value.name == tensor for value in graph.output)
    attributes = {a.name: helper.get_attribute_value(a) for a in before.attribute}
    plain = before.op_type == "Conv" or (
        before.op_type == "Gemm" and attributes.get("transB") == 1 and attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0
    )
    return plain and readers == 1 and not is_output and all(name in weights for name in before.input[1:])


def _fold(before: NodeProto, factor: Array, offset: Array, weights: dict[str, onnx.TensorProto]) -> None:
    weight = numpy_helper.to_array(weights[before.input[1]]).astype(np.float64)
    bias = numpy_helper.to_array(weights[before.input[2]]).astype(np.float64) if len(before.input) > 2 else np.zeros(len(factor))
    name = before.name or before.output[0]
    scaled = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    before.input[1:] = [_add(weights, f"{name}.folded_weight", scaled), _add(weights, f"{name}.folded_bias", bias * factor + offset)]


def _depthwise(node: NodeProto, factor: Array, offset: Array, weights: dict[str, onnx.TensorProto]) -> NodeProto:
    name = node.name or node.output[0]
    reads = [
        node.input[0],
        _add(weights, f"{name}.folded_weight", factor.reshape(-1, 1, 1, 1)),
        _add(weights, f"{name}.folded_bias", offset),
    ]
    conv = helper.make_node("Conv", reads, [node.output[0]], name=node.name, kernel_shape=[1, 1], group=len(factor))
    conv.metadata_props.extend(node.metadata_props)
    state(conv, "conv", _ONE_PIXEL | {"out_channels": len(factor), "groups": len(factor)})
    return conv


def _restate(node: NodeProto, **attrs: Attr) -> None:
    """Let a node that states an operator state these attributes with it."""
    known = stated(node)
    if known is not None:
        state(node, known[0], known[1] | attrs)


def _add(weights: dict[str, onnx.TensorProto], name: str, value: Array) -> str:
    weights[name] = numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name)
    return name
