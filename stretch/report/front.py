"""Reports of `stretch search`: designs of a network, or of two networks that run concurrently."""

from typing import TYPE_CHECKING

from predictors.errors import StretchError, install_line
from stretch.planning.cost.accuracy import PredictedAccuracy
from stretch.planning.pareto import FrontAnswer, FrontDesign
from stretch.report.brief import front_brief, ratio
from stretch.report.html.page import Chart, Fact, Grid, Page, Section
from stretch.report.plan import exact_words
from stretch.stages.together import TogetherAnswer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Headings of additional columns, by objective.
TITLES = {"agreement": "agreement", "accuracy": "top-1", "energy": "mJ"}
#: Axis labels.
AXES = {
    "latency": "predicted ms",
    "agreement": "predicted share of images in the original's class",
    "accuracy": "predicted top-1",
    "macs": "MACs over the original's",
    "energy": "predicted mJ",
}


def value_of(row: FrontDesign, name: str) -> float:
    """Return a design's value in an objective, in display units."""
    accuracy = row.accuracy
    values = {"latency": row.predicted_ms, "macs": row.macs_ratio, "energy": row.energy_mj}
    if accuracy is not None:
        values |= {"agreement": accuracy.agreement, "accuracy": accuracy.top1}
    value = values[name]
    assert value is not None
    return value


def front_page(answer: FrontAnswer) -> Page:
    """Return the report of a search."""
    sections = []
    if len(answer.pareto) > 1:
        first, last = answer.designs[0], answer.designs[-1]
        parts = [f"{AXES[name]} from {value_of(first, name):.4g} to {value_of(last, name):.4g}" for name in answer.pareto]
        words = f"From design {first.name} to design {last.name}: {', '.join(parts)}."
        drawn = Chart("front", "Designs by objective", words, lambda: front_figure(answer))
        sections.append(Section("front", "The front", (), [drawn]))
    sections.append(Section("designs", "Designs", (), [_designs(answer)]))
    return Page(
        title=f"Designs of {answer.model} on {answer.device}",
        facts=_facts(answer),
        sections=sections,
        warnings=answer.warnings,
        source=answer.source,
        made_from=[("seconds", ", ".join(f"{name} {seconds:.2f}" for name, seconds in answer.seconds.items()))],
        brief=front_brief(answer),
    )


def _facts(answer: FrontAnswer) -> list[Fact]:
    facts = [Fact("processors", ", ".join(answer.processors))]
    exact = [row for row in answer.designs if row.exact]
    if exact:
        best = min(exact, key=lambda row: row.predicted_ms)
        words = f"design {best.name}, {ratio(best.speedup)}; {exact_words(answer.rounding)}"
        facts.append(Fact("fastest with unchanged output", f"{best.predicted_ms:.2f} ms", words))
    if answer.sensitivity is not None:
        on = answer.sensitivity
        omission = "" if on.complete else "; not all segments were measured"
        words = f"compared on {on.held_back} others in {on.seconds:.0f} s{omission}"
        facts.append(Fact("agreement predicted from single segments", f"calibrated on {on.images} images", words))
    proof = "every design is proved to be on the front" if answer.pareto else "proved to be the best"
    gap = f"at most {answer.gap:.2%} from the best" if answer.gap is not None else "how far from the best is not known"
    size = f"10^{answer.space_log10:.1f} designs, {answer.evaluated} ways to run segments timed"
    return [*facts, Fact("proof", "yes" if answer.optimal else "no", proof if answer.optimal else gap), Fact("searched", size)]


def _designs(answer: FrontAnswer) -> Grid:
    objectives = [name for name in answer.pareto if name in TITLES]
    best_in = [] if answer.objective in (None, "latency") else [answer.objective]
    numbers = ["predicted ms", "speed-up", "over sequential", "MACs", "meeting points", *best_in, *[TITLES[name] for name in objectives]]
    rows = [
        (
            row.name,
            f"{row.predicted_ms:.2f}",
            ratio(row.speedup),
            "none" if row.speedup_over_sequential is None else ratio(row.speedup_over_sequential),
            f"{row.macs_ratio:.1%}",
            str(row.n_meet),
            *["" if row.value is None else f"{row.value:.4g}" for _ in best_in],
            *[f"{value_of(row, name):.4g}" if name == "energy" else _accuracy(row.accuracy) for name in objectives],
            f"unchanged, {exact_words(answer.rounding)}" if row.exact else "needs training",
            "; ".join(row.branches) or "none: one processor at a time",
        )
        for row in answer.designs
    ]
    titles = ("design", *numbers, "output", "branches")
    return Grid("Designs from the slowest to the fastest", titles, rows, right=range(1, 1 + len(numbers)))


def _accuracy(accuracy: PredictedAccuracy | None) -> str:
    if accuracy is None:
        return "not known"
    if accuracy.agreement is None:
        return f"{accuracy.top1:.2%}"
    if accuracy.low is None or accuracy.high is None or accuracy.low == accuracy.high:
        return f"{accuracy.agreement:.1%}"
    return f"{accuracy.agreement:.1%} ({accuracy.low:.1%} to {accuracy.high:.1%})"


def together_page(answer: TogetherAnswer) -> Page:
    """Return the report of a pair of networks: both designs, their concurrent run and its baselines."""
    mapping = ", ".join(f"{row.model} on {processor}" for row, processor in zip(answer.designs, answer.fixed, strict=True))
    rows = [
        (
            row.model,
            ", ".join(row.processors),
            *(f"{ms:.2f}" for ms in (row.latency_ms, row.alone_ms, row.best_alone_ms)),
            "; ".join(row.branches) or "none: one processor at a time",
        )
        for row in answer.designs
    ]
    titles = ("network", "processors", "ms together", "ms alone", "best alone", "branches")
    facts = [
        Fact("one inference of each, started together", f"{answer.makespan_ms:.2f} ms until both have ended"),
        Fact("one after the other, each on its best candidate", f"{answer.sequential_ms:.2f} ms"),
        Fact(f"best mapping of whole networks, {mapping}", f"{answer.fixed_ms:.2f} ms"),
    ]
    if answer.pairs_per_second is not None:
        facts.append(Fact("of each per second", f"{answer.pairs_per_second:.1f}", f"by that mapping {answer.fixed_per_second:.1f}"))
    return Page(
        title=f"{' and '.join(row.model for row in answer.designs)} together on {answer.device}",
        lead=[
            f"The best pair in {answer.goal} is {ratio(answer.speedup_over_sequential)} faster than one network after the other and "
            f"{ratio(answer.speedup_over_fixed)} against the best mapping, of {answer.candidates[0]} × {answer.candidates[1]} simulated candidates."
        ],
        facts=facts,
        sections=[Section("designs", "Designs", (), [Grid("Both networks", titles, rows, right=(2, 3, 4))])],
        warnings=answer.warnings,
        source=answer.source,
    )


def front_figure(answer: FrontAnswer) -> "Figure":
    """Return a plot of the designs in both criteria, with intervals."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise StretchError("pictures of fronts need matplotlib", install_line("plot")) from error
    across, against = sorted(answer.pareto, key=list(AXES).index)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    times = [value_of(row, across) for row in answer.designs]
    values = [value_of(row, against) for row in answer.designs]
    intervals = [(row.accuracy.low, row.accuracy.high) if row.accuracy else (None, None) for row in answer.designs]
    low, high = ([value if end is None else end for value, end in zip(values, ends, strict=True)] for ends in zip(*intervals, strict=True))
    axes.step(times, values, where="post", color="#bbbbbb", zorder=1)
    if against in ("agreement", "accuracy"):
        axes.vlines(times, low, high, color="#1f5fa8", zorder=2)
    for exact, colour, label in ((True, "#1a1a1a", "output unchanged in fp32"), (False, "#1f5fa8", "stretched")):
        indices = [i for i, row in enumerate(answer.designs) if row.exact == exact]
        if indices:
            axes.scatter([times[i] for i in indices], [values[i] for i in indices], color=colour, label=label, zorder=3)
    timed = across == "latency"
    if timed:
        single = f"best single processor ({answer.best_single_processor})"
        axes.axvline(answer.best_single_ms, color="#b3541e", linestyle="--", label=single)
    if timed and answer.sequential_same_macs_ms is not None:
        axes.axvline(answer.sequential_same_macs_ms, color="#b3541e", linestyle=":", label="sequential network, same MACs")
    for row, x, y in zip(answer.designs, times, values, strict=True):
        axes.annotate(row.name, (x, y), textcoords="offset points", xytext=(5, 5), fontsize="small")
    axes.set(xlabel=AXES[across], ylabel=AXES[against])
    axes.set_title(f"{answer.model} on {', '.join(answer.processors)} of {answer.device}")
    axes.legend(fontsize="small")
    axes.grid(visible=True, alpha=0.2)
    return figure
