"""What is compared, as plain data: JSON, the terminal's table and the page all read these structs, whose fields are the JSON's keys."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from scheduler.bundle.load import Bundle
from stretch.planning.answer import PlanAnswer

#: Where a row came from.
Kind = Literal["bundle", "plan", "design of a search", "run", "refused"]


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thing beside others; what its source does not say is None.

    Args:
        name: By which people tell it from the others.
        kind: Where it came from.
        source: Of `ms`: ``predicted`` or ``measured``.
        model: The network.
        device: That it was planned for.
        processors: That have work.
        ms: An inference.
        low_ms: Lower end of the 90 % interval; of a run its median.
        high_ms: Upper end; of a run its 90th percentile.
        best_single_ms: The original on the best single processor; of a run on the cores that served it best.
        speedup: That over `ms`.
        sequential_same_macs_ms: A plain network of the same multiply-accumulates.
        speedup_over_sequential: That over `ms`.
        macs: Multiply-accumulates.
        macs_ratio: Over the original's.
        params: Learned numbers.
        n_meet: Meeting points.
        exact: Whether it computes what the original computes.
        agreement: Share of images in the original's class; measured, or of a search predicted.
        probability: That it is faster than all that it was compared with.
        recommended: What to run.
        reason: Why there is no design; None where there is one.
    """

    name: str
    kind: Kind
    source: str = "predicted"
    model: str
    device: str
    processors: list[str] = []
    ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    best_single_ms: float | None = None
    speedup: float | None = None
    sequential_same_macs_ms: float | None = None
    speedup_over_sequential: float | None = None
    macs: int | None = None
    macs_ratio: float | None = None
    params: int | None = None
    n_meet: int | None = None
    exact: bool | None = None
    agreement: float | None = None
    probability: float | None = None
    recommended: str | None = None
    reason: str | None = None


class CompareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in the order in which they were asked for.

    Args:
        rows: The rows.
        warnings: What must be known before they are compared.
    """

    rows: list[ComparedRow]
    warnings: list[str]


def bundle_row(name: str, bundle: Bundle) -> ComparedRow:
    """A bundle by what its manifest states.

    Args:
        name: Of the row.
        bundle: The bundle.
    """
    manifest, predicted = bundle.manifest, bundle.manifest.predicted
    segments = manifest.design.get("segments", [])
    return ComparedRow(
        name=name,
        kind="bundle",
        model=manifest.model.name,
        device=manifest.device,
        processors=list(dict.fromkeys(entry.processor for entry in manifest.subgraphs)),
        macs=manifest.model.macs,
        macs_ratio=_over(manifest.model.macs, manifest.model.original_macs),
        params=manifest.model.params,
        n_meet=sum(len(segment["branches"]) > 1 for segment in segments),
        agreement=None if manifest.agreement is None else manifest.agreement.value,
        recommended=manifest.recommended,
        **_predicted(predicted),
    )


def plan_row(name: str, plan: PlanAnswer, agreement: float | None = None) -> ComparedRow:
    """A plan.

    Args:
        name: Of the row.
        plan: The planner's answer.
        agreement: Measured, where it was.
    """
    return ComparedRow(
        name=name,
        kind="plan",
        model=plan.model,
        device=plan.device,
        processors=list(dict.fromkeys(branch.processor for segment in plan.segments for branch in segment.branches)),
        macs=plan.macs,
        macs_ratio=plan.macs_ratio,
        params=plan.params,
        n_meet=plan.n_meet,
        exact=plan.exact,
        agreement=agreement,
        recommended=plan.recommended,
        **_predicted(plan.predicted.to_json()),
    )


def refused_row(name: str, model: str, device: str, reason: str) -> ComparedRow:
    """A model without a design.

    Args:
        name: Of the row.
        model: The network.
        device: For which it was planned.
        reason: In a sentence.
    """
    return ComparedRow(name=name, kind="refused", model=model, device=device, reason=reason)


def warnings_of(rows: Sequence[ComparedRow]) -> list[str]:
    """What must be known before rows are compared."""
    found = []
    timed = [row for row in rows if row.ms is not None]
    if len({row.source for row in timed}) > 1:
        found.append("some times were predicted for a device and others measured on a machine: they do not compare with each other")
    if len({row.device for row in timed if row.source == "predicted"}) > 1:
        found.append("rows are of several devices: compare their speed-ups rather than their times")
    if len({row.model for row in timed}) > 1:
        found.append("rows are of several networks: the faster one may compute less, see its multiply-accumulates")
    found += [f"{row.name}: {row.reason}" for row in rows if row.reason is not None]
    return found


def _predicted(predicted: Mapping[str, Any]) -> dict[str, Any]:
    """The planner's figures that rows have, of any bundle whose manifest was checked; figures that it lacks are None."""
    ms, sequential = _number(predicted, "makespan_ms"), _number(predicted, "sequential_same_macs_ms")
    single = _number(predicted, "best_single_ms")
    probability = predicted.get("probability_faster")
    return {
        "ms": ms,
        "low_ms": _number(predicted, "makespan_low_ms"),
        "high_ms": _number(predicted, "makespan_high_ms"),
        "best_single_ms": single,
        "speedup": _over(single, ms),
        "sequential_same_macs_ms": sequential,
        "speedup_over_sequential": _over(sequential, ms),
        "probability": _number(probability, "all") if isinstance(probability, Mapping) else None,
    }


def _number(values: Mapping[str, Any], name: str) -> float | None:
    found = values.get(name)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other
