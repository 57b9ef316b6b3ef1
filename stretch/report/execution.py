"""Reports of `stretch run`, `simulate` and `explain`."""

from collections.abc import Sequence
from dataclasses import replace

from scheduler.answer import RunAnswer
from scheduler.measure.benchmark import Timing
from scheduler.runtime.trace import Trace, median_trace
from scheduler.simulate.answer import SimulateAnswer
from stretch.planning.messages import command_line
from stretch.report.brief import explanation_brief, ratio, run_brief, share, simulation_brief, timed_network, timed_variant
from stretch.report.html.page import Bar, Chart, ChartInterval, Fact, Grid, Page, Section, histogram, intervals, over_time, timeline
from stretch.stages.explain import Explanation

#: Kind of bar for each kind of span in a trace; a plan's span covers a whole inference and is left out.
_KINDS = {"subgraph": "computing", "join": "join", "conversion": "exchange", "load": "others"}

#: Maximum number of points in a chart of inferences.
_POINTS = 2000


def trace_bars(trace: Trace) -> list[Bar]:
    """Return the spans of an inference as bars."""
    return [
        Bar(span.processor, (span.start_ns - trace.start_ns) / 1e6, span.ms, _KINDS[span.kind], span.name.partition("/")[0])
        for span in sorted(trace.spans, key=lambda span: span.start_ns)
        if span.kind in _KINDS
    ]


def _inference(name: str, title: str, trace: Trace, end_ns: int | None = None) -> Chart:
    """Return the timeline of an inference, up to its end or to `end_ns`."""
    busy = ", ".join(f"{processor} computes for {ms:.2f} ms" for processor, ms in trace.busy_ms().items())
    total = trace.makespan_ms if end_ns is None else (end_ns - trace.start_ns) / 1e6
    bars = [bar for bar in trace_bars(trace) if bar.start_ms < total]
    return timeline(name, title, f"{busy} of {trace.makespan_ms:.2f} ms.", {name: bars}, total)


def run_page(answer: RunAnswer, traces: Sequence[Trace], predicted: Trace | None) -> Page:
    """Return the report of a run.

    Args:
        predicted: The planned run on the device; None if the bundle or the profile lacks it.
    """
    weights = answer.weights.source + (f" ({answer.weights.detail})" if answer.weights.detail else "")
    board = [] if answer.on is None else [("board", f"{answer.on.host}: {answer.on.arch}, Python {answer.on.python}")]
    measured = [_inference("measured", "The inference with the median time, measured here", median_trace(traces))] if traces else []
    expected = []
    if predicted is not None:
        ms = f"{predicted.makespan_ms:.2f} ms"
        expected.append(f"The second timeline is what the plan expects on {answer.device}: {ms}. It does not apply to this machine.")
        measured.append(_inference("predicted", f"An inference on {answer.device}, predicted", predicted))
    rows = [
        (name, place.delegate, ", ".join(map(str, place.cores)), f"{place.busy_ms:.2f}", "yes" if place.stand_in else "no", place.reason)
        for name, place in answer.processors.items()
    ]
    titles = ("processor", "delegate", "cores", "busy, ms", "replaced", "why")
    places = Grid("Processors of the device, and their replacements here", titles, rows, right=(3,))
    times = [(name, f"{ms:.3f}") for name, ms in answer.subgraphs_alone_ms.items()]
    alone = Grid("Each subgraph with everything else idle", ("subgraph", "median, ms"), times, right=(1,), folded=True)
    cores = ", ".join(map(str, answer.cores))
    turns = f"All variants were timed alternately on cores {cores}: {answer.runs} rounds in {answer.seconds:.1f} s."
    return Page(
        title=f"{answer.model}, planned for {answer.device}, on {'this machine' if answer.on is None else answer.on.host}",
        facts=_run_facts(answer),
        sections=[
            Section("times", "Times of the bundle and its baselines", [turns], [*_contestants(answer), _ratios(answer)]),
            Section("when", "Timeline", expected, measured),
            Section("where", "Where the work ran", (), [places]),
            Section("subgraphs", "Subgraphs alone", (), [alone], printed=False),
        ],
        warnings=[
            *answer.warnings,
            *[
                f"{name} was replaced by {place.delegate} here: {place.reason}"
                for name, place in answer.processors.items()
                if place.stand_in
            ],
        ],
        source="measured" + (", one timeline predicted" if predicted is not None else ""),
        made_from=[("bundle", str(answer.bundle)), ("weights", weights), *board],
        notes=[f"timeline: {answer.trace} (open it in ui.perfetto.dev)"] if answer.trace is not None else (),
        brief=run_brief(answer, _next(answer)),
    )


def _next(answer: RunAnswer) -> str:
    """Return the next command after a run: a run on the device if this machine lacks a processor, else a timeline."""
    if answer.on is None and any(place.stand_in for place in answer.processors.values()):
        return command_line("run", answer.bundle, "--on", "user@host") + "    on a Linux board; --adb on a phone"
    board_options = [] if answer.on is None else ["--on", answer.on.host]
    return command_line("run", answer.bundle, *board_options, "--trace", "FILE") + "    writes a timeline"


def _run_facts(answer: RunAnswer) -> list[Fact]:
    facts = []
    if answer.macs_ratio is not None:
        facts.append(Fact("multiply-accumulates", share(answer.macs_ratio), "of the original's"))
    ideal = f"{answer.ideal_ms:.2f} ms if branches overlapped perfectly and meeting cost nothing"
    efficiency = ("not given", "processors share a core") if answer.efficiency is None else (share(answer.efficiency), ideal)
    facts.append(Fact("efficiency", *efficiency))
    if answer.check is not None and answer.check.stored:
        facts.append(Fact("reference", answer.check.against, "its output equals the one stored when the bundle was written"))
    rates = answer.throughput.contestants if answer.throughput is not None else ()
    facts += [Fact(rate.name, f"{rate.per_second:.1f} inferences/s", ratio(rate.per_second / rates[0].per_second)) for rate in rates]
    return facts


def _contestants(answer: RunAnswer) -> "list[Chart | Grid]":
    """Return the times of all variants, as a chart and as a table."""
    ran = timed_network(answer)
    others = (answer.same_net_whole_graph, answer.sequential, answer.sequential_same_macs, *answer.others)
    rows = [Timing(ran, answer.median_ms, answer.p90_ms)]
    rows += {t.name: replace(t, name=timed_variant(t.name, ran)) for t in others if t is not None}.values()
    drawn = [ChartInterval(row.name, row.median_ms, row.median_ms, row.p90_ms, strong=i == 0) for i, row in enumerate(rows)]
    words = "; ".join(f"{row.label} {row.value:.2f} ms" for row in drawn) + "."
    numbers = [(row.name, f"{row.median_ms:.2f}", f"{row.p90_ms:.2f}", ratio(row.median_ms / answer.median_ms)) for row in rows]
    grid = Grid("Times", ("variant", "median ms", "p90 ms", f"{ran} is"), numbers, right=(1, 2, 3))
    return [intervals("contestants", "Median and 90th percentile, measured", words, drawn, "ms"), grid]


def _ratios(answer: RunAnswer) -> Grid:
    ran = timed_network(answer)
    rows = [
        (timed_variant(row.name, ran), ratio(row.ratio), f"{row.low:.2f}", "" if row.high is None else f"{row.high:.2f}")
        for row in answer.comparisons
    ]
    return Grid(
        f"Speed-up over each baseline (above 1 {ran} is faster)", ("baseline", f"{ran} is", "low", "high, 95 %"), rows, right=(1, 2, 3)
    )


def simulation_page(answer: SimulateAnswer, latencies_ms: Sequence[float], first: Trace) -> Page:
    """Return the report of a simulation."""
    end = max([first.end_ns, *(span.end_ns for span in first.spans if span.kind != "load")])
    place = f" on {answer.device}" if answer.device else ""
    busy = Grid(
        f"Work of each processor; transfers and joins take another {answer.communication_ms:.2f} ms per inference",
        ("processor", "busy ms per inference", "share of the time"),
        [(name, f"{busy.ms:.2f}", f"{busy.share:.0%}") for name, busy in answer.busy.items()],
        right=(1, 2),
    )
    return Page(
        title=f"{answer.model}{place}, simulated",
        facts=_simulation_facts(answer),
        sections=[
            Section("latencies", "Latencies", (), _latencies(answer, latencies_ms)),
            Section("when", "The first inference", (), [_inference("simulated", f"The first inference{place}, simulated", first, end)]),
            Section("busy", "Processors", (), [busy]),
            *([Section("decisions", "Choice of plans over time", (), _decisions(answer))] if len(answer.plans) > 1 else []),
            *([Section("beside", "Bundles of others", (), [_other_bundles(answer)])] if answer.beside else []),
            *([Section("heat", "Heat", [_heat(answer)])] if answer.heat is not None else []),
        ],
        warnings=answer.warnings,
        source=answer.source,
        made_from=[
            ("bundle" if answer.bundle.is_dir() else "table of steps", str(answer.bundle)),
            ("planned for", answer.planned_for or "no device"),
            ("seed", str(answer.seed)),
        ],
        notes=[f"timeline: {answer.trace} (open it in ui.perfetto.dev)"] if answer.trace is not None else (),
        brief=simulation_brief(answer, times_of(answer), command_line("simulate", answer.bundle, "--details")),
    )


def times_of(answer: SimulateAnswer) -> str:
    """Return a text on the source of times, as the end of a sentence."""
    if not answer.bundle.is_dir():
        return f"times are the table's, links and contention those of {answer.device}" if answer.device else "times are the table's"
    return f"the profile of {answer.device} is {'fitted' if answer.calibrated else 'not fitted'} to measurements"


def _simulation_facts(answer: SimulateAnswer) -> list[Fact]:
    at_once = "one at a time" if answer.in_flight == 1 else f"up to {answer.in_flight} at once"
    facts = [
        Fact("inferences per second", f"{answer.per_second:.1f}", f"{answer.runs} in {answer.elapsed_ms:.2f} ms, {at_once}"),
    ]
    if answer.admission is not None:
        holds, factor = answer.admission.holds, f"; {answer.admission.factor:.2f} times all rates is held"
        facts.append(Fact(f"rates {'can' if holds else 'cannot'} be held", answer.admission.reason + ("" if holds else factor)))
    if answer.energy_mj is not None:
        facts.append(Fact("energy", f"{answer.energy_mj:.2f} mJ", "per inference, of all processors"))
    return facts


def _latencies(answer: SimulateAnswer, latencies_ms: Sequence[float]) -> list[Chart]:
    step = max(1, -(-len(latencies_ms) // _POINTS))
    words = f"From {min(latencies_ms):.2f} to {max(latencies_ms):.2f} ms."
    every = "" if step == 1 else f" One in {step} inferences is drawn."
    marks = {"without load": answer.makespan_ms, "median": answer.p50_ms, "p99": answer.p99_ms}
    return [
        over_time("course", "One inference after another", words + every, latencies_ms[::step], "latency, ms"),
        *([histogram("spread", "How often", words, latencies_ms, marks, "latency, ms")] if len(latencies_ms) > 1 else []),
    ]


def _decisions(answer: SimulateAnswer) -> list[Grid]:
    """Return tables of the alternative plans and of the choices over time."""
    plans = [(plan.bundle, f"{plan.makespan_ms:.2f}", str(plan.inferences)) for plan in answer.plans]
    rows = [(f"{d.inference}", f"{d.at_ms:.1f}", d.kind, d.after, d.reason) for d in answer.decisions]
    titles = ("after inference", "at, ms", "what", "then runs", "why")
    return [
        Grid("Plans to choose among", ("bundle", "ms without load", "inferences"), plans, right=(1, 2)),
        Grid("Decisions", titles, rows, right=(1,), folded=len(rows) > 20),
    ]


def _other_bundles(answer: SimulateAnswer) -> Grid:
    rows = []
    for bundle in answer.beside:
        times = [_ms(ms, 2) for ms in (bundle.makespan_ms, bundle.p50_ms, bundle.p90_ms, bundle.p99_ms)]
        missed = "" if bundle.deadline_ms is None else f"{bundle.missed} of {bundle.deadline_ms:g} ms"
        rows.append((str(bundle.bundle), bundle.arrivals or "as soon as it can", str(bundle.inferences), *times, missed))
    titles = ("bundle", "asked for", "inferences", "ms without load", "median", "p90", "p99", "deadlines missed")
    return Grid("Bundles that shared the processors", titles, rows, right=(2, 3, 4, 5, 6, 7))


def _heat(answer: SimulateAnswer) -> str:
    heat = answer.heat
    assert heat is not None
    return (
        f"From {heat.start_c:.1f} to {heat.end_c:.1f} °C, at most {heat.hottest_c:.1f} ({heat.source}); throttled {heat.throttled:.0%} of the time, "
        f"to {heat.slowest:g} of the speed. Median of the first tenth of the inferences {heat.first_tenth_ms:.2f} ms, of the last {heat.last_tenth_ms:.2f} ms."
    )


def explanation_page(explanation: Explanation) -> Page:
    """Return the report on a bundle's operators and their placement."""
    places = []
    for name, place in explanation.processors.items():
        cores = f" on core {'+'.join(map(str, place.cores))}, {place.dispatch}" if place.cores else ""
        places.append(f"{name}: {place.delegate}{cores}; {place.reason}")
    ops = [(op.name, op.op, op.subgraph, op.delegate or "", _ms(op.ms, 3), op.reason) for op in explanation.ops]
    titles = ("operator", "kind", "subgraph", "delegate", f"ms on {explanation.device}", "why")
    subgraphs = [(sub.name, sub.processor, f"{sub.macs:,}", _ms(sub.planned_ms, 2), _ms(sub.ms, 2)) for sub in explanation.subgraphs]
    sums = ("subgraph", "processor", "MACs", "planned ms", f"ms on {explanation.device}")
    return Page(
        title=f"{explanation.bundle} on {explanation.device}",
        sections=[
            Section("processors", "Processors", places),
            Section("operators", "Operators", (), [Grid("Where each operator runs", titles, ops, right=(4,))]),
            Section("subgraphs", "Subgraphs", (), [Grid("Cost of each subgraph", sums, subgraphs, right=(2, 3, 4))]),
        ],
        warnings=explanation.warnings,
        brief=explanation_brief(explanation),
    )


def _ms(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
