"""One float subgraph to int8: quantise and dequantise nodes around every operator (QDQ), float at the edges."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from predictors.errors import StretchError, first_line
from scheduler.formats.int8_edges import edges
from scheduler.formats.onnx import state
from stretch.quantize.fold import fold_batch_norms
from stretch.quantize.replay import Sample, fed

Array = NDArray[Any]

#: How subgraphs are quantised, for the bundle's record.
METHOD = "static, min-max; activations uint8, weights int8 per channel"

#: Tells ONNX Runtime's quantiser that shapes are known and batch-norms folded.
_PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")


class _Samples:
    """Calibration inputs, as ONNX Runtime's quantiser reads them."""

    def __init__(self, model: onnx.ModelProto, samples: Sequence[Sample]) -> None:
        self._model = model
        self._left: Iterator[Sample] = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        sample = next(self._left, None)
        return None if sample is None else fed(self._model, sample)


def quantise(model: onnx.ModelProto, samples: Sequence[Sample], scales: Mapping[str, tuple[Array, Array]] | None = None) -> onnx.ModelProto:
    """Quantise a subgraph with the ranges that its tensors take on samples.

    Activations become uint8, weights int8 with a scale a channel. Input and
    output stay float: the subgraph quantises what it reads and dequantises what
    it writes with scales of its own, so that a join adds or lays side by side
    real numbers, whatever the scales of its branches.

    Args:
        samples: What it reads for typical images: an array, or one for each input.
        scales: Scale and zero point of tensors and weights that are known already, by name; others are found.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    class Reader(_Samples, CalibrationDataReader):  # type: ignore[misc]
        """The samples as the class that the quantiser asks for."""

    folded = _entered(fold_batch_norms(model))
    prepared = _with_shapes(folded)
    entry = prepared.metadata_props.add()
    entry.key, entry.value = _PREPARED
    reader = Reader(prepared, samples)
    try:
        # The QNN rules also suit CPUs; they fix the scales of operators whose range is known, such as a sigmoid's.
        config = get_qnn_qdq_config(
            prepared,
            reader,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            init_overrides=_known(prepared, scales or {}, {"u": QuantType.QUInt8, "i": QuantType.QInt8}),
        )
        # Otherwise operators that only move numbers stay float where they come first.
        config.extra_options["ForceQuantizeNoInputCheck"] = True
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "int8.onnx"
            quantize(prepared, str(file), config)
            quantised = onnx.load(file)
    # The quantiser raises whatever its numpy and onnx calls raise.
    except Exception as error:
        reason = first_line(error)
        raise StretchError(f"`{model.graph.name}` cannot be quantised: {reason}", "keep its processor in fp32") from error
    _rounded_once(quantised)
    _restore_properties(quantised, folded)
    edges(quantised)
    return quantised


def _known(model: onnx.ModelProto, scales: Mapping[str, tuple[Array, Array]], types: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Scales as the quantiser asks for them, of the tensors that the model has."""
    there = {name for node in model.graph.node for name in (*node.input, *node.output)}
    return {
        name: [{"quant_type": types[zero.dtype.kind], "scale": np.array(scale), "zero_point": np.array(zero)}]
        for name, (scale, zero) in scales.items()
        if name in there
    }


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the shape of each tensor: before opset 22 ONNX's inference counts pooling windows that no runtime computes."""
    newer = onnx.ModelProto()
    newer.CopyFrom(model)
    versions = [entry.version for entry in newer.opset_import]
    for entry in newer.opset_import:
        entry.version = max(entry.version, 22) if entry.domain == "" else entry.version
    inferred = onnx.shape_inference.infer_shapes(newer)
    for entry, version in zip(inferred.opset_import, versions, strict=True):
        entry.version = version
    return inferred


def _entered(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an ``Identity`` before an activation that comes first, which the quantiser would leave float."""
    graph = model.graph
    for name in [value.name for value in graph.input]:
        if not any(node.op_type in ("Relu", "Clip") and name in node.input for node in graph.node):
            continue
        for node in graph.node:
            node.input[:] = [f"{name}.entry" if input_name == name else input_name for input_name in node.input]
        entry = onnx.helper.make_node("Identity", [name], [f"{name}.entry"], name=f"{name}.entry")
        entry.metadata_props.extend(_belonging(graph.node[0]))
        state(entry, "identity", {})
        graph.node.insert(0, entry)
    return model


def _rounded_once(quantised: onnx.ModelProto) -> None:
    """Let the model round what it reads in the scale behind the ``Identity`` of `_entered`, where an activation became that scale.

    Rounded in the input's own scale first, it would lose a bit; and runtimes merge the two
    roundings where nothing stands between them, so that a band of rows, which cuts rows
    out there, would differ from the whole.
    """
    graph = quantised.graph
    name = graph.input[0].name
    entry = next((node for node in graph.node if node.name == f"{name}.entry"), None)
    if entry is None:
        return
    behind = [node for node in graph.node if entry.output[0] in node.input]
    if [node.op_type for node in behind] != ["QuantizeLinear"]:
        return
    made_by = {node.output[0]: node for node in graph.node}
    while entry.input[0] in made_by:
        entry = made_by[entry.input[0]]
        entry.input[1:3] = behind[0].input[1:3]
    used = {input_name for node in graph.node for input_name in node.input}
    constants = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(constants)


def _belonging(node: onnx.NodeProto) -> list[Any]:
    """What a node states about its processor and subgraph."""
    return [p for p in node.metadata_props if p.key in ("stretch.processor", "stretch.subgraph")]


def _restore_properties(quantised: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Put the attributes back that the quantiser loses; its new nodes belong where their model does."""
    kept = {node.name: list(node.metadata_props) for node in model.graph.node}
    everywhere = _belonging(model.graph.node[0])
    for node in quantised.graph.node:
        del node.metadata_props[:]
        node.metadata_props.extend(kept.get(node.name, everywhere))
    del quantised.metadata_props[:]
    quantised.metadata_props.extend(model.metadata_props)
    quantised.graph.name = model.graph.name
    quantised.producer_name = model.producer_name
