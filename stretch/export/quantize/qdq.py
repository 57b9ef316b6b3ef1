"""Eight-bit ONNX: folded batch norms, ranges, and QuantizeLinear and DequantizeLinear around each operator; and conversion to fp16."""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from predictors.errors import StretchError, first_line
from predictors.shapes import Attr
from scheduler.formats.int8_edges import edges
from scheduler.formats.onnx import state_operator, stated_operator
from stretch.export.quantize.replay import Array, Loss, Sample, feed_dict, loss, session_of, with_outputs

#: An array, or one number of an array.
Numbers = Array | np.generic

#: A convolution of single pixels, with a bias.
_ONE_PIXEL: dict[str, Attr] = {
    **{"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)},
    "bias": True,
}


def fold_batch_norms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return an equivalent copy of a model without batch norms.

    With y = γ·(x − μ)/√(σ² + ε) + β, a batch norm is a factor a = γ/√(σ² + ε)
    and an offset β − a·μ per channel. They go into the weights and the bias of the
    ``Conv`` or ``Gemm`` that computes x, if nothing else reads x. Any other
    batch norm of images becomes a 1×1 depthwise convolution.
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
    convolves = before.op_type == "Conv" or (
        before.op_type == "Gemm" and attributes.get("transB") == 1 and attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0
    )
    return convolves and readers == 1 and not is_output and all(name in weights for name in before.input[1:])


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
    state_operator(conv, "conv", _ONE_PIXEL | {"out_channels": len(factor), "groups": len(factor)})
    return conv


def _restate(node: NodeProto, **attrs: Attr) -> None:
    """Add attributes to the operator that a node states, if it states one."""
    stated = stated_operator(node)
    if stated is not None:
        state_operator(node, stated[0], stated[1] | attrs)


def _add(weights: dict[str, onnx.TensorProto], name: str, value: Array) -> str:
    weights[name] = numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name)
    return name


#: Description of the quantisation for the bundle's record.
METHOD = "static, min-max; activations uint8, weights int8 per channel"

#: Marks a model for ONNX Runtime's quantiser: shapes are known and batch norms folded.
_PREPARED_TAGS = ("onnx.quant.pre_process", "onnxruntime.quant")


def quantise(
    model: onnx.ModelProto, samples: Sequence[Sample], scales: Mapping[str, tuple[Numbers, Numbers]] | None = None
) -> onnx.ModelProto:
    """Quantise a subgraph with the ranges of its tensors on samples.

    Activations become uint8, weights int8 with one scale per channel. Input and
    output stay float: the subgraph quantises its inputs and dequantises its
    outputs with separate scales, so that a join adds or concatenates
    real numbers, independent of the branches' scales.

    Args:
        samples: Its inputs for typical images: an array, or one array per input.
        scales: Known scales and zero points of tensors and weights, by name; others are determined.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    # ONNX Runtime has no type annotations
    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """The samples in the form for the quantiser."""

        def get_next(self) -> dict[str, Array] | None:
            return next(feeds, None)

    folded = _with_input_identity(fold_batch_norms(model))
    prepared = _with_shapes(folded)
    entry = prepared.metadata_props.add()
    entry.key, entry.value = _PREPARED_TAGS
    feeds, reader = (feed_dict(prepared, sample) for sample in samples), Reader()
    logged = logging.root.manager.disable
    # the quantiser warns of axes that it then ignores
    logging.disable(logging.WARNING)
    try:
        # The QNN rules also suit CPUs; they fix the scales of operators with a known range, such as sigmoid.
        config = get_qnn_qdq_config(
            prepared,
            reader,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            init_overrides=_scale_overrides(prepared, scales or {}, {"u": QuantType.QUInt8, "i": QuantType.QInt8}),
        )
        # Otherwise operators that only move numbers stay float at the start of a graph.
        config.extra_options["ForceQuantizeNoInputCheck"] = True
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "int8.onnx"
            quantize(prepared, str(file), config)
            quantised = onnx.load(file)
    # The quantiser passes on any exception of its numpy and onnx calls.
    except Exception as error:
        reason = first_line(error)
        raise StretchError(f"`{model.graph.name}` cannot be quantised: {reason}", "keep its processor in fp32") from error
    finally:
        logging.disable(logged)
    _rounded_once(quantised)
    _write_apart(quantised)
    _limit_average_scales(quantised)
    _restore_properties(quantised, folded)
    edges(quantised)
    return quantised


def _scale_overrides(
    model: onnx.ModelProto, scales: Mapping[str, tuple[Numbers, Numbers]], types: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Return the scales of the model's tensors in the form for the quantiser."""
    names = {name for node in model.graph.node for name in (*node.input, *node.output)}
    return {
        name: [{"quant_type": types[zero.dtype.kind], "scale": np.array(scale), "zero_point": np.array(zero)}]
        for name, (scale, zero) in scales.items()
        if name in names
    }


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the shape of each tensor, inferred as opset 22, because earlier opsets count pooling windows that no runtime computes."""
    newer = onnx.ModelProto()
    newer.CopyFrom(model)
    versions = [entry.version for entry in newer.opset_import]
    for entry in newer.opset_import:
        entry.version = max(entry.version, 22) if entry.domain == "" else entry.version
    inferred = onnx.shape_inference.infer_shapes(newer)
    for entry, version in zip(inferred.opset_import, versions, strict=True):
        entry.version = version
    return inferred


def _with_input_identity(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add an ``Identity`` before an activation at the start, which the quantiser would leave float; return the model."""
    graph = model.graph
    for name in [value.name for value in graph.input]:
        if not any(node.op_type in ("Relu", "Clip") and name in node.input for node in graph.node):
            continue
        for node in graph.node:
            node.input[:] = [f"{name}.entry" if input_name == name else input_name for input_name in node.input]
        entry = onnx.helper.make_node("Identity", [name], [f"{name}.entry"], name=f"{name}.entry")
        entry.metadata_props.extend(_belonging(graph.node[0]))
        state_operator(entry, "identity", {})
        graph.node.insert(0, entry)
    return model


def _rounded_once(quantised: onnx.ModelProto) -> None:
    """Round the model's input directly in the scale after the ``Identity`` of `_with_input_identity`, if an activation became this scale.

    A first rounding in the input's own scale would lose a bit. Runtimes also merge the two
    roundings if nothing is between them, so that a band of rows, which cuts rows
    there, would differ from the whole.
    """
    graph = quantised.graph
    name = graph.input[0].name
    entry = next((node for node in graph.node if node.name == f"{name}.entry"), None)
    if entry is None:
        return
    readers = [node for node in graph.node if entry.output[0] in node.input]
    if [node.op_type for node in readers] != ["QuantizeLinear"]:
        return
    made_by = {node.output[0]: node for node in graph.node}
    while entry.input[0] in made_by:
        entry = made_by[entry.input[0]]
        entry.input[1:3] = readers[0].input[1:3]
    used = {input_name for node in graph.node for input_name in node.input}
    constants = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(constants)


def _write_apart(quantised: onnx.ModelProto) -> None:
    """Dequantise an output separately for readers inside the model, because some versions of ONNX Runtime merge its readers with its producer."""
    graph = quantised.graph
    outputs = {value.name for value in graph.output}
    read = outputs & {name for node in graph.node for name in node.input}
    for node in [node for node in graph.node if node.output[0] in read]:
        internal = onnx.NodeProto()
        internal.CopyFrom(node)
        internal.name, internal.output[0] = f"{node.name}.inside", f"{node.output[0]}.inside"
        for reader in graph.node:
            reader.input[:] = [internal.output[0] if name == node.output[0] else name for name in reader.input]
        graph.node.insert(list(graph.node).index(node), internal)


#: Scale of an average's input over that of its output, at most: ONNX Runtime's QLinearGlobalAveragePool takes less than 256 times the pixels.
_MAX_AVERAGE_RATIO = 255.0


def _limit_average_scales(quantised: onnx.ModelProto) -> None:
    """Round no global average so finely that ONNX Runtime refuses its scales, such as that of a normalised image, which is about zero."""
    graph = quantised.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    made_by = {node.output[0]: node for node in graph.node}
    for node in graph.node:
        before = made_by.get(node.input[0])
        if node.op_type != "GlobalAveragePool" or before is None or before.op_type != "DequantizeLinear":
            continue
        least = numpy_helper.to_array(constants[before.input[1]]) / np.float32(_MAX_AVERAGE_RATIO)
        for after in graph.node:
            if after.op_type == "QuantizeLinear" and after.input[0] == node.output[0]:
                scale = constants[after.input[1]]
                scale.CopyFrom(numpy_helper.from_array(np.maximum(numpy_helper.to_array(scale), least), scale.name))


def _belonging(node: onnx.NodeProto) -> list[Any]:
    """Return a node's properties with its processor and subgraph."""
    return [p for p in node.metadata_props if p.key in ("stretch.processor", "stretch.subgraph")]


def _restore_properties(quantised: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Restore the properties that the quantiser loses; new nodes get the model's processor and subgraph."""
    kept = {node.name: list(node.metadata_props) for node in model.graph.node}
    everywhere = _belonging(model.graph.node[0])
    for node in quantised.graph.node:
        del node.metadata_props[:]
        node.metadata_props.extend(kept.get(node.name, everywhere))
    del quantised.metadata_props[:]
    quantised.metadata_props.extend(model.metadata_props)
    quantised.graph.name = model.graph.name
    quantised.producer_name = model.producer_name


# Conversion of a float subgraph to fp16: weights and operators in half precision, inputs and outputs in float.


#: Largest finite half-precision number.
LARGEST = 65504.0

#: Inputs that are not converted: sizes and factors, not values of the network.
KEPT_INPUTS = {"Resize": (1, 2, 3), "Pad": (1,)}


def to_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a subgraph in half precision.

    Batch norms are folded first, because their variances leave the range of fp16
    sooner than the weights that they scale. Input and output stay float32; the
    first and the last node convert them, so that joins add real numbers.
    """
    half = fold_batch_norms(model)
    graph = half.graph
    kept = {node.input[i] for node in graph.node for i in KEPT_INPUTS.get(node.op_type, ()) if i < len(node.input)}
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or tensor.name in kept:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size and float(np.abs(values).max()) > LARGEST:
            raise StretchError(f"`{tensor.name}` has values beyond {LARGEST:.0f}, which fp16 does not hold", "keep its subgraph in fp32")
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), tensor.name))
    for value in graph.value_info:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for name in [value.name for value in graph.input]:
        _convert_input(graph, name)
    for name in [value.name for value in graph.output]:
        _convert_output(graph, name)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT and node.op_type == "Constant":
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float16), attribute.t.name))
    onnx.checker.check_model(half)
    return half


def _convert_input(graph: onnx.GraphProto, name: str) -> None:
    half = f"{name}_fp16"
    for node in graph.node:
        for i, read in enumerate(node.input):
            if read == name:
                node.input[i] = half
    graph.node.insert(0, helper.make_node("Cast", [name], [half], name=f"{half}/cast", to=TensorProto.FLOAT16))


def _convert_output(graph: onnx.GraphProto, name: str) -> None:
    half = f"{name}_fp16"
    for node in graph.node:
        for names in (node.input, node.output):
            for i, used in enumerate(names):
                if used == name:
                    names[i] = half
    graph.node.append(helper.make_node("Cast", [half], [name], name=f"{name}/cast", to=TensorProto.FLOAT))


def layer_losses(model: onnx.ModelProto, lower: onnx.ModelProto, samples: Sequence[Sample]) -> dict[str, Loss]:
    """Return the loss of each tensor that both forms of a subgraph have, including the errors of earlier layers.

    Args:
        lower: Result of `quantise` or `to_half` for this subgraph.
    """
    folded = fold_batch_norms(model)
    rounded = _dequantized_names(lower) or {
        out: out for node in lower.graph.node for out in node.output
    }  # in half precision they keep their names
    names = [out for node in folded.graph.node for out in node.output if out in rounded]
    if not names:
        return {}
    expected = _values(folded, names, samples)
    lowered = _values(lower, [rounded[name] for name in names], samples)
    # if an activation is fused into the operator before it, a band's rows are cut after both
    alike = [name for name in names if expected[name][0].shape == lowered[rounded[name]][0].shape]
    return {name: loss(zip(expected[name], lowered[rounded[name]], strict=True)) for name in alike}


def _dequantized_names(int8: onnx.ModelProto) -> dict[str, str]:
    """Return, for each quantised float tensor, the name of its dequantised tensor."""
    integers = {node.output[0]: node.input[0] for node in int8.graph.node if node.op_type == "QuantizeLinear"}
    outputs = {value.name for value in int8.graph.output}
    reals = [node for node in int8.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in integers]
    # The quantiser renames tensors that it rounds to an output.
    return {node.output[0] if node.output[0] in outputs else integers[node.input[0]]: node.output[0] for node in reals}


def _values(model: onnx.ModelProto, names: Sequence[str], samples: Sequence[Sample]) -> dict[str, list[Array]]:
    session = session_of(with_outputs(model, names), optimised=False)
    values_by_name: dict[str, list[Array]] = {name: [] for name in names}
    for sample in samples:
        for name, value in zip(names, session.run(list(names), feed_dict(model, sample)), strict=True):
            values_by_name[name].append(np.asarray(value, np.float32))
    return values_by_name
