"""What is compared, as plain data: JSON, the terminal's table and the page all read these structs, whose fields are the JSON's keys."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from scheduler.bundle.load import Bundle
from stretch.planning.result import PlanAnswer

#: Where a row came from.
Kind = Literal["bundle", "plan", "design of a search", "run", "refused"]


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thing beside others; what its source does not say is None."""

    name: str  # By which people tell it from the others.
    kind: Kind  # Where it came from.
    source: str = "predicted"  # Of `ms`: ``predicted`` or ``measured``.
    model: str  # The network.
    device: str  # That it was planned for.
    processors: list[str] = []  # That have work.
    ms: float | None = None  # An inference.
    low_ms: float | None = None  # Lower end of the 90 % interval; of a run its median.
    high_ms: float | None = None  # Upper end; of a run its 90th percentile.
    best_single_ms: float | None = None  # The original on the best single processor; of a run on the cores that served it best.
    speedup: float | None = None  # That over `ms`.
    sequential_same_macs_ms: float | None = None  # A plain network of the same multiply-accumulates.
    speedup_over_sequential: float | None = None  # That over `ms`.
    macs: int | None = None  # Multiply-accumulates.
    macs_ratio: float | None = None  # Over the original's.
    params: int | None = None  # Learned numbers.
    n_meet: int | None = None  # Meeting points.
    exact: bool | None = None  # Whether it computes what the original computes.
    agreement: float | None = None  # Share of images in the original's class; measured, or of a search predicted.
    probability: float | None = None  # That it is faster than all that it was compared with.
    recommended: str | None = None  # What to run.
    reason: str | None = None  # Why there is no design; None where there is one.


class CompareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in the order in which they were asked for."""

    rows: list[ComparedRow]  # The rows.
    warnings: list[str]  # What must be known before they are compared.


def bundle_row(name: str, bundle: Bundle) -> ComparedRow:
    """A bundle by what its manifest states."""
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
    """A plan."""
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
    """A model without a design."""
    return ComparedRow(name=name, kind="refused", model=model, device=device, reason=reason)


def warnings_of(rows: Sequence[ComparedRow]) -> list[str]:
    """What must be known before rows are compared."""
    warnings = []
    timed = [row for row in rows if row.ms is not None]
    if len({row.source for row in timed}) > 1:
        warnings.append("some times were predicted for a device and others measured on a machine: they do not compare with each other")
    if len({row.device for row in timed if row.source == "predicted"}) > 1:
        warnings.append("rows are of several devices: compare their speed-ups rather than their times")
    if len({row.model for row in timed}) > 1:
        warnings.append("rows are of several networks: the faster one may compute less, see its multiply-accumulates")
    warnings += [f"{row.name}: {row.reason}" for row in rows if row.reason is not None]
    return warnings


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
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other
