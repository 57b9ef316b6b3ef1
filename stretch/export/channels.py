"""Branches of output channels in int8: quantised with the scales of the whole segment, so that concatenated they are its result bit for bit.

Some channels have another range than all, and one tensor has one scale. So
each file of such a branch describes its segment and its share of the weights; the
segment is rebuilt from the files of its branches and quantised, and
every branch takes the resulting scales.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.shapes import Shape
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.formats.onnx import OnnxFile
from stretch.export.onnx import to_onnx, weights_of
from stretch.planning.design.branch_design import BranchDesign, SegmentDesign, undivided
from stretch.planning.design.division import Taken
from stretch.planning.design.scale import safe_name, scaled_branches
from stretch.planning.divisions.channels import HIDDEN

#: Properties of a branch's file: the operators of its whole segment, and its share of their weights.
SEGMENT, TAKEN = "stretch.segment", "stretch.taken"

#: Reason why a branch of hidden channels stays in float.
ROUNDED = "it computes a partial sum, which int8 would round before it is added to the others"

#: Scale and zero point by tensor.
Scales = dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]


def statements(graph: OpGraph, design: BranchDesign) -> dict[str, dict[str, str]]:
    """Properties of the file of each branch of output channels, by the name of its subgraph."""
    statements_by_subgraph: dict[str, dict[str, str]] = {}
    if not any(map(_is_divided, design.segments)):
        return statements_by_subgraph
    wholes = scaled_branches(graph, undivided(design))
    for part, (whole, *_), branches in zip(design.segments, wholes, scaled_branches(graph, design), strict=True):
        if _is_divided(part):
            segment = whole.graph.to_json().decode()
            for scale, branch in zip(part.branches, branches, strict=True):
                taken = msgspec.json.encode(branch.taken).decode()
                statements_by_subgraph[f"{part.name}.{scale.processor}"] = {SEGMENT: segment, TAKEN: taken}
    return statements_by_subgraph


def is_divided(manifest: Manifest, sub: SubgraphEntry) -> bool:
    """Whether a subgraph computes some output channels of its segment."""
    part = _design(manifest, sub)
    return part is not None and _is_divided(part)


def is_partial_sum(manifest: Manifest, sub: SubgraphEntry) -> bool:
    """Whether a subgraph computes a partial sum from some hidden channels of its segment."""
    part = _design(manifest, sub)
    return part is not None and part.join == HIDDEN


def whole_of(bundle: Bundle, branch: SubgraphEntry) -> onnx.ModelProto:
    """The float model of the segment of a branch of output channels; its operators have the names of the branch's.

    Channels that no branch computes, as nothing reads them, have zero weights.
    """
    others = [sub for sub in bundle.manifest.subgraphs if sub.segment == branch.segment]
    models = {sub.name: onnx.load(bundle.file(sub.file)) for sub in others}
    segment = _stated(models[branch.name], SEGMENT, OpGraph, bundle, branch)
    segment = OpGraph.build(segment.name, segment.ops, segment.output)
    weights: dict[str, dict[str, Any]] = {}
    for sub in others:
        taken = _stated(models[sub.name], TAKEN, dict[str, Taken], bundle, sub)
        stored = weights_of(OnnxFile(bundle.file(sub.file), models[sub.name]))
        for name, part in taken.items():
            if name not in segment.by_name:
                raise StretchError(
                    f"{bundle.file(sub.file)} states the unknown operator `{name}`", "write the bundle again with `stretch branch`"
                )
            _fill(weights.setdefault(name, {}), stored.get(_prefix(sub) + name, {}), part, segment.op_weights(segment.by_name[name]))
    names = {op.name: branch.input if op.kind == "input" else _prefix(branch) + op.name for op in segment.ops}
    ops = [Op(names[op.name], op.kind, tuple(names[input_name] for input_name in op.inputs), op.attrs) for op in segment.ops]
    renamed = {names[name]: arrays for name, arrays in weights.items()}
    return to_onnx(OpGraph.build(segment.name, ops, names[segment.output]), renamed)


def scales_of(quantised: onnx.ModelProto) -> Scales:
    """Scale and zero point of each tensor and of each weight with one scale, by their names in the float model.

    Args:
        quantised: Result of `stretch.quantize.qdq.quantise`.
    """
    constants = {tensor.name: tensor for tensor in quantised.graph.initializer}
    scales: Scales = {}
    for node in quantised.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        scale, zero = (numpy_helper.to_array(constants[name]) for name in node.input[1:3])
        source = node.input[0]
        if scale.size != 1 or (node.op_type == "DequantizeLinear" and source not in constants) or zero.dtype == np.int32:
            # per-channel scales follow from the channel's weights alone, a bias's scale from its sum
            continue
        scales[source.removesuffix("_quantized").removesuffix("_QuantizeLinear_Input")] = (scale, zero)
    return scales


def in_scales(branch: onnx.ModelProto, scales: Scales) -> onnx.ModelProto:
    """A quantised branch in which the remaining input of a concatenation has the concatenation's scale, unlike in the quantiser's result."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in branch.graph.node:
        for input_name in node.input:
            readers.setdefault(input_name, []).append(node)
    for node in [node for node in branch.graph.node if node.op_type == "Slice"]:
        name = node.output[0].removesuffix("_QuantizeLinear_Input")
        if name not in scales:
            continue
        for kind, value in zip(("scale", "zero_point"), scales[name], strict=True):
            branch.graph.initializer.append(numpy_helper.from_array(np.asarray(value), f"{name}.{kind}"))
        for rounding in readers.get(node.output[0], []):
            if rounding.op_type == "QuantizeLinear":
                for rounding_node in (rounding, *readers.get(rounding.output[0], [])):
                    rounding_node.input[1], rounding_node.input[2] = f"{name}.scale", f"{name}.zero_point"
    return branch


def _is_divided(part: SegmentDesign) -> bool:
    return part.division is not None and part.division.weights == "slices" and part.join != HIDDEN


def _design(manifest: Manifest, sub: SubgraphEntry) -> SegmentDesign | None:
    """The design of a subgraph's segment; None if the bundle states no design."""
    try:
        design = msgspec.convert(manifest.design, BranchDesign)
    except msgspec.ValidationError:
        return None
    return next((part for part in design.segments if part.name == sub.segment), None)


def _prefix(sub: SubgraphEntry) -> str:
    return f"{sub.segment}_{safe_name(sub.processor)}_"


def _stated(model: onnx.ModelProto, key: str, kind: Any, bundle: Bundle, sub: SubgraphEntry) -> Any:
    """The description in a branch's file."""
    text = next((entry.value for entry in model.metadata_props if entry.key == key), "")
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise StretchError(
            f"{bundle.file(sub.file)} states nothing readable in `{key}`: {error}", "write the bundle again with `stretch branch`"
        ) from error


def _fill(whole: dict[str, Any], weights: Mapping[str, Any], part: Taken, shapes: Mapping[str, Shape]) -> None:
    """Insert a branch's rows of an operator's weights."""
    for key, value in weights.items():
        if key not in shapes:
            # the file of a norm without an affine part has ones and zeros
            continue
        if key not in whole:
            whole[key] = np.zeros((shapes[key][0], *value.shape[1:]), value.dtype)
        rows = part.rows(len(whole[key]))
        whole[key][rows.start : rows.stop] = value
