"""Export of an operator graph and its weights to ONNX, node by node."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from predictors.errors import StretchError
from predictors.graph import SHARED, OpGraph
from predictors.operators import kind_of
from predictors.operators.opaque import CONSTANT
from scheduler.formats.onnx import OnnxFile, state_operator
from scheduler.formats.onnx.file import SHARING
from stretch.operators.formats.onnx import OPSET, Arrays, OnnxWriter
from stretch.operators.lowerings import lowerings
from stretch.operators.opaque.calls import calls_of
from stretch.operators.opaque.snippets import prepare
from stretch.planning.divisions.rows import PADDING_TAG

IR_VERSION = 10

#: Node attributes for a scheduler (paper 003, section 3: meeting point and processor).
NODE_TAGS = {"stretch.meeting_point": "meeting_point", "stretch.processor": "processor", "stretch.subgraph": "subgraph"}

#: Node attribute of a band: padding (top, left, bottom, right) of the operator in the whole segment, if it differs.
WHOLE_PADDING = "stretch.whole_padding"

#: Property of the files of the whole network and the original: operators without a node, which are identities, with the source tensor of each.
NODELESS_PROPERTY = "stretch.passed_on"

#: Kinds whose nodes also read constants other than stored weights; names identify their weights.
_NAMED = frozenset({"opaque", "attention", "group_norm"})

#: Minimum size of weights outside of ONNX files, bytes; readers need small ones, such as sizes and bounds, inside.
EXTERNAL_FROM = 1024

#: Alignment of weights, bytes, because runtimes map the file into memory.
ALIGNMENT = 64


def to_onnx(graph: OpGraph, weights: Arrays, properties: Mapping[str, str] | None = None) -> onnx.ModelProto:
    """Lower a graph to ONNX.

    Operators that are identities at inference leave no node, unless one is an
    output. Each node carries the tags of its operator as `metadata_props`
    (`NODE_TAGS`), and the last node of each operator its kind and attributes
    (`scheduler.formats.onnx.file`), written last because few tools keep them.

    Args:
        weights: Float32 arrays by operator name and key.
        properties: Model-level `metadata_props`.

    Returns:
        The model; its inputs and outputs are named after the graph's operators.
    """
    writer = OnnxWriter(weights)
    prepare((calls_of(op.attrs), op.shape) for op in graph.ops if op.kind == "opaque")
    name_of: dict[str, str] = {}
    for op in graph.ops:
        if op.kind == "input":
            name_of[op.name] = op.name
            continue
        ins = [name_of[i] for i in op.inputs]
        before = len(writer.nodes)
        if kind_of(op.kind).identity:
            if op.name not in graph.outputs:
                name_of[op.name] = ins[0]
                continue
            writer.node("Identity", op, ins)
        else:
            rule = lowerings.get(op.kind).onnx
            if rule is None:
                raise StretchError(f"operator `{op.name}` ({op.kind}) has no ONNX lowering")
            rule(writer, op, ins)
        name_of[op.name] = op.name
        state_operator(writer.nodes[-1], op.kind, op.attrs, tuple(ins) if op.kind == "opaque" and len(ins) > 1 else ())
        for node in writer.nodes[before:]:
            for prop, tag in (*NODE_TAGS.items(), (WHOLE_PADDING, PADDING_TAG), (SHARING, SHARED)):
                if op.tags.get(tag):
                    entry = node.metadata_props.add()
                    entry.key, entry.value = prop, op.tags[tag]
    _keep_pads(writer)
    proto = helper.make_graph(
        writer.nodes,
        graph.name,
        [helper.make_tensor_value_info(op.name, TensorProto.FLOAT, op.shape) for op in graph.inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, graph.by_name[name].shape) for name in graph.outputs],
        initializer=writer.initialisers,
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="nn-stretch", ir_version=IR_VERSION)
    _share(model, graph)
    helper.set_model_props(model, dict(properties or {}))
    return model


def _keep_pads(writer: OnnxWriter) -> None:
    """State the axes of pads before max pooling: ONNX Runtime fuses other pads into the pooling, where zeros never win."""
    sizes = {tensor.name: tensor.dims[0] for tensor in writer.initialisers if tensor.dims}
    pooled = {node.input[0] for node in writer.nodes if node.op_type == "MaxPool"}
    for node in writer.nodes:
        if node.op_type == "Pad" and node.output[0] in pooled and len(node.input) < 4 and node.input[1] in sizes:
            axes = writer.constant(f"{node.output[0]}.axes", np.arange(sizes[node.input[1]] // 2))
            node.input.extend([*[""] * (3 - len(node.input)), axes])


def _share(model: onnx.ModelProto, graph: OpGraph) -> None:
    """Let operators that share weights read the same initialisers."""
    first: dict[tuple[str, str, bytes], str] = {}
    instead: dict[str, str] = {}
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for op in graph.ops:
        for word in op.tags.get(SHARED, "").split():
            key = word.partition("=")[0]
            tensor = stored.get(f"{op.name}.{key}")
            if tensor is not None:
                # different parts of a shared weight stay separate
                same = first.setdefault((word, str(tensor.dims), tensor.raw_data), tensor.name)
                instead[tensor.name] = same
    if any(name != same for name, same in instead.items()):
        for node in model.graph.node:
            node.input[:] = [instead.get(name, name) for name in node.input]
        initializers = [tensor for tensor in model.graph.initializer if instead.get(tensor.name, tensor.name) == tensor.name]
        del model.graph.initializer[:]
        model.graph.initializer.extend(initializers)


def save_onnx(model: onnx.ModelProto, path: Path) -> None:
    """Write a model with its weights inside."""
    path.write_bytes(model.SerializeToString())


class WeightFile:
    """A file with the large weights of all ONNX files of a folder, each stored once.

    Args:
        path: Path of the file, next to the ONNX files; the first weight creates it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[bytes, int] = {}
        self._size = 0

    def save(self, model: onnx.ModelProto, path: Path) -> None:
        """Write a model whose large weights are in this file."""
        for tensor in model.graph.initializer:
            data = tensor.raw_data
            if len(data) >= EXTERNAL_FROM:
                external_data_helper.set_external_data(tensor, self.path.name, self._offset(data), len(data))
                tensor.ClearField("raw_data")
        save_onnx(model, path)

    def _offset(self, data: bytes) -> int:
        """Return the offset of a weight in the file, bytes; append new weights."""
        digest = hashlib.sha256(data).digest()
        if digest not in self._offsets:
            with self.path.open("ab") as file:
                file.write(bytes(-self._size % ALIGNMENT) + data)
            self._offsets[digest] = -(-self._size // ALIGNMENT) * ALIGNMENT
            self._size = self._offsets[digest] + len(data)
        return self._offsets[digest]


def to_numpy(weights: Mapping[str, Mapping[str, Any]]) -> Arrays:
    """Return torch tensors as NumPy arrays, with shared memory if possible; floating-point tensors become float32."""
    return {name: {key: _array(tensor.detach().cpu()) for key, tensor in tensors.items()} for name, tensors in weights.items()}


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return array


def nodeless_properties(graph: OpGraph) -> dict[str, str]:
    """Return the file property with the operators without a node (`NODELESS_PROPERTY`); empty without any."""
    sources: dict[str, str] = {}
    for op in graph.ops:
        if op.kind != "input" and kind_of(op.kind).identity and op.name not in graph.outputs:
            sources[op.name] = sources.get(op.inputs[0], op.inputs[0])
    return {NODELESS_PROPERTY: msgspec.json.encode(sources).decode()} if sources else {}


def read_property(
    model: onnx.ModelProto, key: str, kind: Any, path: Path, *, missing: str = "", content: str = "nothing readable", verb: str = "branch"
) -> Any:
    """Read a property of a file as a type (`missing`: the text for a missing property; `content`, `verb`: words of the error)."""
    text = next((entry.value for entry in model.metadata_props if entry.key == key), missing)
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise StretchError(f"{path} states {content} in `{key}`: {error}", f"write the bundle again with `stretch {verb}`") from error


def weights_of(file: OnnxFile) -> dict[str, dict[str, Any]]:
    """Return the weights of a file that `to_onnx` wrote, as arrays by operator and key."""
    constants = file.initialisers
    weights: dict[str, dict[str, Any]] = {}
    for part in file.operators:
        stored = lowerings.get(part.op.kind).stored
        keys: Iterable[tuple[str, str]] = zip(stored, part.weights, strict=False)
        if part.op.kind in _NAMED:
            # nodes also have constants other than weights
            keys_and_names = [(name.rpartition(".")[2], name) for name in part.weights]
            keys = [(key, name) for key, name in keys_and_names if key in stored or key.startswith(CONSTANT)]
        arrays = {key: numpy_helper.to_array(constants[name]) for key, name in keys}
        if arrays:
            weights[part.op.name] = arrays
    return weights
