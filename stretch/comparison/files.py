"""Results that a verb printed with `--json`, read again; the files are not trusted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from predictors.errors import StretchError
from stretch.comparison.rows import ComparedRow

#: A result is not larger than this, bytes.
_LARGEST = 64 << 20

_Ms = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _Agreement(msgspec.Struct):
    value: _Share | None = None


class _Accuracy(msgspec.Struct):
    agreement: _Share | None = None


class _Predicted(msgspec.Struct):
    makespan_ms: _Ms
    makespan_low_ms: _Ms
    makespan_high_ms: _Ms
    best_single_ms: _Ms
    sequential_same_macs_ms: _Ms | None
    probability_faster: dict[str, _Share]


class _Branch(msgspec.Struct):
    processor: _Name


class _Segment(msgspec.Struct):
    branches: list[_Branch]


class _Plan(msgspec.Struct):
    model: _Name
    device: _Name
    segments: list[_Segment]
    predicted: _Predicted
    macs: _Count
    macs_ratio: _Ratio
    params: _Count
    n_meet: _Count
    exact: bool
    recommended: str
    agreement: _Agreement | None = None


class _Design(msgspec.Struct):
    segments: list[_Segment]


class _FrontDesign(msgspec.Struct):
    name: _Name
    predicted_ms: _Ms
    speedup: _Ratio
    speedup_over_sequential: _Ratio | None
    macs: _Count
    macs_ratio: _Ratio
    params: _Count
    n_meet: _Count
    exact: bool
    design: _Design
    accuracy: _Accuracy | None = None


class _Front(msgspec.Struct):
    model: _Name
    device: _Name
    designs: Annotated[list[_FrontDesign], msgspec.Meta(min_length=1, max_length=1000)]
    best_single_ms: _Ms
    sequential_same_macs_ms: _Ms | None


class _Timing(msgspec.Struct):
    median_ms: _Ms


class _Run(msgspec.Struct):
    model: _Name
    device: _Name
    median_ms: _Ms
    p90_ms: _Ms
    sequential: _Timing | None
    sequential_same_macs: _Timing | None
    macs_ratio: _Ratio | None
    processors: dict[str, Any]


def rows_of_file(path: Path) -> Sequence[ComparedRow]:
    """The rows of a file with what `stretch branch`, `search` or `run` printed with `--json`."""
    hint = "give a file with what `stretch branch`, `search` or `run` prints with --json, a bundle's folder, or a model with --device"
    try:
        if path.stat().st_size > _LARGEST:
            raise StretchError(f"{path} is too large for a result: more than {_LARGEST >> 20} MiB", hint)
        data = path.read_bytes()
    except OSError as error:
        raise StretchError(f"cannot read {path}: {error.strerror}", hint) from error
    try:
        keys = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).keys()
        if {"designs", "pareto"} <= keys:
            return _front(path, msgspec.json.decode(data, type=_Front))
        if {"segments", "predicted"} <= keys:
            return [_plan(path, msgspec.json.decode(data, type=_Plan))]
        if {"median_ms", "subgraphs_alone_ms"} <= keys:
            return [_run(path, msgspec.json.decode(data, type=_Run))]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"{path} is no result: {(str(error).splitlines() or ['it cannot be read'])[0]}", hint) from error
    raise StretchError(f"{path} is no result of `stretch branch`, `search` or `run`", hint)


def _front(path: Path, front: _Front) -> list[ComparedRow]:
    return [
        ComparedRow(
            name=f"{path.stem} {row.name}",
            kind="design of a search",
            model=front.model,
            device=front.device,
            processors=_processors(row.design.segments),
            ms=row.predicted_ms,
            best_single_ms=front.best_single_ms,
            speedup=row.speedup,
            sequential_same_macs_ms=front.sequential_same_macs_ms,
            speedup_over_sequential=row.speedup_over_sequential,
            macs=row.macs,
            macs_ratio=row.macs_ratio,
            params=row.params,
            n_meet=row.n_meet,
            exact=row.exact,
            agreement=None if row.accuracy is None else row.accuracy.agreement,
        )
        for row in front.designs
    ]


def _plan(path: Path, plan: _Plan) -> ComparedRow:
    predicted = plan.predicted
    sequential = predicted.sequential_same_macs_ms
    return ComparedRow(
        name=path.stem,
        kind="plan",
        model=plan.model,
        device=plan.device,
        processors=_processors(plan.segments),
        ms=predicted.makespan_ms,
        low_ms=predicted.makespan_low_ms,
        high_ms=predicted.makespan_high_ms,
        best_single_ms=predicted.best_single_ms,
        speedup=predicted.best_single_ms / predicted.makespan_ms,
        sequential_same_macs_ms=sequential,
        speedup_over_sequential=None if sequential is None else sequential / predicted.makespan_ms,
        macs=plan.macs,
        macs_ratio=plan.macs_ratio,
        params=plan.params,
        n_meet=plan.n_meet,
        exact=plan.exact,
        agreement=None if plan.agreement is None else plan.agreement.value,
        probability=predicted.probability_faster.get("all"),
        recommended=plan.recommended,
    )


def _run(path: Path, run: _Run) -> ComparedRow:
    single = None if run.sequential is None else run.sequential.median_ms
    same = None if run.sequential_same_macs is None else run.sequential_same_macs.median_ms
    return ComparedRow(
        name=path.stem,
        kind="run",
        source="measured",
        model=run.model,
        device=run.device,
        processors=list(run.processors),
        ms=run.median_ms,
        low_ms=run.median_ms,
        high_ms=run.p90_ms,
        best_single_ms=single,
        speedup=None if single is None else single / run.median_ms,
        sequential_same_macs_ms=same,
        speedup_over_sequential=None if same is None else same / run.median_ms,
        macs_ratio=run.macs_ratio,
    )


def _processors(segments: Sequence[_Segment]) -> list[str]:
    return list(dict.fromkeys(branch.processor for segment in segments for branch in segment.branches))
