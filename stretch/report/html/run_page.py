"""The report of `stretch run`: a bundle measured on this machine beside its controls."""

from collections.abc import Sequence

from scheduler.answer import RunAnswer, TimingAnswer
from scheduler.runtime.trace import Trace, typical
from stretch.report.html.charts import Chart, Interval, intervals, timeline
from stretch.report.html.page import Fact, Grid, Page, Section
from stretch.report.html.trace_bars import trace_bars


def run_page(answer: RunAnswer, traces: Sequence[Trace], predicted: Trace | None, command: str = "") -> Page:
    """The page of a run.

    Args:
        predicted: The run on the device as the plan expects it; None where the bundle or the profile does not say.
    """
    return Page(
        title=f"{answer.model}, planned for {answer.device}, on this machine",
        lead=[
            f"An inference takes {answer.median_ms:.2f} ms here (median of {answer.runs} rounds; nine of ten stay under {answer.p90_ms:.2f} ms).",
            answer.verdict,
        ],
        facts=_facts(answer),
        sections=[
            Section(
                "times",
                "Beside its controls",
                ["All took turns, round by round, on the same cores."],
                [_contestants(answer), _ratios(answer)],
            ),
            Section("when", "Timeline", _two(answer, predicted), _timelines(answer, traces, predicted)),
            Section("where", "Where the work ran", (), [_processors(answer)]),
            Section(
                "subgraphs",
                "Subgraphs alone",
                (),
                [
                    Grid(
                        "Each subgraph with everything else idle",
                        ("subgraph", "median, ms"),
                        [(name, f"{ms:.3f}") for name, ms in answer.subgraphs_alone_ms.items()],
                        right=(1,),
                        folded=True,
                    )
                ],
            ),
        ],
        warnings=[
            *answer.warnings,
            *[f"{name} was run by {place.delegate} here: {place.reason}" for name, place in answer.processors.items() if place.stand_in],
        ],
        source="measured" + (", one timeline predicted" if predicted is not None else ""),
        made_from=[
            *([("command", command)] if command else []),
            ("bundle", str(answer.bundle)),
            ("weights", answer.weights.source + (f" ({answer.weights.detail})" if answer.weights.detail else "")),
            ("rounds", f"{answer.runs} in {answer.seconds:.1f} s on cores {', '.join(map(str, answer.cores))}"),
        ],
    )


def _facts(answer: RunAnswer) -> list[Fact]:
    facts = [Fact("an inference", f"{answer.median_ms:.2f} ms", f"p90 {answer.p90_ms:.2f} ms, measured here")]
    for label, control in (
        ("against the best sequential run", answer.best_sequential),
        ("against the original", answer.sequential),
        ("against a plain network of the same MACs", answer.sequential_same_macs),
    ):
        if control is not None:
            facts.append(Fact(label, f"{control.median_ms / answer.median_ms:.2f}×", f"{control.name}: {control.median_ms:.2f} ms"))
    if answer.macs_ratio is not None:
        facts.append(Fact("multiply-accumulates", f"{answer.macs_ratio:.3f}", "of the original's"))
    if answer.efficiency is not None:
        facts.append(
            Fact(
                "efficiency",
                f"{answer.efficiency:.3f}",
                f"{answer.ideal_ms:.2f} ms if branches overlapped perfectly and meeting cost nothing",
            )
        )
    if answer.check is not None and answer.max_error is not None:
        facts.append(Fact("results", "right", f"the output differs by {answer.max_error:.1e} of its largest element"))
    if answer.energy_mj is not None:
        facts.append(Fact("energy", f"{answer.energy_mj:.3g} mJ", f"{answer.energy_counter}, with all else that it covers"))
    return facts


def _named(answer: RunAnswer) -> list[TimingAnswer]:
    return [timing for timing in (answer.sequential, answer.sequential_same_macs, *answer.others) if timing is not None]


def _contestants(answer: RunAnswer) -> Chart:
    rows = [Interval("branched", answer.median_ms, answer.median_ms, answer.p90_ms, strong=True)]
    rows += [Interval(timing.name, timing.median_ms, timing.median_ms, timing.p90_ms) for timing in _named(answer)]
    words = "; ".join(f"{row.label} {row.value:.2f} ms" for row in rows) + "."
    return intervals("contestants", "Median and 90th percentile, measured", words, rows, "ms")


def _ratios(answer: RunAnswer) -> Grid:
    rows = [
        (comparison.name, f"{comparison.ratio:.3f}", f"{comparison.low:.3f}", "" if comparison.high is None else f"{comparison.high:.3f}")
        for comparison in answer.comparisons
    ]
    return Grid(
        "Times of the controls over the branches' (above 1 the branches are faster)",
        ("control", "ratio of medians", "low", "high, 95 %"),
        rows,
        right=(1, 2, 3),
    )


def _two(answer: RunAnswer, predicted: Trace | None) -> list[str]:
    if predicted is None:
        return []
    return [
        f"The second timeline is what the plan expects on {answer.device}: {predicted.makespan_ms:.2f} ms. It says nothing of this machine."
    ]


def _timelines(answer: RunAnswer, traces: Sequence[Trace], predicted: Trace | None) -> list[Chart]:
    charts = []
    if traces:
        middle = typical(traces)
        busy = ", ".join(f"{name} computes for {ms:.2f} ms" for name, ms in middle.busy_ms().items())
        charts.append(
            timeline(
                "measured",
                "The inference in the middle of all by its time, measured here",
                f"{busy} of {middle.makespan_ms:.2f} ms.",
                {"measured": trace_bars(middle)},
                middle.makespan_ms,
            )
        )
    if predicted is not None:
        busy = ", ".join(f"{name} computes for {ms:.2f} ms" for name, ms in predicted.busy_ms().items())
        charts.append(
            timeline(
                "predicted",
                f"An inference on {answer.device}, predicted",
                f"{busy} of {predicted.makespan_ms:.2f} ms.",
                {"predicted": trace_bars(predicted)},
                predicted.makespan_ms,
            )
        )
    return charts


def _processors(answer: RunAnswer) -> Grid:
    rows = [
        (name, place.delegate, ", ".join(map(str, place.cores)), f"{place.busy_ms:.2f}", "yes" if place.stand_in else "no", place.reason)
        for name, place in answer.processors.items()
    ]
    return Grid(
        "Processors of the device, and what ran their work here",
        ("processor", "delegate", "cores", "busy, ms", "stands in", "why"),
        rows,
        right=(3,),
    )
