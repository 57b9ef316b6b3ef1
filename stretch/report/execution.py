"""The reports of `stretch run`, `simulate` and `explain`."""

from collections.abc import Iterator, Sequence

from scheduler.answer import RunAnswer
from scheduler.measure.benchmark import Timing
from scheduler.runtime.trace import Trace, typical
from scheduler.simulate.answer import SimulateAnswer
from stretch.planning.messages import command_line
from stretch.report.brief import explanation_brief, run_brief, simulation_brief
from stretch.report.html.page import Bar, Chart, ChartInterval, Fact, Grid, Page, Section, histogram, intervals, over_time, timeline
from stretch.stages.explain import Explanation

#: Spans of a trace by the kind of bar they are; a plan's span covers a whole inference and is left out.
_KINDS = {"subgraph": "computing", "join": "join", "conversion": "exchange", "load": "others"}

#: Points of a chart of inferences, at most.
_POINTS = 2000


def trace_bars(trace: Trace) -> list[Bar]:
    """The spans of an inference."""
    return [
        Bar(span.processor, (span.start_ns - trace.start_ns) / 1e6, span.ms, _KINDS[span.kind], span.name.partition("/")[0])
        for span in sorted(trace.spans, key=lambda span: span.start_ns)
        if span.kind in _KINDS
    ]


def _inference(name: str, title: str, trace: Trace, end_ns: int | None = None) -> Chart:
    """The timeline of an inference, up to its end or a later one."""
    busy = ", ".join(f"{processor} computes for {ms:.2f} ms" for processor, ms in trace.busy_ms().items())
    total = trace.makespan_ms if end_ns is None else (end_ns - trace.start_ns) / 1e6
    bars = [bar for bar in trace_bars(trace) if bar.start_ms < total]
    return timeline(name, title, f"{busy} of {trace.makespan_ms:.2f} ms.", {name: bars}, total)


def run_page(answer: RunAnswer, traces: Sequence[Trace], predicted: Trace | None) -> Page:
    """The report of a run.

    Args:
        predicted: The run on the device as the plan expects it; None where the bundle or the profile does not say.
    """
    here = "here" if answer.on is None else f"on {answer.on.host}"
    weights = answer.weights.source + (f" ({answer.weights.detail})" if answer.weights.detail else "")
    measured = [_inference("measured", "The inference in the middle of all by its time, measured here", typical(traces))] if traces else []
    expected = []
    if predicted is not None:
        ms = f"{predicted.makespan_ms:.2f} ms"
        expected.append(f"The second timeline is what the plan expects on {answer.device}: {ms}. It says nothing of this machine.")
        measured.append(_inference("predicted", f"An inference on {answer.device}, predicted", predicted))
    rows = [
        (name, place.delegate, ", ".join(map(str, place.cores)), f"{place.busy_ms:.2f}", "yes" if place.stand_in else "no", place.reason)
        for name, place in answer.processors.items()
    ]
    titles = ("processor", "delegate", "cores", "busy, ms", "stands in", "why")
    places = Grid("Processors of the device, and what ran their work", titles, rows, right=(3,))
    times = [(name, f"{ms:.3f}") for name, ms in answer.subgraphs_alone_ms.items()]
    alone = Grid("Each subgraph with everything else idle", ("subgraph", "median, ms"), times, right=(1,), folded=True)
    turns = "All took turns, round by round, on the same cores."
    return Page(
        title=f"{answer.model}, planned for {answer.device}, on {'this machine' if answer.on is None else answer.on.host}",
        lead=[
            f"{answer.model} planned for {answer.device}, weights: {weights}",
            *([f"on {answer.on.host}: {answer.on.arch}, Python {answer.on.python}"] if answer.on is not None else []),
            f"An inference takes {answer.median_ms:.2f} ms {here} (median of {answer.runs} rounds in {answer.seconds:.1f} s on cores "
            f"{', '.join(map(str, answer.cores))}; nine of ten stay under {answer.p90_ms:.2f} ms).",
            answer.verdict,
        ],
        facts=_run_facts(answer),
        sections=[
            Section("times", "Beside its controls", [turns], [*_contestants(answer), _ratios(answer)]),
            Section("when", "Timeline", expected, measured),
            Section("where", "Where the work ran", (), [places]),
            Section("subgraphs", "Subgraphs alone", (), [alone], printed=False),
        ],
        warnings=[
            *answer.warnings,
            *[f"{name} was run by {place.delegate} here: {place.reason}" for name, place in answer.processors.items() if place.stand_in],
        ],
        source="measured" + (", one timeline predicted" if predicted is not None else ""),
        made_from=[("bundle", str(answer.bundle))],
        notes=[*([f"timeline: {answer.trace} (open it in ui.perfetto.dev)"] if answer.trace is not None else []), *_in_short(answer)],
        brief=run_brief(answer, _next(answer)),
    )


def _next(answer: RunAnswer) -> str:
    """The command that follows a run: the device itself where this machine lacks a processor, else a timeline."""
    if answer.on is None and any(place.stand_in for place in answer.processors.values()):
        return command_line("run", answer.bundle, "--on", "user@host") + "    on a Linux board; --adb on a phone"
    return command_line("run", answer.bundle, "--trace", "FILE") + "    writes a timeline"


def _run_facts(answer: RunAnswer) -> list[Fact]:
    facts = []
    if answer.macs_ratio is not None:
        facts.append(Fact("multiply-accumulates", f"{answer.macs_ratio:.3f}", "of the original's"))
    ideal = f"{answer.ideal_ms:.2f} ms if branches overlapped perfectly and meeting cost nothing"
    efficiency = ("not given", "processors share a core") if answer.efficiency is None else (f"{answer.efficiency:.3f}", ideal)
    facts.append(Fact("efficiency", *efficiency))
    if answer.check is None or answer.max_error is None:
        facts.append(Fact("results not checked: a delegate computes nothing", ""))
    else:
        stored = ", which gives what it gave when the bundle was written" if answer.check.stored else ""
        against = f"results checked: {answer.check.tensors} tensors against {answer.check.against}{stored}"
        facts.append(Fact(against, "right", f"the output differs by {answer.max_error:.1e} of its largest element"))
    if answer.energy_mj is not None:
        facts.append(Fact("energy of an inference", f"{answer.energy_mj:.3g} mJ", f"{answer.energy_counter}, with all else that it covers"))
    rates = answer.throughput.contestants if answer.throughput is not None else ()
    facts += [Fact(rate.name, f"{rate.per_second:.1f} inferences/s", f"{rate.per_second / rates[0].per_second:.2f}×") for rate in rates]
    return facts


def _contestants(answer: RunAnswer) -> "list[Chart | Grid]":
    """All that took turns, as a chart and in numbers."""
    # a network that is recommended instead of branches is one subgraph
    ran = "branched" if len(answer.subgraphs_alone_ms) > 1 else next(iter(answer.subgraphs_alone_ms), "branched")
    timings = [
        Timing(ran, answer.median_ms, answer.p90_ms),
        *(answer.same_net_whole_graph, answer.sequential, answer.sequential_same_macs, *answer.others),
    ]
    rows = list({timing.name: timing for timing in timings if timing is not None}.values())
    drawn = [ChartInterval(row.name, row.median_ms, row.median_ms, row.p90_ms, strong=i == 0) for i, row in enumerate(rows)]
    words = "; ".join(f"{row.label} {row.value:.2f} ms" for row in drawn) + "."
    numbers = [(row.name, f"{row.median_ms:.2f}", f"{row.p90_ms:.2f}", f"{row.median_ms / answer.median_ms:.2f}×") for row in rows]
    grid = Grid("Times", ("measured", "median ms", "p90 ms", f"of {ran}"), numbers, right=(1, 2, 3))
    return [intervals("contestants", "Median and 90th percentile, measured", words, drawn, "ms"), grid]


def _ratios(answer: RunAnswer) -> Grid:
    rows = [
        (comparison.name, f"{comparison.ratio:.3f}", f"{comparison.low:.3f}", "" if comparison.high is None else f"{comparison.high:.3f}")
        for comparison in answer.comparisons
    ]
    title = "Times of the controls over the branches' (above 1 the branches are faster)"
    return Grid(title, ("control", "ratio of medians", "low", "high, 95 %"), rows, right=(1, 2, 3))


def _in_short(answer: RunAnswer) -> Iterator[str]:
    """Summary of the plan, the measurement and the next steps, one sentence each."""
    planned, here = answer.planned, "here" if answer.on is None else f"on {answer.on.host}"
    if planned.makespan_ms is not None and planned.best_single_ms is not None:
        yield (
            f"Planned for {answer.device}: {planned.makespan_ms:.2f} ms are predicted there, {planned.best_single_ms:.2f} ms for the original on "
            f"{planned.best_single_processor} alone; recommended: {planned.recommended}."
        )
    else:
        yield f"Planned for {answer.device}: the bundle states no predicted time."
    missing = [name for name, place in answer.processors.items() if place.stand_in]
    beside = "" if answer.best_sequential is None else f", the best sequential run {answer.best_sequential.median_ms:.2f} ms"
    stand_in = f"; {' and '.join(missing)} had a stand-in, so this says nothing of the speed on {answer.device}" if missing else ""
    yield f"Measured {here}: the bundle takes {answer.median_ms:.2f} ms{beside}{stand_in}."
    if missing:
        yield (
            f"For times on a phone, connect it and run `{command_line('run', answer.bundle, '--adb')}` with `--benchmark-model FILE`; for a Linux board, "
            f"`{command_line('run', answer.bundle, '--on', 'user@host')}`."
        )
    elif answer.winner == "sequential":
        yield f"To run the network fastest {here}, take the sequential network, not this bundle."
    else:
        yield f"`{command_line('run', answer.bundle, '--trace', 'FILE')}` writes a timeline of this run."


def simulation_page(answer: SimulateAnswer, latencies_ms: Sequence[float], first: Trace) -> Page:
    """The report of a simulation."""
    end = max([first.end_ns, *(span.end_ns for span in first.spans if span.kind != "load")])
    where = f" on {answer.device}" if answer.device else ""
    busy = Grid(
        f"Exchanges and joins take {answer.communication_ms:.2f} ms of an inference beside this",
        ("processor", "busy ms an inference", "share of the time"),
        [(name, f"{busy.ms:.2f}", f"{busy.share:.0%}") for name, busy in answer.busy.items()],
        right=(1, 2),
    )
    loads = [f"{load.share:.0%} of {load.processor} taken by others" for load in answer.busy_with_others]
    return Page(
        title=f"{answer.model}{where}, simulated",
        lead=[
            f"{answer.runs} inferences{', with ' if loads else ''}{', '.join(loads)}: median {answer.p50_ms:.2f} ms, {answer.makespan_ms:.2f} ms "
            f"where nothing disturbs. Nothing was measured; {times_of(answer)}."
        ],
        facts=_simulation_facts(answer),
        sections=[
            Section("latencies", "Latencies", (), _latencies(answer, latencies_ms)),
            Section("when", "The first inference", (), [_inference("simulated", f"The first inference{where}, simulated", first, end)]),
            Section("busy", "Processors", (), [busy]),
            *([Section("decisions", "Which plan was run when", (), _decisions(answer))] if len(answer.plans) > 1 else []),
            *([Section("beside", "Bundles of others", (), [_beside(answer)])] if answer.beside else []),
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
    """Where the times are from, as the end of a sentence."""
    if not answer.bundle.is_dir():
        return f"times are the table's, links and contention those of {answer.device}" if answer.device else "times are the table's"
    return f"the profile of {answer.device} is {'fitted' if answer.calibrated else 'not fitted'} to measurements"


def _simulation_facts(answer: SimulateAnswer) -> list[Fact]:
    at_once = "one at a time" if answer.in_flight == 1 else f"up to {answer.in_flight} at once"
    facts = [
        Fact("undisturbed", f"{answer.makespan_ms:.2f} ms"),
        Fact("median", f"{answer.p50_ms:.2f} ms"),
        Fact("p90", f"{answer.p90_ms:.2f} ms"),
        Fact("p99", f"{answer.p99_ms:.2f} ms"),
        Fact("inferences a second", f"{answer.per_second:.1f}", f"{answer.runs} in {answer.elapsed_ms:.2f} ms, {at_once}"),
    ]
    if answer.deadline_ms is not None:
        facts.append(Fact("deadlines missed", f"{answer.missed} of {answer.runs}", f"deadline {answer.deadline_ms:g} ms"))
    if answer.admission is not None:
        held, factor = answer.admission.holds, f"; {answer.admission.factor:.2f} times all rates is held"
        facts.append(Fact(f"rates {'can' if held else 'cannot'} be held", answer.admission.reason + ("" if held else factor)))
    if answer.energy_mj is not None:
        facts.append(Fact("energy", f"{answer.energy_mj:.2f} mJ", "of the processors, an inference"))
    return facts


def _latencies(answer: SimulateAnswer, latencies_ms: Sequence[float]) -> list[Chart]:
    step = max(1, -(-len(latencies_ms) // _POINTS))
    words = f"From {min(latencies_ms):.2f} to {max(latencies_ms):.2f} ms."
    every = "" if step == 1 else f" One in {step} inferences is drawn."
    marks = {"undisturbed": answer.makespan_ms, "median": answer.p50_ms, "p99": answer.p99_ms}
    return [
        over_time("course", "One inference after another", words + every, latencies_ms[::step], "latency, ms"),
        *([histogram("spread", "How often", words, latencies_ms, marks, "latency, ms")] if len(latencies_ms) > 1 else []),
    ]


def _decisions(answer: SimulateAnswer) -> list[Grid]:
    """The plans to choose among, and when which was chosen."""
    plans = [(plan.bundle, f"{plan.makespan_ms:.2f}", str(plan.inferences)) for plan in answer.plans]
    rows = [(f"{d.inference}", f"{d.at_ms:.1f}", d.kind, d.after, d.reason) for d in answer.decisions]
    titles = ("after inference", "at, ms", "what", "then runs", "why")
    return [
        Grid("Plans to choose among", ("bundle", "undisturbed, ms", "inferences"), plans, right=(1, 2)),
        Grid("Decisions", titles, rows, right=(1,), folded=len(rows) > 20),
    ]


def _beside(answer: SimulateAnswer) -> Grid:
    rows = []
    for bundle in answer.beside:
        times = [_ms(ms, 2) for ms in (bundle.makespan_ms, bundle.p50_ms, bundle.p90_ms, bundle.p99_ms)]
        missed = "" if bundle.deadline_ms is None else f"{bundle.missed} of {bundle.deadline_ms:g} ms"
        rows.append((str(bundle.bundle), bundle.arrivals or "as soon as it can", str(bundle.inferences), *times, missed))
    titles = ("bundle", "asked for", "inferences", "undisturbed, ms", "median", "p90", "p99", "deadlines missed")
    return Grid("What shared the processors", titles, rows, right=(2, 3, 4, 5, 6, 7))


def _heat(answer: SimulateAnswer) -> str:
    heat = answer.heat
    assert heat is not None
    return (
        f"From {heat.start_c:.1f} to {heat.end_c:.1f} °C, at most {heat.hottest_c:.1f} ({heat.source}); throttled {heat.throttled:.0%} of the time, "
        f"to {heat.slowest:g} of the speed. Median of the first tenth of the inferences {heat.first_tenth_ms:.2f} ms, of the last {heat.last_tenth_ms:.2f} ms."
    )


def explanation_page(explanation: Explanation) -> Page:
    """The report of a bundle."""
    lead = []
    for name, place in explanation.processors.items():
        cores = f" on core {'+'.join(map(str, place.cores))}, {place.dispatch}" if place.cores else ""
        lead.append(f"{name}: {place.delegate}{cores}; {place.reason}")
    ops = [(op.name, op.op, op.subgraph, op.delegate or "", _ms(op.ms, 3), op.reason) for op in explanation.ops]
    titles = ("operator", "kind", "subgraph", "delegate", f"ms on {explanation.device}", "why")
    subgraphs = [(sub.name, sub.processor, f"{sub.macs:,}", _ms(sub.planned_ms, 2), _ms(sub.ms, 2)) for sub in explanation.subgraphs]
    sums = ("subgraph", "processor", "MACs", "planned ms", f"ms on {explanation.device}")
    return Page(
        title=f"{explanation.bundle} on {explanation.device}",
        lead=lead,
        sections=[
            Section("operators", "Operators", (), [Grid("Where each operator runs", titles, ops, right=(4,))]),
            Section("subgraphs", "Subgraphs", (), [Grid("What each subgraph costs", sums, subgraphs, right=(2, 3, 4))]),
        ],
        warnings=explanation.warnings,
        brief=explanation_brief(explanation),
    )


def _ms(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
