"""Update the predictions of a bundle whose files have other precisions than planned."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from predictors.devices import ITEM_BYTES, Processor, load_device
from predictors.energy import EnergyModel
from predictors.errors import StretchError
from predictors.graph import OpGraph
from predictors.host import is_host, kind_of
from predictors.predictor import Estimate, LatencyPredictor
from predictors.structs import to_builtins
from scheduler.bundle.manifest import Alternative, JoinEntry, Manifest, SubgraphEntry
from scheduler.formats.onnx import open_onnx
from scheduler.runtime.trace import Trace
from scheduler.simulate.clock import predicted_trace
from scheduler.simulate.networks import computing_beside
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.compare import (
    BRANCHED,
    NO_CLEAR_WINNER,
    PredictedRun,
    UncertainStep,
    certainty,
    handover_times,
    ideal_split_ms,
    processor_lead,
    recommend,
    single_run,
)
from stretch.planning.network.segments import split_segments
from stretch.planning.result import control_fields, operator_split, ranked_singles, run_fields


def runs_in(processor: Processor, entry: SubgraphEntry) -> str:
    """Return the precision in which a processor runs a subgraph's file: the file's if supported, else the planned or default one."""
    for precision in (entry.precision, entry.planned_precision):
        if precision in processor.precisions:
            return precision
    return processor.default_precision


def repredict(manifest: Manifest, file: Callable[[str], Path]) -> Manifest:
    """Return the manifest with times, alternatives, controls and recommendation predicted again from the files.

    Controls that the bundle lacks are left out; without the original nothing
    is recommended. If the device's profile cannot be read any more, predictions for files in the planned
    precisions stay, and all others are dropped.
    """
    try:
        device = load_device(manifest.device)
        processors = {sub.name: device.processor(sub.processor) for sub in manifest.subgraphs}
    except StretchError:
        if all(sub.precision == sub.planned_precision for sub in manifest.subgraphs):
            return manifest
        unpredicted = tuple(msgspec.structs.replace(sub, predicted_ms=None, alternatives={}) for sub in manifest.subgraphs)
        return msgspec.structs.replace(manifest, subgraphs=unpredicted, predicted={}, recommended=NO_CLEAR_WINNER)
    predictor = LatencyPredictor(device)
    estimates: dict[str, Estimate] = {}
    entries = []
    for sub in manifest.subgraphs:
        graph, precision = open_onnx(file(sub.file)).graph, runs_in(processors[sub.name], sub)
        estimate = estimates[sub.name] = predictor.predict(graph, sub.processor, precision)
        entries.append(
            msgspec.structs.replace(
                sub,
                planned_precision=precision,
                predicted_ms=estimate.computing_ms,
                contended_shares=tuple(estimate.computing.shares),
                alternatives=alternatives(graph, predictor, {name: runs_in(device.processor(name), sub) for name in sub.alternatives}),
            )
        )
    new_manifest = msgspec.structs.replace(manifest, subgraphs=tuple(entries))
    trace = predicted_trace(new_manifest, device)
    assert trace is not None  # every subgraph has a time
    predicted, recommended = _figures(new_manifest, file, Costs(predictor, _precisions(new_manifest)), trace, estimates)
    return msgspec.structs.replace(new_manifest, predicted=predicted, recommended=recommended)


def alternatives(graph: OpGraph, predictor: LatencyPredictor, precision: Mapping[str, str | None]) -> dict[str, Alternative]:
    """Return the predicted time and energy of a subgraph on each processor of a plan, in the precision of this processor."""
    energy = EnergyModel(predictor.device)
    times = {name: predictor.predict(graph, name, chosen).computing_ms for name, chosen in precision.items()}
    return {name: Alternative(ms, energy.mj(name, ms)) for name, ms in times.items()}


def _precisions(manifest: Manifest) -> dict[str, str]:
    """Return the narrowest precision of each processor's subgraphs."""
    precisions: dict[str, str] = {}
    for sub in manifest.subgraphs:
        precisions[sub.processor] = min(precisions.get(sub.processor, "fp32"), sub.planned_precision, key=ITEM_BYTES.__getitem__)
    return precisions


def _figures(
    manifest: Manifest, file: Callable[[str], Path], costs: Costs, trace: Trace, estimates: Mapping[str, Estimate]
) -> tuple[dict[str, Any], str]:
    """Return the `predicted` object, with the keys of `PlanResult.predicted`, and the recommendation."""
    processors = list(costs.precision)
    device, predictor = costs.predictor.device, costs.predictor
    branched = _run(manifest, costs, trace, estimates)
    graphs = {name: open_onnx(file(path)).graph for name, path in (manifest.controls | {"whole_graph": manifest.whole}).items()}
    singles = {name: ranked_singles(graph, costs, processors)[0] for name, graph in graphs.items()}
    names = {name: _rival_name(name, single) for name, single in singles.items()}
    runs = {names[name]: single_run(single, device) for name, single in singles.items()}
    compared = [name for name in runs if name in str(manifest.predicted.get("told", ""))]
    recommendation = recommend(branched, runs, compared)
    original, same, whole_graph = (singles.get(name) for name in ("original", "sequential_same_macs", "whole_graph"))
    baselines: dict[str, Any] = dict.fromkeys(("operator_split_ms", "ideal_split_ms", "ideal_fraction", "far_ahead", "crossover_divided"))
    if original:
        graph = graphs["original"]
        far, crossover = processor_lead(graph, predictor, costs.precision, (original.processor, original.precision))
        ideal = ideal_split_ms(graph, processors, predictor, costs.precision)
        baselines = {
            "operator_split_ms": operator_split(graph, split_segments(graph), costs, processors).makespan_ms,
            "ideal_split_ms": ideal,
            "ideal_fraction": ideal / trace.makespan_ms,
            "far_ahead": original.processor if far else None,
            "crossover_divided": crossover,
        }
    figures = {
        **control_fields(original, same, graphs["sequential_same_macs"].macs / manifest.model.original_macs if same else None),
        **run_fields(device, trace.makespan_ms, dict.fromkeys(processors, 0.0) | trace.busy_ms(), original, same),
        "shortened": manifest.predicted.get("shortened"),
        "whole_graph_ms": whole_graph.ms if whole_graph else None,
        "whole_graph_processor": whole_graph.processor if whole_graph else None,
        **baselines,
        **_shares(manifest, trace, estimates),
        "comparisons": recommendation.compared,
        **msgspec.structs.asdict(certainty(recommendation, branched, runs, names.get("original"))),
        "told": compared,
        "optimal": None,
        "gap": None,
        "source": "predicted",
    }
    recommended = _recommended(manifest, recommendation.recommended) if original else NO_CLEAR_WINNER
    return to_builtins(figures), recommended


def _recommended(manifest: Manifest, fastest: str) -> str:
    """Return the recommendation by time, or the shortened network that the bundle recommends for its agreement."""
    return manifest.recommended if manifest.recommended.startswith("shortened") and fastest in (BRANCHED, NO_CLEAR_WINNER) else fastest


def _rival_name(name: str, single: Estimate) -> str:
    """Return the planner's name of a control."""
    return name if name == "sequential_same_macs" else f"{'single' if name == 'original' else name}:{single.processor}"


def _shares(manifest: Manifest, trace: Trace, estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """Return the efficiency and the communication time of the run."""
    alone: dict[str, dict[str, float]] = {}
    together: dict[str, dict[str, float]] = {}
    computing = {span.name: span.ms for span in trace.spans if span.kind == "subgraph"}
    for sub in manifest.subgraphs:
        for times, ms in ((alone, estimates[sub.name].computing_ms), (together, computing.get(sub.name, 0.0))):
            row = times.setdefault(sub.segment, {})
            row[sub.processor] = row.get(sub.processor, 0.0) + ms
    return {
        "efficiency": sum(max(row.values()) for row in alone.values()) / trace.makespan_ms,
        "communication_ms": trace.makespan_ms - sum(max(row.values()) for row in together.values()),
    }


def _link_processor(manifest: Manifest, sub: SubgraphEntry) -> str:
    """Return the processor whose link to the host a subgraph's tensors cross: its own, or for the host its input's producer."""
    if not is_host(sub.processor):
        return kind_of(sub.processor)
    makers = {name: other.processor for other in manifest.subgraphs for name in other.outputs}
    return next(kind_of(makers[name]) for name in sub.inputs if not is_host(makers.get(name, sub.processor)))


def _run(manifest: Manifest, costs: Costs, trace: Trace, estimates: Mapping[str, Estimate]) -> PredictedRun:
    """Return the predicted trace as a run with uncertain times."""
    device, moving = costs.predictor.device, dict[str, float]()
    for span in trace.spans:
        name, _, action = span.name.rpartition(" ")
        if span.kind == "conversion" and action != "start":
            moving[name] = moving.get(name, 0.0) + span.ms
    waits = _waits(manifest, trace)
    arriving = {name: sum(span.ms for span in trace.spans if span.name == f"{name} in") for name in estimates}
    computing = computing_beside(manifest, arriving, device)
    steps = []
    for sub in manifest.subgraphs:
        links = {_link_processor(manifest, sub): moving[sub.name]} if sub.name in moving else {}
        step = UncertainStep.of(estimates[sub.name], device, links, computing[sub.name].ms, computing[sub.name].together)
        steps.append(replace(step, waits=waits[sub.name]))
    joining = {span.name: span.ms for span in trace.spans if span.kind == "join"}
    steps += [UncertainStep({}, waits[join.name], joining[join.name]) for join in manifest.joins]
    return PredictedRun(steps, handover_times(costs.handover(costs.host), device))


def _waits(manifest: Manifest, trace: Trace) -> dict[str, tuple[int, ...]]:
    """Return the steps that each subgraph and join waits for: producers of its inputs, and a subgraph's predecessor on its processor."""
    entries: list[SubgraphEntry | JoinEntry] = [*manifest.subgraphs, *manifest.joins]
    numbers = {entry.name: number for number, entry in enumerate(entries)}
    makers = {name: numbers[entry.name] for entry in entries for name in entry.outputs}
    waits = {entry.name: [makers[name] for name in entry.inputs if name in makers] for entry in entries}
    last: dict[str, int] = {}
    for span in (span for span in trace.spans if span.kind == "subgraph"):
        if span.processor in last:
            waits[span.name].append(last[span.processor])
        last[span.processor] = numbers[span.name]
    return {name: tuple(dict.fromkeys(others)) for name, others in waits.items()}
