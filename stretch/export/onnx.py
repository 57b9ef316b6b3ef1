"""An operator graph and its weights to ONNX, node by node."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from scheduler.formats.onnx import OnnxFile, state
from stretch.formats.onnx import Arrays, OnnxWriter
from stretch.operators.forms import forms
from stretch.planning.design.bands import PADDING_TAG

#: HardSwish needs 14, Gelu 20; what newer ones add we do not use.
OPSET = 20
IR_VERSION = 10

#: Node attributes a scheduler reads (paper 003, section 3: meeting point and processor).
NODE_TAGS = {"stretch.meeting_point": "meeting_point", "stretch.processor": "processor", "stretch.subgraph": "subgraph"}

#: Node attribute of a band: padding (top, left, bottom, right) of the operator in the whole segment, where it is another.
WHOLE_PADDING = "stretch.whole_padding"

#: Serialised ONNX cannot exceed 2 GB; above this the weights go to a file of their own.
EXTERNAL_ABOVE = 1 << 30


def to_onnx(graph: OpGraph, weights: Arrays, properties: Mapping[str, str] | None = None) -> onnx.ModelProto:
    """Lower a graph to ONNX.

    Operators that are identities at inference leave no node, unless one is an
    output. Each node carries the tags of its operator as `metadata_props`
    (`NODE_TAGS`), and the last node of each operator its kind and attributes
    (`scheduler.formats.onnx.operators`), written last since few tools keep them.

    Args:
        graph: The operators.
        weights: Float32 arrays by operator name and key.
        properties: Model-level `metadata_props`.

    Returns:
        The model; its inputs are called like the graph's input operators and its
        outputs like the output operators.
    """
    writer = OnnxWriter(weights)
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
            _write(writer, op, ins)
        name_of[op.name] = op.name
        state(writer.nodes[-1], op.kind, op.attrs)
        for node in writer.nodes[before:]:
            for prop, tag in (*NODE_TAGS.items(), (WHOLE_PADDING, PADDING_TAG)):
                if tag in op.tags:
                    entry = node.metadata_props.add()
                    entry.key, entry.value = prop, op.tags[tag]
    proto = helper.make_graph(
        writer.nodes,
        graph.name,
        [helper.make_tensor_value_info(op.name, TensorProto.FLOAT, op.shape) for op in graph.inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, graph.by_name[name].shape) for name in graph.outputs],
        initializer=writer.initialisers,
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="nn-stretch", ir_version=IR_VERSION)
    helper.set_model_props(model, dict(properties or {}))
    return model


def _write(writer: OnnxWriter, op: Op, ins: list[str]) -> None:
    rule = forms.get(op.kind).onnx
    if rule is None:
        raise StretchError(f"operator `{op.name}` ({op.kind}) has no form in ONNX")
    rule(writer, op, ins)


def save_onnx(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Write a model; its weights go to ``<name>.data`` beside it when they are above 1 GB.

    Returns:
        The files written.
    """
    size = sum(len(t.raw_data) for t in model.graph.initializer)
    if size <= EXTERNAL_ABOVE:
        path.write_bytes(model.SerializeToString())
        return [path]
    data = path.with_name(path.name + ".data")
    onnx.save_model(model, str(path), save_as_external_data=True, all_tensors_to_one_file=True, location=data.name, size_threshold=1024)
    return [path, data]


def to_numpy(weights: Mapping[str, Mapping[str, Any]]) -> Arrays:
    """Torch tensors as float32 arrays that share their memory where they can."""
    return {name: {key: tensor.detach().cpu().float().numpy() for key, tensor in own.items()} for name, own in weights.items()}


def weights_of(file: OnnxFile) -> dict[str, dict[str, Any]]:
    """Weights of a file that `to_onnx` wrote, as arrays by operator and key."""
    constants = file.initialisers
    found: dict[str, dict[str, Any]] = {}
    for part in file.operators:
        keys = forms.get(part.op.kind).stored
        own = {key: numpy_helper.to_array(constants[name]) for key, name in zip(keys, part.weights, strict=False)}
        if own:
            found[part.op.name] = own
    return found
