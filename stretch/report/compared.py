"""Rows of `stretch compare`: bundles, plans, and results that a verb printed with `--json`, whose files are untrusted."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from predictors.errors import StretchError
from scheduler.bundle.load import Bundle
from stretch.planning.result import PlanResult

#: Source of a row.
Kind = Literal["bundle", "plan", "design of a search", "run", "refused"]

#: Maximum size of a result file, bytes.
_LARGEST = 64 << 20

#: Maximum number of designs from a search.
_MAX_ROWS = 1000

_Ms = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]

_HINT = "give a file with what `stretch branch`, `search` or `run` prints with --json, a bundle's folder, or a model with --device"


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One compared bundle, plan, design of a search, or run; values that its source does not state are None."""

    name: _Name  # Unique name.
    kind: Kind  # Source of the row.
    source: str = "predicted"  # Source of `ms`: ``predicted`` or ``measured``.
    model: _Name  # Name of the network.
    device: _Name  # Device that it was planned for.
    processors: list[str] = []  # Processors with work.
    ms: _Ms | None = None  # Time of an inference.
    low_ms: _Ms | None = None  # Lower end of the 90 % interval; the median of a run.
    high_ms: _Ms | None = None  # Upper end; the 90th percentile of a run.
    best_single_ms: _Ms | None = None  # Time of the original on the best single processor; for a run, on its best cores.
    speedup: _Ratio | None = None  # `best_single_ms` over `ms`.
    sequential_same_macs_ms: _Ms | None = None  # Time of a sequential network with the same multiply-accumulates.
    speedup_over_sequential: _Ratio | None = None  # `sequential_same_macs_ms` over `ms`.
    macs: _Count | None = None  # Multiply-accumulates.
    macs_ratio: _Ratio | None = None  # Multiply-accumulates over the original's.
    params: _Count | None = None  # Number of parameters.
    n_meet: _Count | None = None  # Number of meeting points.
    exact: bool | None = None  # Whether it computes exactly the original's output.
    agreement: _Share | None = None  # Share of images with the original's class; measured, or predicted for a search.
    probability: _Share | None = None  # Probability that it is faster than all its baselines.
    recommended: str | None = None  # Recommendation.
    reason: str | None = None  # Reason for a missing design; None with a design.


class CompareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in the requested order."""

    rows: list[ComparedRow]  # The rows.
    warnings: list[str]  # Warnings to read before the comparison.


def bundle_row(name: str, bundle: Bundle) -> ComparedRow:
    """Return the row of a bundle, from its manifest."""
    manifest = bundle.manifest
    return ComparedRow(
        name=name,
        kind="bundle",
        model=manifest.model.name,
        device=manifest.device,
        processors=list(dict.fromkeys(entry.processor for entry in manifest.subgraphs)),
        macs=manifest.model.macs,
        macs_ratio=_over(manifest.model.macs, manifest.model.original_macs),
        params=manifest.model.params,
        n_meet=sum(len(segment["branches"]) > 1 for segment in manifest.design.get("segments", [])),
        agreement=None if manifest.agreement is None else manifest.agreement.value,
        recommended=manifest.recommended,
        **_planned_figures(manifest.predicted),
    )


def plan_row(name: str, plan: PlanResult) -> ComparedRow:
    """Return the row of a plan."""
    return msgspec.convert(_plan(name, plan.to_json()), ComparedRow)


def refused_row(name: str, model: str, device: str, reason: str) -> ComparedRow:
    """Return the row of a model without a design."""
    return ComparedRow(name=name, kind="refused", model=model, device=device, reason=reason)


def rows_of_file(path: Path) -> Sequence[ComparedRow]:
    """Return the rows of a file with the `--json` output of `stretch branch`, `search` or `run`."""
    try:
        if path.stat().st_size > _LARGEST:
            raise StretchError(f"{path} is too large for a result: more than {_LARGEST >> 20} MiB", _HINT)
        content = path.read_bytes()
    except OSError as error:
        raise StretchError(f"cannot read {path}: {error.strerror}", _HINT) from error
    try:
        data = msgspec.json.decode(content, type=dict[str, Any])
        rows = [msgspec.convert(row, ComparedRow) for row in _rows(path.stem, data)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise StretchError(f"{path} is no result: {(str(error).splitlines() or ['it cannot be read'])[0]}", _HINT) from error
    if not rows or any(row.ms is None for row in rows):
        raise StretchError(f"{path} is no result of `stretch branch`, `search` or `run`", _HINT)
    return rows


def _rows(name: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the unchecked rows of a verb's answer; none for an unknown verb."""
    if {"designs", "pareto"} <= data.keys():
        for design in data["designs"][:_MAX_ROWS]:
            yield {
                **_shared_values(data),
                **_shared_values(design),
                "name": f"{name} {design['name']}",
                "kind": "design of a search",
                "processors": _processors(design["design"]["segments"]),
                "ms": design["predicted_ms"],
                "agreement": (design.get("accuracy") or {}).get("agreement"),
                "recommended": None,
            }
    elif {"segments", "predicted"} <= data.keys():
        yield _plan(name, data)
    elif {"median_ms", "subgraphs_alone_ms"} <= data.keys():
        ms = _number(data, "median_ms")
        single, same = (_number(data[key] or {}, "median_ms") for key in ("sequential", "sequential_same_macs"))
        yield {
            **_shared_values(data),
            "name": name,
            "kind": "run",
            "source": "measured",
            "processors": list(data["processors"]),
            "ms": ms,
            "low_ms": ms,
            "high_ms": _number(data, "p90_ms"),
            "best_single_ms": single,
            "speedup": _over(single, ms),
            "sequential_same_macs_ms": same,
            "speedup_over_sequential": _over(same, ms),
        }


def _plan(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unchecked row of a plan."""
    agreement = (data.get("agreement") or {}).get("value")
    names = {"name": name, "kind": "plan", "processors": _processors(data["segments"]), "agreement": agreement}
    return {**_shared_values(data), **_planned_figures(data["predicted"]), **names}


#: Fields of rows that answers have under the same name.
_SHARED_COLUMNS = (
    "model", "device", "best_single_ms", "speedup", "sequential_same_macs_ms", "speedup_over_sequential", "macs", "macs_ratio", "params",
    "n_meet", "exact", "recommended",
)  # fmt: skip


def _shared_values(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in _SHARED_COLUMNS if name in data}


def _processors(segments: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(branch["processor"] for segment in segments for branch in segment["branches"]))


def warnings_of(rows: Sequence[ComparedRow]) -> list[str]:
    """Return warnings about rows that are not comparable."""
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


def _planned_figures(predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row from the `predicted` object of a plan or bundle; missing values are None."""
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


def _over(value: float | None, reference: float | None) -> float | None:
    return None if value is None or not reference else value / reference
