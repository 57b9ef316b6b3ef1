"""The report of `stretch simulate`: a bundle simulated on its device."""

from collections.abc import Sequence

from scheduler.runtime.trace import Trace
from scheduler.simulate.answer import SimulateAnswer
from stretch.report.html.charts import histogram, over_time, timeline
from stretch.report.html.page import Fact, Grid, Page, Section
from stretch.report.html.trace_bars import trace_bars

#: Points of a chart of inferences, at most.
_POINTS = 2000


def simulation_page(answer: SimulateAnswer, latencies_ms: Sequence[float], first: Trace, command: str = "") -> Page:
    """The page of a simulation."""
    return Page(
        title=f"{answer.model}{f' on {answer.device}' if answer.device else ''}, simulated",
        lead=_lead(answer),
        facts=_facts(answer),
        sections=[
            Section("latencies", "Latencies", (), _latencies(answer, latencies_ms)),
            Section("when", "The first inference", (), [_first(answer, first)]),
            Section("busy", "Processors", (), [_busy(answer)]),
            *([Section("decisions", "Which plan was run when", (), [_plans(answer), _decisions(answer)])] if len(answer.plans) > 1 else []),
            *([Section("beside", "Bundles of others", (), [_beside(answer)])] if answer.beside else []),
            *([Section("heat", "Heat", [_heat(answer)])] if answer.heat is not None else []),
        ],
        warnings=answer.warnings,
        source=answer.source,
        made_from=[
            *([("command", command)] if command else []),
            ("bundle" if answer.bundle.is_dir() else "table of steps", str(answer.bundle)),
            ("planned for", answer.planned_for or "no device"),
            ("seed", str(answer.seed)),
        ],
    )


def times_of(answer: SimulateAnswer) -> str:
    """Where the times are from, as the end of a sentence."""
    if not answer.bundle.is_dir():
        return f"times are the table's, links and contention those of {answer.device}" if answer.device else "times are the table's"
    return f"the profile of {answer.device} is {'fitted' if answer.calibrated else 'not fitted'} to measurements"


def _lead(answer: SimulateAnswer) -> list[str]:
    whose = times_of(answer)
    loads = [f"{load.share:.0%} of {load.processor} taken by others" for load in answer.busy_with_others]
    disturbed = f", with {', '.join(loads)}" if loads else ""
    return [
        f"{answer.runs} inferences{disturbed}: median {answer.p50_ms:.2f} ms, {answer.makespan_ms:.2f} ms where nothing disturbs. Nothing was measured; {whose}."
    ]


def _facts(answer: SimulateAnswer) -> list[Fact]:
    facts = [
        Fact("median", f"{answer.p50_ms:.2f} ms", f"undisturbed {answer.makespan_ms:.2f} ms"),
        Fact("p90", f"{answer.p90_ms:.2f} ms"),
        Fact("p99", f"{answer.p99_ms:.2f} ms"),
        Fact("inferences a second", f"{answer.per_second:.1f}", f"{answer.in_flight} at once" if answer.in_flight > 1 else "one at a time"),
    ]
    if answer.deadline_ms is not None:
        facts.append(Fact("deadlines missed", f"{answer.missed} of {answer.runs}", f"deadline {answer.deadline_ms:g} ms"))
    if answer.energy_mj is not None:
        facts.append(Fact("energy", f"{answer.energy_mj:.2f} mJ", "of the processors, an inference"))
    return facts


def _latencies(answer: SimulateAnswer, latencies_ms: Sequence[float]) -> list[object]:
    step = max(1, -(-len(latencies_ms) // _POINTS))
    words = f"From {min(latencies_ms):.2f} to {max(latencies_ms):.2f} ms."
    every = "" if step == 1 else f" One in {step} inferences is drawn."
    marks = {"undisturbed": answer.makespan_ms, "median": answer.p50_ms, "p99": answer.p99_ms}
    return [
        over_time("course", "One inference after another", words + every, latencies_ms[::step], "latency, ms"),
        *([histogram("spread", "How often", words, latencies_ms, marks, "latency, ms")] if len(latencies_ms) > 1 else []),
    ]


def _first(answer: SimulateAnswer, first: Trace) -> object:
    busy = ", ".join(f"{name} computes for {ms:.2f} ms" for name, ms in first.busy_ms().items())
    end = max([first.end_ns, *(span.end_ns for span in first.spans if span.kind != "load")])
    bars = [bar for bar in trace_bars(first) if bar.start_ms < (end - first.start_ns) / 1e6]
    return timeline(
        "first",
        f"The first inference on {answer.device}, simulated" if answer.device else "The first inference, simulated",
        f"{busy} of {first.makespan_ms:.2f} ms.",
        {"simulated": bars},
        (end - first.start_ns) / 1e6,
    )


def _busy(answer: SimulateAnswer) -> Grid:
    rows = [(name, f"{busy.ms:.2f}", f"{busy.share:.0%}") for name, busy in answer.busy.items()]
    return Grid(
        f"Exchanges and joins take {answer.communication_ms:.2f} ms of an inference beside this",
        ("processor", "busy ms an inference", "share of the time"),
        rows,
        right=(1, 2),
    )


def _plans(answer: SimulateAnswer) -> Grid:
    return Grid(
        "Plans to choose among",
        ("bundle", "undisturbed, ms", "inferences"),
        [(plan.bundle, f"{plan.makespan_ms:.2f}", str(plan.inferences)) for plan in answer.plans],
        right=(1, 2),
    )


def _decisions(answer: SimulateAnswer) -> Grid:
    rows = [
        (f"{decision.inference}", f"{decision.at_ms:.1f}", decision.kind, decision.after, decision.reason) for decision in answer.decisions
    ]
    return Grid("Decisions", ("after inference", "at, ms", "what", "then runs", "why"), rows, right=(1,), folded=len(rows) > 20)


def _beside(answer: SimulateAnswer) -> Grid:
    rows = [
        (
            str(bundle.bundle),
            bundle.arrivals or "as soon as it can",
            str(bundle.inferences),
            f"{bundle.makespan_ms:.2f}",
            *("" if ms is None else f"{ms:.2f}" for ms in (bundle.p50_ms, bundle.p90_ms, bundle.p99_ms)),
        )
        for bundle in answer.beside
    ]
    return Grid(
        "What shared the processors",
        ("bundle", "asked for", "inferences", "undisturbed, ms", "median", "p90", "p99"),
        rows,
        right=(2, 3, 4, 5, 6),
    )


def _heat(answer: SimulateAnswer) -> str:
    heat = answer.heat
    assert heat is not None
    return (
        f"From {heat.start_c:.1f} to {heat.end_c:.1f} °C, at most {heat.hottest_c:.1f} ({heat.source}); throttled {heat.throttled:.0%} of the time, "
        f"to {heat.slowest:g} of the speed. Median of the first tenth of the inferences {heat.first_tenth_ms:.2f} ms, of the last {heat.last_tenth_ms:.2f} ms."
    )
