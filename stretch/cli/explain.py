"""`stretch explain`: where each operator of a bundle runs, why, and what it costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.bundle.load import Bundle
    from scheduler.bundle.manifest import SubgraphEntry

Rows = list[dict[str, Any]]


@verb
def explain(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="Predict for this device (see `stretch devices`) instead of measuring here.")
    ] = None,
    mapping: Annotated[
        list[str] | None, typer.Option("--map", help="Where a processor runs here, as gpu=cpu1; repeat or separate by commas.")
    ] = None,
) -> None:
    """Show where each operator runs, why it runs there and what it costs."""
    from predictors.errors import UsageError
    from predictors.joins import meeting_of
    from scheduler.bundle.load import load_bundle

    if device is not None and mapping:
        raise UsageError("--map places processors on this machine, --device asks about another", "give one of the two")
    loaded = load_bundle(bundle, check_hashes=True)
    manifest = loaded.manifest
    with out.progress("explaining", total=len(manifest.subgraphs)) as step:
        where, processors, ops = _here(loaded, mapping or [], step) if device is None else _on_device(loaded, device, out, step)
    for join in manifest.joins:
        reason = f"meeting point: {meeting_of(join.kind).reason}"
        ops.append(_row(join.name, f"join {join.kind}", join.name, join.processor, None, reason, None, None))
    subgraphs = [_subgraph(entry, ops) for entry in manifest.subgraphs]
    data = {"bundle": bundle, "device": where, "processors": processors, "subgraphs": subgraphs, "ops": ops, "warnings": out.warnings}
    out.emit(data, lambda console: _print(console, data, manifest.device))


def _here(bundle: "Bundle", mapping: list[str], step: Any) -> tuple[str, dict[str, Any], Rows]:
    """Placement on this machine, each operator measured where its delegate can tell."""
    from scheduler.cores import pinned
    from scheduler.delegates import get_delegate
    from scheduler.placement.mapping import bundle_precisions, parse_mapping, place_processors

    manifest = bundle.manifest
    used = list(dict.fromkeys(entry.processor for entry in manifest.subgraphs))
    placements = place_processors(used, parse_mapping(mapping), precisions=bundle_precisions(manifest))
    ops: Rows = []
    for entry in manifest.subgraphs:
        place = placements[entry.processor]
        with pinned(place.cores[:1]):
            nodes = get_delegate(place.delegate).create(place.cores).places_from(bundle, entry.name)
        for node in nodes:
            ops.append(_row(node.name, node.op, entry.name, entry.processor, place.delegate, node.reason, node.ms, "measured"))
        step(entry.name)
    processors = {
        name: {"delegate": p.delegate, "cores": list(p.cores), "dispatch": p.dispatch, "stand_in": p.stand_in, "reason": p.reason}
        for name, p in placements.items()
    }
    return "this machine", processors, ops


def _on_device(bundle: "Bundle", device: str, out: Output, step: Any) -> tuple[str, dict[str, Any], Rows]:
    """Kernels that the device's backends launch, with predicted times."""
    from predictors.devices import load_device
    from predictors.predictor import LatencyPredictor
    from scheduler.formats.onnx import open_onnx
    from stretch.export.repredict import runs_in

    profile = load_device(device)
    predictor = LatencyPredictor(profile)
    if not profile.calibrated:
        out.warn(f"the profile {profile.id} is derived from specifications, not fitted to measurements: treat predicted times as estimates")
    ops: Rows = []
    processors: dict[str, Any] = {}
    for entry in bundle.manifest.subgraphs:
        processor = profile.processor(entry.processor)
        precision = runs_in(processor, entry)
        backend = processor.profile.backend
        reason = f"{backend} runs it on the {entry.processor} of {profile.id} in {precision}{_unlike(entry, precision)}"
        known = processors.get(entry.processor)
        if known is None:
            processors[entry.processor] = {"delegate": backend, "cores": [], "dispatch": None, "stand_in": False, "reason": reason}
        elif reason not in known["reason"]:
            known["reason"] += f"; {entry.name}: {reason}"
        graph = open_onnx(bundle.file(entry.file)).graph
        estimate = predictor.predict(graph, entry.processor, precision)
        kernel_of = {op: each for each in estimate.kernels for op in each.kernel.ops}
        for op in graph.ops:
            each = kernel_of.get(op.name)
            if op.kind == "input":
                continue
            if each is None:
                ops.append(_row(op.name, op.kind, entry.name, entry.processor, backend, f"{backend} launches nothing for it", None, None))
            elif each.kernel.name == op.name:
                ops.append(
                    _row(
                        op.name,
                        op.kind,
                        entry.name,
                        entry.processor,
                        backend,
                        f"a kernel of {backend} in {precision}",
                        each.time.ms,
                        "predicted",
                    )
                )
            else:
                ops.append(
                    _row(
                        op.name, op.kind, entry.name, entry.processor, backend, f"merged into `{each.kernel.name}` by {backend}", None, None
                    )
                )
        step(entry.name)
    return profile.id, processors, ops


def _unlike(entry: "SubgraphEntry", precision: str) -> str:
    """What to know where a prediction is not of what was planned, or not of what the file is."""
    if precision != entry.precision:
        return f", for it does not run {entry.precision}, which the file is: write it in {precision} with `stretch export`"
    if precision != entry.planned_precision:
        return f", which the file is; planned was {entry.planned_precision}, which `stretch export` writes"
    return ""


def _row(
    name: str, op: str, subgraph: str, processor: str, delegate: str | None, reason: str, ms: float | None, source: str | None
) -> dict[str, Any]:
    return {
        "name": name,
        "op": op,
        "subgraph": subgraph,
        "processor": processor,
        "delegate": delegate,
        "reason": reason,
        "ms": ms,
        "source": None if ms is None else source,
    }


def _subgraph(entry: "SubgraphEntry", ops: Rows) -> dict[str, Any]:
    times = [op["ms"] for op in ops if op["subgraph"] == entry.name and op["ms"] is not None]
    return {
        "name": entry.name,
        "segment": entry.segment,
        "processor": entry.processor,
        "macs": entry.macs,
        "planned_ms": entry.predicted_ms,
        "ms": sum(times) if times else None,
    }


def _print(console: "Console", data: dict[str, Any], planned_for: str) -> None:
    from stretch.report.placement import operator_table, subgraph_table

    for name, p in data["processors"].items():
        cores = f" on core {'+'.join(map(str, p['cores']))}, {p['dispatch']}" if p["cores"] else ""
        console.print(f"{name}: {p['delegate']}{cores}; {p['reason']}")
    console.print()
    console.print(operator_table(data["ops"], data["device"]))
    console.print()
    console.print(subgraph_table(data["subgraphs"], data["device"], planned_for))
