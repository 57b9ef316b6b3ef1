"""Updated predictions of a bundle whose files have other precisions than planned."""

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
from scheduler.bundle.manifest import Alternative, Manifest, SubgraphEntry
from scheduler.formats.onnx import open_onnx
from scheduler.runtime.trace import Trace
from scheduler.simulate.clock import predicted_trace
from scheduler.simulate.networks import computing_beside
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.compare import (
    BRANCHED,
    NO_CLEAR_WINNER,
    PredictedRun,
    UncertainBranch,
    certainty,
    handover_times,
    ideal_split_ms,
    processor_lead,
    recommend,
    single_run,
)
from stretch.planning.network.segments import split_segments
from stretch.planning.result import operator_split, ranked_singles


def runs_in(processor: Processor, entry: SubgraphEntry) -> str:
    """Precision in which a processor runs a subgraph's file: the file's if supported, else the planned or default one."""
    for precision in (entry.precision, entry.planned_precision):
        if precision in processor.precisions:
            return precision
    return processor.default_precision


def repredict(manifest: Manifest, file: Callable[[str], Path]) -> Manifest:
    """The manifest with times, alternatives, controls and recommendation predicted from the files.

    Controls that the bundle lacks are left out, and then nothing
    is recommended. If the device's profile cannot be read any more, those of files in the planned
    precisions stay, and all others are left out.
    """
    try:
        device = load_device(manifest.device)
        processors = {sub.name: device.processor(sub.processor) for sub in manifest.subgraphs}
    except StretchError:
        if all(sub.precision == sub.planned_precision for sub in manifest.subgraphs):
            return manifest
        silent = tuple(msgspec.structs.replace(sub, predicted_ms=None, alternatives={}) for sub in manifest.subgraphs)
        return msgspec.structs.replace(manifest, subgraphs=silent, predicted={}, recommended=NO_CLEAR_WINNER)
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
    """Predicted time and energy of a subgraph on each processor of a plan, in its precision there."""
    energy = EnergyModel(predictor.device)
    times = {name: predictor.predict(graph, name, chosen).computing_ms for name, chosen in precision.items()}
    return {name: Alternative(ms, energy.mj(name, ms)) for name, ms in times.items()}


def _precisions(manifest: Manifest) -> dict[str, str]:
    """Narrowest precision of each processor's subgraphs."""
    precisions: dict[str, str] = {}
    for sub in manifest.subgraphs:
        precisions[sub.processor] = min(precisions.get(sub.processor, "fp32"), sub.planned_precision, key=ITEM_BYTES.__getitem__)
    return precisions


def _figures(
    manifest: Manifest, file: Callable[[str], Path], costs: Costs, trace: Trace, estimates: Mapping[str, Estimate]
) -> tuple[dict[str, Any], str]:
    """The `predicted` object and the recommendation."""
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
    lead = processor_lead(graphs["original"], predictor, costs.precision, (original.processor, original.precision)) if original else None
    makespan, energy, busy = trace.makespan_ms, EnergyModel(device), _busy(manifest, trace)
    ideal = ideal_split_ms(graphs["original"], processors, predictor, costs.precision) if original else None
    return {
        "makespan_ms": makespan,
        "best_single_ms": original.ms if original else None,
        "best_single_processor": original.processor if original else None,
        "best_single_precision": original.precision if original else None,
        "speedup": original.ms / makespan if original else None,
        "sequential_same_macs_ms": same.ms if same else None,
        "sequential_same_macs_processor": same.processor if same else None,
        "sequential_same_macs_ratio": graphs["sequential_same_macs"].macs / manifest.model.original_macs if same else None,
        "shortened": manifest.predicted.get("shortened"),
        "whole_graph_ms": whole_graph.ms if whole_graph else None,
        "whole_graph_processor": whole_graph.processor if whole_graph else None,
        "operator_split_ms": operator_split(graphs["original"], split_segments(graphs["original"]), costs, processors).makespan_ms
        if original
        else None,
        "ideal_split_ms": ideal,
        "ideal_fraction": ideal / makespan if ideal else None,
        **_shares(manifest, trace, estimates),
        "comparisons": msgspec.to_builtins(recommendation.rivals),
        **msgspec.to_builtins(certainty(recommendation, branched, runs, names["original"] if original else None)),
        "far_ahead": lead.processor if lead and lead.far else None,
        "crossover_divided": lead.crossover if lead else None,
        "energy_mj": energy.plan_mj(busy, makespan),
        "best_single_energy_mj": energy.plan_mj({original.processor: original.ms}, original.ms) if original else None,
        "sequential_same_macs_energy_mj": energy.plan_mj({same.processor: same.ms}, same.ms) if same else None,
        "energy": msgspec.to_builtins(energy.parts(busy, makespan)),
        "told": compared,
        "optimal": None,
        "gap": None,
        "source": "predicted",
    }, _recommended(manifest, recommendation.recommended) if original else NO_CLEAR_WINNER


def _recommended(manifest: Manifest, fastest: str) -> str:
    """Return the recommendation by time, or the shortened network that the bundle recommends for what it keeps."""
    return manifest.recommended if manifest.recommended.startswith("shortened") and fastest in (BRANCHED, NO_CLEAR_WINNER) else fastest


def _rival_name(name: str, single: Estimate) -> str:
    """Name used by the planner."""
    return name if name == "sequential_same_macs" else f"{'single' if name == 'original' else name}:{single.processor}"


def _shares(manifest: Manifest, trace: Trace, estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """Parts of the makespan: the slowest branches alone, contention, and everything else."""
    alone: dict[str, dict[str, float]] = {}
    together: dict[str, dict[str, float]] = {}
    computing = _computing(trace)
    for sub in manifest.subgraphs:
        for times, ms in ((alone, estimates[sub.name].computing_ms), (together, computing.get(sub.name, 0.0))):
            row = times.setdefault(sub.segment, {})
            row[sub.processor] = row.get(sub.processor, 0.0) + ms
    return {
        "efficiency": sum(max(row.values()) for row in alone.values()) / trace.makespan_ms,
        "communication_ms": trace.makespan_ms - sum(max(row.values()) for row in together.values()),
    }


def _computing(trace: Trace) -> dict[str, float]:
    """Time that each subgraph computes while the others do, ms."""
    return {span.name: span.ms for span in trace.spans if span.kind == "subgraph"}


def _busy(manifest: Manifest, trace: Trace) -> dict[str, float]:
    """Computing time of each processor, ms."""
    busy: dict[str, float] = {}
    for sub in manifest.subgraphs:
        busy[sub.processor] = busy.get(sub.processor, 0.0) + _computing(trace).get(sub.name, 0.0)
    return busy


def _link_processor(manifest: Manifest, sub: SubgraphEntry) -> str:
    """The processor whose link with the host a subgraph's tensors cross: its own, or for the host that of its input's producer."""
    if not is_host(sub.processor):
        return kind_of(sub.processor)
    makers = {name: other.processor for other in manifest.subgraphs for name in other.outputs}
    return next(kind_of(makers[name]) for name in sub.inputs if not is_host(makers.get(name, sub.processor)))


def _run(manifest: Manifest, costs: Costs, trace: Trace, estimates: Mapping[str, Estimate]) -> PredictedRun:
    """The predicted trace, divided into independently uncertain parts."""
    device, moving = costs.predictor.device, dict[str, float]()
    for span in trace.spans:
        name, _, doing = span.name.rpartition(" ")
        if span.kind == "conversion" and doing != "start":
            moving[name] = moving.get(name, 0.0) + span.ms
    segments: dict[str, list[UncertainBranch]] = {}
    numbers: dict[str, int] = {}
    waits = _waits(manifest, trace)
    arriving = {name: sum(span.ms for span in trace.spans if span.name == f"{name} in") for name in estimates}
    computing = computing_beside(manifest, arriving, device)
    for sub in manifest.subgraphs:
        estimate = estimates[sub.name]
        links = {_link_processor(manifest, sub): moving[sub.name]} if sub.name in moving else {}
        row = segments.setdefault(sub.segment, [])
        numbers[sub.name] = len(row)
        row.append(UncertainBranch.of(estimate, device, links, computing[sub.name].ms, computing[sub.name].together))
    for sub in manifest.subgraphs:
        row, number = segments[sub.segment], numbers[sub.name]
        row[number] = replace(row[number], waits=tuple(numbers[waited] for waited in waits[sub.name]))
    joins = sum(span.ms for span in trace.spans if span.kind == "join")
    return PredictedRun(list(segments.values()), joins, handover_times(costs.handover(costs.host), device))


def _waits(manifest: Manifest, trace: Trace) -> dict[str, list[str]]:
    """For each subgraph, those of its segment that it waits for: producers of its inputs, and its predecessor on the processor."""
    of = {sub.name: sub for sub in manifest.subgraphs}
    makers = {name: sub.name for sub in manifest.subgraphs for name in sub.outputs}
    waits = {
        sub.name: [makers[name] for name in sub.inputs if name in makers and of[makers[name]].segment == sub.segment]
        for sub in manifest.subgraphs
    }
    last: dict[tuple[str, str], str] = {}
    for sub in (of[span.name] for span in trace.spans if span.name in of):
        place = (sub.segment, sub.processor)
        if place in last:
            waits[sub.name].append(last[place])
        last[place] = sub.name
    return waits
