"""The report of a model without a feasible design: reasons, limits to relax, and the latency of the original."""

from collections.abc import Mapping

from predictors.errors import InfeasibleError
from predictors.models.base import ORIGINS
from stretch.planning.sentences import Mention, as_flag
from stretch.report.html.charts import Interval, intervals
from stretch.report.html.page import Fact, Grid, Page, Section
from stretch.stages.predict import PredictedLatency


def refusal_page(model: str, device: str, error: InfeasibleError, alone: Mapping[str, PredictedLatency], command: str = "") -> Page:
    """The page of a refusal.

    Args:
        alone: The original on each processor, the prediction; empty where that is not known.
    """
    sections = []
    if error.rules:
        rows = [
            (as_flag(Mention(rule.rule)), _shown(rule.value), "none found" if rule.nearest is None else _shown(rule.nearest))
            for rule in error.rules
        ]
        sections.append(
            Section(
                "limits",
                "What stands in the way",
                ["These limits together leave no design. The nearest value that leaves one stands beside each."],
                [Grid("Limits that have to give way", ("limit", "asked for", "nearest with a design"), rows)],
            )
        )
    facts = []
    if alone:
        ranked = sorted(alone.items(), key=lambda item: item[1].latency_ms)
        name, best = ranked[0]
        facts = [
            Fact("run it on", name, f"{best.precision}, from {ORIGINS[best.origin]}"),
            Fact(
                "an inference there", f"{best.latency_ms:.2f} ms", f"{best.low_ms:.2f} to {best.high_ms:.2f} ms with a probability of 0.9"
            ),
        ]
        drawn = intervals(
            "alone",
            "The original on each processor, predicted, with 90 % intervals",
            f"{name} is the fastest with {best.latency_ms:.2f} ms.",
            [
                Interval(f"{processor}, {row.precision}", row.latency_ms, row.low_ms, row.high_ms, strong=processor == name)
                for processor, row in ranked
            ],
            "ms",
        )
        sections.append(
            Section("alone", "As it is", ["The original is not changed: this is what it takes on one processor at a time."], [drawn])
        )
    return Page(
        title=f"{model} on {device}: no branches",
        lead=[f"{_sentence(error.message)}", *([_sentence(error.hint)] if error.hint else [])],
        facts=facts,
        sections=sections,
        made_from=[("command", command)] if command else [],
        refused=True,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
