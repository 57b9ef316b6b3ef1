"""Write a branched model as a bundle: one ONNX file per subgraph, the whole network, the controls, weights, `bundle.json`."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from predictors.devices import Precision
from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.joins import join_of
from predictors.predictor import KernelsTime
from predictors.shapes import integer
from scheduler.bundle.agreement import Agreement
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import (
    SCHEMA,
    Alternative,
    FileEntry,
    JoinEntry,
    Manifest,
    ModelInfo,
    SourceFile,
    SubgraphEntry,
    Tensor,
    WeightsInfo,
)
from scheduler.bundle.preprocessing import Preprocessing
from scheduler.bundle.problems import check_source_file
from scheduler.progress import Progress, silent
from stretch import __version__
from stretch.export.checks import check_export
from stretch.export.lowering import entry_rows, stated_ranges, statements, subgraph_names, subgraph_of
from stretch.export.onnx import WeightFile, nodeless_properties, to_numpy, to_onnx
from stretch.export.repredict import alternatives
from stretch.export.staging import file_entry, stage_folder, write_manifest
from stretch.network.capture import Captured
from stretch.operators.formats.onnx import Arrays
from stretch.planning.design.scale import host_processor
from stretch.planning.result import PlanResult
from stretch.transform.model import BranchedModel, op_weights

#: Name of the file with the weights of all ONNX files.
WEIGHTS = "weights.bin"

#: Layouts of tensors by their number of axes.
LAYOUTS: dict[int, Literal["NCHW", "NC"]] = {4: "NCHW", 2: "NC"}


@dataclass(frozen=True)
class BundleFacts:
    """Metadata of a bundle."""

    device: str  # Profile id of the target device.
    calibrated: bool  # Whether this profile was fitted to measurements.
    weights_source: str  # ``default``, ``random``, ``file``, ``given`` or ``trained``.
    weights_detail: str = ""  # Details of the source, such as a file.
    predicted: Mapping[str, Any] = field(default_factory=dict)  # The planner's predictions, JSON-ready.
    recommended: str = "branched"  # Recommendation of the planner.
    branch_times: Mapping[str, KernelsTime] = field(default_factory=dict)  # Predicted time of each subgraph.
    precision: Mapping[str, Precision] = field(default_factory=dict)  # Planned precision by processor.
    #: Returns the predicted time and energy of a subgraph on each processor of the plan.
    alternatives: Callable[[OpGraph], dict[str, Alternative]] = lambda graph: {}
    little_cores: tuple[int, ...] = ()  # The device's cores for threads that only wait.
    delegates: Mapping[str, str] = field(default_factory=dict)  # Delegates of the processors' measurements.
    preprocessing: Preprocessing | None = None  # Image preprocessing; None if unknown.
    #: Trained scale and zero point of int8 tensors, by subgraph and tensor; others are calibrated on images.
    ranges: Mapping[str, Mapping[str, tuple[float, int]]] = field(default_factory=dict)
    calibrated_on: tuple[str, ...] = ()  # Fingerprints of the images that weights were fitted to.
    controls: bool = True  # Whether to write the controls.
    own: tuple[Path, SourceFile] | None = None  # File of the original, with the original's arguments and keys.

    @classmethod
    def of(cls, planned: PlanResult, weights_source: str, weights_detail: str = "", **more: Any) -> "BundleFacts":
        """Return the facts of a planned design; `more` has the fields that a plan lacks."""
        little = planned.device.little_cores
        times = {
            f"{row.design.name}.{name}": b.estimate.computing
            for row in planned.run.segments
            for name, b in zip(row.design.names, row.branches, strict=True)
        }
        return cls(
            planned.device.id,
            planned.calibrated,
            weights_source,
            weights_detail,
            planned.predicted.to_json(),
            planned.recommended,
            times | {f"{side.name}.{time.scale.processor}": time.estimate.computing for side, time in planned.run.sides},
            {name: planned.device.processor(name).check_precision(at) for name, at in planned.config.precision.items()},
            lambda piece: alternatives(
                piece, planned.predictor, {name: planned.config.precision.get(name) for name in planned.config.processors}
            ),
            little.value if little else (),
            {
                name: planned.device.processor(name).profile.delegate
                for name in planned.config.processors
                if planned.device.processor(name).profile.delegate
            },
            **more,
        )


def export_bundle(
    out: Path,
    original: Captured,
    model: BranchedModel,
    sequential: BranchedModel | None,
    facts: BundleFacts,
    *,
    shortened: BranchedModel | None = None,
    agreeing: Callable[[Bundle], Agreement | None] | None = None,
    progress: Progress = silent,
) -> Manifest:
    """Write the bundle folder atomically, and check each file against torch.

    Args:
        sequential: The sequential control with the same multiply-accumulates.
        shortened: The control without some blocks of the original.
        agreeing: Measures the agreement with the original on the complete files, before they are moved into place.
    """
    with stage_folder(out) as folder:
        models = {"sequential_same_macs": sequential, "shortened": shortened}
        controls = {name: control for name, control in models.items() if control is not None and facts.controls}
        written = _write_graphs(folder, original, model, controls, facts, progress)
        ends = None if facts.own is None or not facts.controls else _write_own(folder, facts.own, original, model, written)
        manifest = msgspec.structs.replace(_manifest(original, model, facts, written), own=ends)
        progress("export checks")
        checks = check_export(folder, manifest, original, model, controls)
        manifest = msgspec.structs.replace(manifest, checks=checks)
        if agreeing is not None:
            manifest = msgspec.structs.replace(manifest, agreement=agreeing(Bundle(folder, manifest)))
        write_manifest(folder, manifest)
    return manifest


@dataclass
class _FolderContents:
    """Contents of a bundle's folder."""

    pieces: dict[str, OpGraph]  # Subgraphs by name.
    files: dict[str, FileEntry] = field(default_factory=dict)  # Size and hash of each file.
    controls: dict[str, str] = field(default_factory=dict)  # File of each control.
    control_macs: dict[str, int] = field(default_factory=dict)  # Multiply-accumulates of each control.


def _write_graphs(
    folder: Path,
    original: Captured,
    model: BranchedModel,
    controls: Mapping[str, BranchedModel],
    facts: BundleFacts,
    progress: Progress,
) -> _FolderContents:
    """Write every subgraph, the whole network and the controls."""
    weights, shared = to_numpy(op_weights(model)), WeightFile(folder / WEIGHTS)
    written = _FolderContents({name: subgraph_of(model.graph, name) for name in subgraph_names(model.graph)})
    properties = {
        "stretch.design": msgspec.json.encode(model.design).decode(),
        "stretch.model": model.graph.name,
        "stretch.device": facts.device,
    }
    stated = statements(original.graph, model.design)
    for name, piece in written.pieces.items():
        progress(f"export {name}")
        file_properties = {**properties, "stretch.subgraph": name, **stated.get(name, {}), **stated_ranges(facts.ranges.get(name, {}))}
        _write(shared, f"{name}.onnx", piece, weights, file_properties, written.files)
    progress("export model")
    _write(shared, "model.onnx", model.graph, weights, properties | nodeless_properties(model.graph), written.files)
    if facts.controls:
        progress("export controls")
        rows = [(name, control.graph, op_weights(control)) for name, control in controls.items()]
        for name, graph, tensors in [("original", original.graph, original.weights), *rows]:
            written.controls[name] = f"{name}.onnx"
            written.control_macs[name] = graph.macs
            file_properties = {"stretch.control": name} | (nodeless_properties(graph) if name == "original" else {})
            _write(shared, written.controls[name], graph, to_numpy(tensors), file_properties, written.files)
    if shared.path.exists():
        written.files[WEIGHTS] = file_entry(shared.path)
    return written


def _write_own(
    folder: Path, own: tuple[Path, SourceFile], original: Captured, model: BranchedModel, written: _FolderContents
) -> SourceFile | None:
    """Add the user's own file as the original, in addition to the exported one; None if a bundle cannot hold the file."""
    source, ends = own
    if source.suffix not in (".onnx", ".tflite"):
        return None
    names = dict(zip((end.tensor for end in ends.inputs), (op.name for op in original.graph.inputs), strict=False))
    outputs = dict(zip(original.graph.outputs, model.graph.outputs, strict=True))
    names |= {result.key: outputs[result.name] for result in original.returned.results}
    inputs, results = (
        tuple(msgspec.structs.replace(end, tensor=names.get(end.tensor, "")) for end in side) for side in (ends.inputs, ends.outputs)
    )
    name = f"controls/original{source.suffix}"
    entry = msgspec.structs.replace(ends, inputs=inputs, outputs=results, file=name)
    try:
        external_files = check_source_file(source, entry)
    except StretchError:
        return None
    old, captured = written.controls["original"], "captured.onnx"
    (folder / old).rename(folder / captured)
    written.files[captured] = written.files.pop(old)
    written.controls["original"] = captured
    for file in (source.name, *external_files):
        target = name if file == source.name else f"controls/{file}"
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.parent / file, folder / target)
        written.files[target] = file_entry(folder / target)
    return entry


def _write(
    shared: WeightFile, name: str, graph: OpGraph, weights: Arrays, properties: Mapping[str, str], files: dict[str, FileEntry]
) -> None:
    path = shared.path.with_name(name)
    shared.save(to_onnx(graph, weights, properties), path)
    files[name] = file_entry(path)


def _manifest(original: Captured, model: BranchedModel, facts: BundleFacts, written: _FolderContents) -> Manifest:
    graph = model.graph
    subgraphs = tuple(_subgraph_entry(name, piece, entry_rows(graph, name), facts) for name, piece in written.pieces.items())
    joins = _join_entries(model)
    return Manifest(
        schema=SCHEMA,
        version=__version__,
        # shared weights of bands of rows count once
        model=_model_info(original, graph, sum(weight.numel() for weight in model.parameters()), facts),
        device=facts.device,
        calibrated=facts.calibrated,
        weights=WeightsInfo(facts.weights_source, facts.weights_detail),
        design=msgspec.to_builtins(model.design),
        inputs=tuple(op.name for op in graph.inputs),
        outputs=graph.outputs,
        tensors=_tensors(graph, subgraphs, joins),
        subgraphs=subgraphs,
        joins=joins,
        whole="model.onnx",
        controls=written.controls,
        control_macs=written.control_macs,
        predicted=dict(facts.predicted),
        recommended=facts.recommended,
        checks={},
        files=written.files,
        little_cores=facts.little_cores,
        delegates=dict(facts.delegates),
        calibrated_on=facts.calibrated_on,
        results=() if original.returned.is_single_tensor else original.returned.keys(original.graph.outputs),
    )


def _subgraph_entry(name: str, piece: OpGraph, cut: Op | None, facts: BundleFacts) -> SubgraphEntry:
    tags = piece.by_name[piece.outputs[0]].tags
    segment, processor = tags["segment"], tags["processor"]
    time = facts.branch_times.get(name)
    return SubgraphEntry(
        name,
        segment,
        processor,
        f"{name}.onnx",
        tuple(op.name for op in piece.inputs),
        piece.outputs,
        piece.macs,
        {} if cut is None else {piece.input.name: (integer(cut.attrs, "start"), integer(cut.attrs, "stop"))},
        planned_precision=facts.precision.get(processor, "fp32"),
        predicted_ms=time.ms if time else None,
        contended_shares=time.shares if time else (0.0, 0.0),
        alternatives=facts.alternatives(piece),
    )


def _join_entries(model: BranchedModel) -> tuple[JoinEntry, ...]:
    host = host_processor(model.design)
    meets = {part.name: name for part in model.design.segments if (name := join_of(part.join).meets)}
    return tuple(
        JoinEntry(op.tags["subgraph"], op.tags["segment"], meets[op.tags["segment"]], op.inputs, op.name, host)
        for op in model.graph.ops
        if op.tags.get("meeting_point") == "true"
    )


def _tensors(graph: OpGraph, subgraphs: Sequence[SubgraphEntry], joins: Sequence[JoinEntry]) -> tuple[Tensor, ...]:
    """Return every tensor between subgraphs, with its writer and readers."""
    writers = (
        {op.name: "input" for op in graph.inputs}
        | {name: s.name for s in subgraphs for name in s.outputs}
        | {j.output: j.name for j in joins}
    )
    tensors = []
    for tensor, producer in writers.items():
        readers = (
            [s.name for s in subgraphs if tensor in s.inputs]
            + [j.name for j in joins if tensor in j.inputs]
            + ["output"] * (tensor in graph.outputs)
        )
        shape = graph.by_name[tensor].shape
        tensors.append(Tensor(tensor, shape, producer, tuple(readers), layout=LAYOUTS.get(len(shape), "plain")))
    return tuple(tensors)


def _model_info(original: Captured, graph: OpGraph, params: int, facts: BundleFacts) -> ModelInfo:
    first = graph.inputs[0].shape
    return ModelInfo(
        graph.name,
        first,
        graph.by_name[graph.outputs[0]].shape,
        graph.macs,
        params,
        original.graph.macs,
        original.graph.params,
        # preprocessing applies to colour images only
        facts.preprocessing if len(graph.inputs) == 1 and len(first) == 4 and first[1] == 3 else None,
    )
