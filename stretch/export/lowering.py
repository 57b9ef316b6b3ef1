"""Lower a bundle's subgraphs to int8 or fp16: calibrate on images, quantise or round, compare with fp32."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.shapes import Shape
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.bundle.rows import cut
from scheduler.formats.int8_edges import Quant, edges
from scheduler.formats.onnx import OnnxFile
from scheduler.progress import Progress
from stretch.export.onnx import NODE_TAGS, WHOLE_PADDING, read_property, to_onnx, weights_of
from stretch.export.quantize.qdq import Numbers, layer_losses, quantise, to_half
from stretch.export.quantize.replay import Array, Loss, Run, as_tuple, loss, replay, runner
from stretch.planning.design.branch_design import BranchDesign, SegmentDesign, Taken, safe_name, undivided
from stretch.planning.design.scale import scaled_branches
from stretch.planning.divisions.channels import HIDDEN
from stretch.planning.divisions.rows import ENTRY_ROWS


def subgraph_names(graph: OpGraph) -> list[str]:
    """Return the names of a branched graph's subgraphs in topological order, without joins."""
    return list(dict.fromkeys(op.tags["subgraph"] for op in graph.ops if "origin" in op.tags))


def subgraph_of(graph: OpGraph, name: str) -> OpGraph:
    """Extract one subgraph; tensors keep their names, and an input of a band only has the rows that it reads."""
    cut = entry_rows(graph, name)
    ops = [op for op in graph.ops if op.tags.get("subgraph") == name and op is not cut]
    names = {op.name for op in ops}
    outputs = [op.name for op in ops if op.name in graph.outputs or any(r not in names for r in graph.consumers[op.name])]
    if cut:
        source = cut.inputs[0]
        entries = [Op(source, "input", attrs={"shape": cut.shape})]
        ops = [replace(op, inputs=tuple(source if i == cut.name else i for i in op.inputs)) for op in ops]
    else:
        reads = dict.fromkeys(i for op in ops for i in op.inputs if i not in names)
        entries = [Op(source, "input", attrs={"shape": graph.by_name[source].shape}) for source in reads]
    return OpGraph.build(f"{graph.name}.{name}", [*entries, *ops], outputs)


def entry_rows(graph: OpGraph, name: str) -> Op | None:
    """Return the operator of a subgraph that slices the needed rows from its input; None if it reads all rows."""
    return next((op for op in graph.ops if op.tags.get("subgraph") == name and op.tags["origin"] == ENTRY_ROWS), None)


#: Properties of a branch's file: the operators of its whole segment, and its share of their weights.
SEGMENT, TAKEN = "stretch.segment", "stretch.taken"

#: Reason why a branch of hidden channels stays in float.
PARTIAL_SUM_REASON = "it computes a partial sum, which int8 would round before it is added to the others"

#: Scale and zero point by tensor.
Scales = dict[str, tuple[Numbers, Numbers]]


def statements(graph: OpGraph, design: BranchDesign) -> dict[str, dict[str, str]]:
    """Return the file properties of each branch of output channels, by subgraph."""
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
    """Return whether a subgraph computes some output channels of its segment."""
    part = _design(manifest, sub)
    return part is not None and _is_divided(part)


def is_partial_sum(manifest: Manifest, sub: SubgraphEntry) -> bool:
    """Return whether a subgraph computes a partial sum from some hidden channels of its segment."""
    part = _design(manifest, sub)
    return part is not None and part.join == HIDDEN


def segment_of_part(bundle: Bundle, branch: SubgraphEntry) -> onnx.ModelProto:
    """Return the float model of the segment of a branch of output channels, with the branch's operator names.

    Channels that no branch computes, because nothing reads them, have zero weights.
    """
    siblings = [sub for sub in bundle.manifest.subgraphs if sub.segment == branch.segment]
    models = {sub.name: onnx.load(bundle.file(sub.file)) for sub in siblings}
    segment = read_property(models[branch.name], SEGMENT, OpGraph, bundle.file(branch.file))
    segment = OpGraph.build(segment.name, segment.ops, segment.output)
    weights: dict[str, dict[str, Any]] = {}
    for sub in siblings:
        taken_by_operator = read_property(models[sub.name], TAKEN, dict[str, Taken], bundle.file(sub.file))
        stored = weights_of(OnnxFile(bundle.file(sub.file), models[sub.name]))
        for name, part in taken_by_operator.items():
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
    """Return the scale and zero point of each tensor and of each weight with one scale, by their names in the float model.

    Args:
        quantised: Result of `stretch.export.quantize.qdq.quantise`.
    """
    constants = {tensor.name: tensor for tensor in quantised.graph.initializer}
    scales: Scales = {}
    for node in quantised.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        scale, zero = (numpy_helper.to_array(constants[name]) for name in node.input[1:3])
        source = node.input[0]
        if scale.size != 1 or (node.op_type == "DequantizeLinear" and source not in constants) or zero.dtype == np.int32:
            # per-channel scales follow from the channel's weights, and a bias's scale from its sum
            continue
        scales[source.removesuffix("_quantized").removesuffix("_QuantizeLinear_Input")] = (scale, zero)
    return scales


def in_scales(branch: onnx.ModelProto, scales: Scales) -> onnx.ModelProto:
    """Give the remaining input of a concatenation the concatenation's scale, which the quantiser does not do; return the branch."""
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
    """Return the design of a subgraph's segment; None if the bundle states no design."""
    try:
        design = msgspec.convert(manifest.design, BranchDesign)
    except msgspec.ValidationError:
        return None
    return next((part for part in design.segments if part.name == sub.segment), None)


def _prefix(sub: SubgraphEntry) -> str:
    return f"{sub.segment}_{safe_name(sub.processor)}_"


def _fill(whole: dict[str, Any], weights: Mapping[str, Any], part: Taken, shapes: Mapping[str, Shape]) -> None:
    """Insert a branch's rows of an operator's weights."""
    for key, value in weights.items():
        if key not in shapes:
            # a norm without an affine part has ones and zeros in its file
            continue
        if key not in whole:
            whole[key] = np.zeros((shapes[key][0], *value.shape[1:]), value.dtype)
        rows = part.rows(len(whole[key]))
        whole[key][rows.start : rows.stop] = value


# Bands of rows in int8: quantised like the whole segment, so that together they compute its result bit for bit.
#
# The tensors of a band have other ranges than the tensors of the whole image. So the whole segment is
# rebuilt from a band's file, which has all operators and weights. It is
# quantised on whole images, and every band uses its scales.

_CUT = "slice_rows"


def segment_of_band(band: onnx.ModelProto, shape: Shape, where: Path) -> onnx.ModelProto:
    """Return the float model of a band's whole segment."""
    file = OnnxFile(where, band)
    source = file.graph.input.name
    ops, names = [Op(source, "input", attrs={"shape": shape})], {source: source}
    for part in file.operators:
        op = part.op
        inputs = tuple(names[name] for name in op.inputs)
        if op.kind == _CUT:
            names[op.name] = inputs[0]
            continue
        names[op.name] = op.name
        node_properties = {entry.key: entry.value for node in part.nodes for entry in node.metadata_props}
        padding = {"padding": _numbers(node_properties[WHOLE_PADDING], where)} if WHOLE_PADDING in node_properties else {}
        tags = {tag: node_properties[prop] for prop, tag in NODE_TAGS.items() if prop in node_properties}
        ops.append(Op(op.name, op.kind, inputs, {**op.attrs, **padding}, tags=tags))
    properties = {entry.key: entry.value for entry in band.metadata_props}
    return to_onnx(OpGraph.build(band.graph.name, ops, names[file.graph.output]), weights_of(file), properties)


def _numbers(text: str, where: Path) -> tuple[int, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[int, int, int, int])
    except msgspec.MsgspecError as error:
        raise StretchError(
            f"{where} states no padding in `{WHOLE_PADDING}`: {error}", "write the bundle again with `stretch branch`"
        ) from error


#: Property of a float subgraph: trained int8 scale and zero point of each tensor, as JSON.
RANGES = "stretch.ranges"

_Scale = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
_Zero = Annotated[int, msgspec.Meta(ge=0, le=255)]

#: Join of bands of rows.
BANDS = "rows"

#: Number of images for ranges; more images rarely widen them.
CALIBRATION_IMAGES = 64

#: Maximum memory for calibration inputs, bytes.
CALIBRATION_BYTES = 2 << 30

#: Number of images for the comparison of layers, which stores every layer's output.
LAYER_IMAGES = 4


@dataclass
class LoweredSubgraph:
    """A subgraph in another precision, and its loss."""

    precision: str  # ``int8`` or ``fp16``.
    model: onnx.ModelProto
    edges: tuple[dict[str, Quant], dict[str, Quant]] | None  # Scales of its int8 inputs and outputs; None in fp16.
    loss: Loss  # Loss of its outputs, on the inputs of the float subgraph.
    layers: dict[str, Loss]  # Loss by layer; empty if not requested.


class PrecisionLowering:
    """Lowers the subgraphs of an fp32 bundle to other precisions, in order.

    Args:
        bundle: An fp32 bundle.
        chosen: New precisions by subgraph.
        images: Representative inputs of the model.
        progress: Called during calibration.

    Attributes:
        chosen: New precisions of the subgraphs that can be lowered.
        kept: Subgraphs that stay in fp32, with the reason.
        floats: Function that runs each subgraph in fp32.
    """

    def __init__(self, bundle: Bundle, chosen: Mapping[str, str], images: Sequence[Array], progress: Progress) -> None:
        self.bundle, subgraphs = bundle, bundle.manifest.subgraphs
        partial = [sub.name for sub in subgraphs if chosen.get(sub.name) == "int8" and is_partial_sum(bundle.manifest, sub)]
        self.kept = dict.fromkeys(partial, PARTIAL_SUM_REASON)
        self.chosen = {name: precision for name, precision in chosen.items() if name not in self.kept}
        self.floats = {sub.name: runner(str(bundle.file(sub.file))) for sub in subgraphs}
        self._samples = _samples(bundle.manifest, self.floats, _whole_segment_runner(bundle), self.chosen, images, progress)
        self._handed: Scales = {}

    def lower(self, sub: SubgraphEntry, *, layers: bool = True) -> LoweredSubgraph:
        """Lower one of the chosen subgraphs; allowed once per subgraph.

        Args:
            sub: The subgraph; a portion must come after the portions whose outputs it reads.

        Raises:
            StretchError: If it cannot be quantised, or a weight is too large for fp16.
        """
        reads, writes = self._samples.pop(sub.name)
        model = onnx.load(self.bundle.file(sub.file))
        precision = self.chosen[sub.name]
        inputs = [
            tuple(np.ascontiguousarray(cut(x, sub.rows.get(name))) for name, x in zip(sub.inputs, sample, strict=True)) for sample in reads
        ]
        lowered = to_half(model) if precision != "int8" else self._int8(sub, model, reads, inputs)
        run = runner(lowered)
        lost = loss(
            pair for sample, expected in zip(inputs, writes, strict=True) for pair in zip(expected, as_tuple(run(*sample)), strict=True)
        )
        lowered_edges = edges(lowered) if precision == "int8" else None
        return LoweredSubgraph(
            precision, lowered, lowered_edges, lost, layer_losses(model, lowered, inputs[:LAYER_IMAGES]) if layers else {}
        )

    def accept(self, lowered: LoweredSubgraph) -> None:
        """Let later portions of the segment read this one's outputs in their int8 scale."""
        if lowered.edges is not None:
            self._handed |= {name: (np.float32(edge.scale), np.uint8(edge.zero_point)) for name, edge in lowered.edges[1].items()}

    def _int8(
        self, sub: SubgraphEntry, model: onnx.ModelProto, reads: list[tuple[Array, ...]], inputs: list[tuple[Array, ...]]
    ) -> onnx.ModelProto:
        """Quantise a subgraph, a part of a segment with the whole segment's scales; `reads` are inputs of the whole."""
        manifest = self.bundle.manifest
        if (whole := _whole_segment(self.bundle, sub)) is not None:
            scales = scales_of(quantise(whole, reads))
            return in_scales(quantise(model, inputs, scales), scales)
        # outputs of another portion keep their int8 scale
        within = {name for other in manifest.subgraphs if other.segment == sub.segment for name in other.outputs}
        handed = {name: scale for name, scale in self._handed.items() if name in within and name in sub.inputs}
        return quantise(model, reads, read_ranges(model, self.bundle.file(sub.file)) | handed)


def stated_ranges(ranges: Mapping[str, tuple[float, int]]) -> dict[str, str]:
    """Return the file properties with the trained ranges of a subgraph, if any."""
    return {RANGES: msgspec.json.encode(ranges).decode()} if ranges else {}


def read_ranges(model: onnx.ModelProto, file: Path) -> Scales:
    """Return the trained scales and zero points in a subgraph's float file."""
    ranges = read_property(model, RANGES, dict[str, tuple[_Scale, _Zero]], file, missing="{}", content="no scales", verb="export")
    return {name: (np.float32(scale), np.uint8(zero)) for name, (scale, zero) in ranges.items()}


def _samples(
    manifest: Manifest,
    floats: Mapping[str, Run],
    wholes: Mapping[str, Run],
    chosen: Mapping[str, str],
    images: Sequence[Array],
    progress: Progress,
) -> dict[str, tuple[list[tuple[Array, ...]], list[tuple[Array, ...]]]]:
    """Return the inputs (with all rows for a band) and fp32 outputs of each chosen subgraph, for as many images as memory allows."""
    samples: dict[str, tuple[list[tuple[Array, ...]], list[tuple[Array, ...]]]] = {name: ([], []) for name in chosen}
    bands = {name for join in manifest.joins if join.segment in wholes for name in join.inputs}
    used = 0
    for image in images[:CALIBRATION_IMAGES]:
        progress("calibration")
        tensors = replay(manifest, floats, image, wholes)
        for sub in manifest.subgraphs:
            if sub.name in chosen:
                samples[sub.name][0].append(tuple(tensors[name] for name in sub.inputs))
                samples[sub.name][1].append(tuple(tensors[name] for name in sub.outputs))
        used += sum(tensor.nbytes for name, tensor in tensors.items() if name not in bands)  # views of the whole
        if used > CALIBRATION_BYTES:
            break
    return samples


def _whole_segment_runner(bundle: Bundle) -> dict[str, Run]:
    """Return a function for each segment in bands or output channels that runs the whole segment."""
    wholes: dict[str, Run] = {}
    for sub in bundle.manifest.subgraphs:
        if sub.segment not in wholes and (whole := _whole_segment(bundle, sub)) is not None:
            wholes[sub.segment] = runner(whole)
    return wholes


def _whole_segment(bundle: Bundle, sub: SubgraphEntry) -> onnx.ModelProto | None:
    """Return the whole segment of a band of rows or of a branch of output channels; None for other subgraphs."""
    manifest = bundle.manifest
    if is_divided(manifest, sub):
        return segment_of_part(bundle, sub)
    if not any(join.kind == BANDS and sub.outputs[0] in join.inputs for join in manifest.joins):
        return None
    file, shape = bundle.file(sub.file), next(tensor.shape for tensor in manifest.tensors if tensor.name == sub.input)
    return segment_of_band(onnx.load(file), shape, file)
