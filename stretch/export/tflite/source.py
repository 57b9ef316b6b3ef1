"""Contents of a subgraph's ONNX file for conversion to another format: operators, weights, scales."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from predictors.errors import StretchError
from scheduler.formats.onnx import OnnxFile, is_quantiser
from scheduler.formats.tflite import MIN_SCALE
from stretch.export.onnx import weights_of
from stretch.export.quantize.qdq import fold_batch_norms
from stretch.operators.formats.tflite import Quant, RoundedWeights, SubgraphSource

Array = NDArray[Any]


def read_source(path: Path) -> SubgraphSource:
    """Read a subgraph that `stretch` wrote, in any precision."""
    try:
        model = onnx.load(str(path))
    except OSError as error:
        raise StretchError(f"cannot read {path}: {error.strerror}") from error
    # Versions of protobuf raise different errors for a damaged file.
    except Exception as error:
        raise StretchError(f"{path} is not an ONNX model", "write the bundle again with `stretch branch`") from error
    if not any(is_quantiser(node) for node in model.graph.node):
        folded = fold_batch_norms(model)
        file = OnnxFile(path, folded)
        return SubgraphSource(file.graph, weights_of(file))
    real, scales, integers = _reals(model, path)
    file = OnnxFile(path, real)
    rounded = {
        node.output[0]: integers[node.input[1]]
        for node in real.graph.node
        if node.op_type in ("Conv", "Gemm") and node.input[1] in integers
    }
    return SubgraphSource(file.graph, weights_of(file), scales, rounded)


def _reals(model: onnx.ModelProto, path: Path) -> tuple[onnx.ModelProto, dict[str, Quant], dict[str, RoundedWeights]]:
    """Dequantise an int8 or fp16 subgraph; returns the float model, its scales and its integer weights."""
    reals = onnx.ModelProto()
    reals.CopyFrom(model)
    graph = reals.graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    scales: dict[str, Quant] = {}
    integers: dict[str, RoundedWeights] = {}
    constants = {name: value.astype(np.float32) if value.dtype == np.float16 else value for name, value in constants.items()}
    names: dict[str, str] = {}  # source of each quantised or cast tensor
    remaining = []
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            source = names.get(node.input[0], node.input[0])
            scales[source] = _quant(node, constants, path)
            names[node.output[0]] = source
        elif node.op_type == "DequantizeLinear" and node.input[0] in constants:
            real, rounded = _dequantize_constant(node, constants)
            constants[node.output[0]] = real
            if rounded is not None:
                integers[node.output[0]] = rounded
        elif is_quantiser(node):
            names[node.output[0]] = names.get(node.input[0], node.input[0])
        else:
            remaining.append(node)
    # An output tensor has another name before its conversion; it takes the output's name.
    results = {names.get(value.name, value.name): value.name for value in graph.output}
    for node in remaining:
        node.input[:] = [results.get(names.get(name, name), names.get(name, name)) for name in node.input]
        node.output[:] = [results.get(name, name) for name in node.output]
    scales = {results.get(name, name): quant for name, quant in scales.items()}
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in remaining]
    used = {name for node in nodes for name in node.input}
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.initializer[:]
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name in used)
    return reals, scales, integers


def _quant(node: onnx.NodeProto, constants: Mapping[str, Array], path: Path) -> Quant:
    """The scale of an activation, its zero point moved from uint8 to int8."""
    try:
        scale, zero = constants[node.input[1]], constants[node.input[2]]
        number, point = float(scale.item()), int(zero.item())
    except (KeyError, IndexError, ValueError) as error:
        raise StretchError(
            f"`{node.name}` of {path} has no single scale and zero point", "write the bundle again with `stretch export`"
        ) from error
    if zero.dtype not in (np.uint8, np.int8):
        raise StretchError(
            f"`{node.name}` of {path} rounds to {zero.dtype}, a TFLite file has int8", "write the bundle again with `stretch export`"
        )
    # A tensor that is almost zero everywhere may become zero.
    return Quant(max(number, MIN_SCALE), point - 128 if zero.dtype == np.uint8 else point)


def _dequantize_constant(node: onnx.NodeProto, constants: Mapping[str, Array]) -> tuple[Array, RoundedWeights | None]:
    """A constant as float, and as integers if it is symmetric int8 with output channels first."""
    values, scale = constants[node.input[0]], constants[node.input[1]]
    zero = constants[node.input[2]] if len(node.input) > 2 else np.zeros_like(scale, values.dtype)
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    shape = [1] * values.ndim
    if scale.size > 1:
        shape[axis] = -1
    real = (values.astype(np.float64) - zero.astype(np.float64).reshape(shape)) * scale.astype(np.float64).reshape(shape)
    symmetric = values.dtype == np.int8 and not zero.any() and (scale.size == 1 or axis == 0)
    return real.astype(np.float32), RoundedWeights(values, scale.reshape(-1)) if symmetric and values.ndim > 1 else None
