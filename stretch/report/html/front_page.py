"""The report of `stretch search`: a front, or the best design and others that differ."""

from stretch.planning.pareto import FrontAnswer, FrontDesignAnswer
from stretch.planning.result import exact_words
from stretch.report.front import AXES, TITLES, front_figure, value_of
from stretch.report.html.charts import chart
from stretch.report.html.page import Fact, Grid, Page, Section


def front_page(answer: FrontAnswer, command: str = "") -> Page:
    """The page of a search."""
    fastest = min(answer.designs, key=lambda row: row.predicted_ms)
    what = (
        f"a front of {' and '.join(AXES[name] for name in answer.pareto)}"
        if answer.pareto
        else f"the best design in {answer.objective} and others that differ from it"
    )
    count = f"{len(answer.designs)} designs" if len(answer.designs) != 1 else "One design"
    sections = []
    if len(answer.pareto) > 1:
        words = _seen(answer)
        sections.append(Section("front", "The front", (), [chart("front", "Designs by what is weighed", words, front_figure(answer))]))
    sections.append(Section("designs", "Designs", (), [_table(answer)]))
    return Page(
        title=f"Designs of {answer.model} on {answer.device}",
        lead=[
            f"{count}: {what}, over {', '.join(answer.processors)}.",
            f"The fastest is predicted to take {fastest.predicted_ms:.2f} ms, {fastest.speedup:.2f} times as fast as the original on {answer.best_single_processor}, with {fastest.macs_ratio:.3f} of its multiply-accumulates.",
        ],
        facts=_facts(answer, fastest),
        sections=sections,
        warnings=answer.warnings,
        source=answer.source,
        made_from=[
            *([("command", command)] if command else []),
            ("designs searched", f"10^{answer.space_log10:.1f}, {answer.evaluated} ways to run segments timed"),
            ("seconds", ", ".join(f"{name} {seconds:.2f}" for name, seconds in answer.seconds.items())),
        ],
    )


def _facts(answer: FrontAnswer, fastest: FrontDesignAnswer) -> list[Fact]:
    facts = [
        Fact("fastest design", f"{fastest.predicted_ms:.2f} ms", f"design {fastest.name}"),
        Fact(
            "against the best single processor",
            f"{fastest.speedup:.2f}×",
            f"{answer.best_single_processor} alone: {answer.best_single_ms:.2f} ms",
        ),
    ]
    if answer.sequential_same_macs_ms is not None:
        facts.append(
            Fact(
                "against a plain network of the same MACs",
                f"{answer.sequential_same_macs_ms / fastest.predicted_ms:.2f}×",
                f"{answer.sequential_same_macs_ms:.2f} ms on {answer.sequential_same_macs_processor}",
            )
        )
    exact = [row for row in answer.designs if row.exact]
    if exact:
        best = min(exact, key=lambda row: row.predicted_ms)
        facts.append(
            Fact(
                "fastest that computes the same",
                f"{best.predicted_ms:.2f} ms",
                f"design {best.name}, {best.speedup:.2f}×; {exact_words(answer.rounding)}",
            )
        )
    proof = "every design is proved to be on the front" if answer.pareto else "proved to be the best"
    facts.append(
        Fact(
            "proof",
            "yes" if answer.optimal else "no",
            proof
            if answer.optimal
            else (f"at most {answer.gap:.2%} from the best" if answer.gap is not None else "how far from the best is not known"),
        )
    )
    return facts


def _seen(answer: FrontAnswer) -> str:
    first, last = answer.designs[0], answer.designs[-1]
    parts = [f"{AXES[name]} from {value_of(first, name):.4g} to {value_of(last, name):.4g}" for name in answer.pareto]
    return f"From design {first.name} to design {last.name}: {', '.join(parts)}."


def _table(answer: FrontAnswer) -> Grid:
    more = [name for name in answer.pareto if name in TITLES]
    titles = [
        "design",
        "predicted ms",
        "speed-up",
        "over sequential",
        "MACs",
        "meeting points",
        *[TITLES[name] for name in more],
        "computes",
        "branches",
    ]
    rows = [
        (
            row.name,
            f"{row.predicted_ms:.2f}",
            f"{row.speedup:.2f}",
            "none" if row.speedup_over_sequential is None else f"{row.speedup_over_sequential:.2f}",
            f"{row.macs_ratio:.3f}",
            str(row.n_meet),
            *[f"{value_of(row, name):.4g}" for name in more],
            f"the same, {exact_words(answer.rounding)}" if row.exact else "another network",
            "; ".join(row.branches) or "none: one processor at a time",
        )
        for row in answer.designs
    ]
    return Grid("Designs from the slowest to the fastest", titles, rows, right=tuple(range(1, 6 + len(more))))
