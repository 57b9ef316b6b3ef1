"""A manifest's statements beyond its graph: the design, the planner's figures and the checks of the export."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from predictors.joins import JoinKind, join_of
from scheduler.bundle.manifest import Manifest

_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]

_PRECISIONS = ("fp32", "fp16", "int8")

#: Keys of `checks` for the comparison of each file with torch; every other entry is a table.
_EXPORT_CHECKS = {"tolerance", "max_error", "errors", "reference"}

#: Key of `checks`: by tensor, the distance of torch's fp32 result from the one in float64, over the largest element.
ROUNDING = "rounding"

#: Maximum of these errors in a bundle: with a larger one, a wrong file could not be distinguished from a rounded one.
MAX_ROUNDING = 0.01

#: Maximum difference between a figure and its value computed from other figures.
_ROUNDING = 1e-3

#: Maximum nesting of lists and tables in a manifest's statements.
_MAX_DEPTH = 12


class _Branch(msgspec.Struct, frozen=True):
    """Fields of a branch that subgraphs must match; `stretch.planning.design.branch_design.BranchScale` has all fields."""

    processor: _Name
    depth: _Count
    width: _Count


class _StatedSegment(msgspec.Struct, frozen=True):
    """Fields of a segment that subgraphs and joins must match."""

    name: _Name
    branches: Annotated[tuple[_Branch, ...], msgspec.Meta(min_length=1)]
    join: JoinKind


class _StatedSide(msgspec.Struct, frozen=True):
    """A part in addition to the backbone."""

    name: _Name
    processor: _Name


class _Design(msgspec.Struct, frozen=True):
    """Fields of a design that the bundle's graph must match."""

    segments: tuple[_StatedSegment, ...]
    version: Literal[1]
    sides: tuple[_StatedSide, ...] = ()


def statement_problems(manifest: Manifest) -> Iterator[str]:
    """Yield impossible statements of a manifest about its bundle, one sentence each."""
    yield from _preprocessing_problems(manifest)
    yield from _design_problems(manifest)
    yield from _predicted_problems(manifest.predicted)
    yield from _check_problems(manifest)


def _preprocessing_problems(manifest: Manifest) -> Iterator[str]:
    stated, shape = manifest.model.preprocessing, manifest.model.input_shape
    if stated is not None and (problem := stated.problem(shape)):
        yield f"`model.preprocessing` {problem}"


def _design_problems(manifest: Manifest) -> Iterator[str]:
    try:
        design = msgspec.convert(manifest.design, _Design)
    except (msgspec.ValidationError, RecursionError) as error:
        yield f"`design` is not a design: {error}"
        return
    yield from _number_problems("design", manifest.design)
    side_names = [side.name for side in design.sides]
    planned = list(dict.fromkeys(entry.segment for entry in manifest.subgraphs if entry.segment not in side_names))
    stated = [segment.name for segment in design.segments]
    if stated != planned or set(stated) & set(side_names) or len(set(side_names)) < len(side_names):
        yield f"`design` has the segments {_join_names(stated)}, the subgraphs are of {_join_names(planned)}"
        return
    for segment in design.segments:
        yield from _segment_problems(segment, manifest)
    for side in design.sides:
        names = [entry.name for entry in manifest.subgraphs if entry.segment == side.name]
        if names != [f"{side.name}.{side.processor}"]:
            yield f"`design` has `{side.name}` on {side.processor} outside the backbone, its subgraphs are {_join_names(names) or 'none'}"


def _segment_problems(segment: _StatedSegment, manifest: Manifest) -> Iterator[str]:
    entries = [entry for entry in manifest.subgraphs if entry.segment == segment.name]
    processors = [branch.processor for branch in segment.branches]
    # A subgraph moved to another processor keeps the name of its branch.
    branch_processors = {p for p in processors for entry in entries if p == entry.processor or entry.name == f"{segment.name}.{p}"}
    twice = len(set(processors)) != len(processors) and not join_of(segment.join).hands_on
    if twice or len(entries) != len(processors) or branch_processors != set(processors):
        listed = _join_names([entry.name for entry in entries])
        yield f"`design` has branches on {_join_names(processors)} in segment `{segment.name}`, its subgraphs are {listed}"
    kinds: list[str] = [join.kind for join in manifest.joins if join.segment == segment.name]
    meets = join_of(segment.join).meets
    expected = [] if len(processors) == 1 or meets is None else [meets]
    if kinds != expected:
        yield f"`design` joins segment `{segment.name}` by {segment.join}, the bundle has {_join_names(kinds) or 'no join'} there"


def _predicted_problems(predicted: Mapping[str, Any]) -> Iterator[str]:
    """Yield problems of the planner's figures; a bundle without a plan has none, a bundle with a plan needs a makespan."""
    if not predicted:
        return
    yield from _number_problems("predicted", predicted)
    for key, value in predicted.items():
        if isinstance(value, str) and not _is_word(key, value):
            yield f"`predicted.{key}` is `{value[:40]}`, which the planner does not write"
    makespan, single, speedup = (_number(predicted.get(key)) for key in ("makespan_ms", "best_single_ms", "speedup"))
    if not makespan:
        yield "`predicted` has no `makespan_ms` above zero"
    elif (single, speedup) != (None, None) and not math.isclose((single or 0.0) / makespan, speedup or 0.0, rel_tol=_ROUNDING):
        yield f"`predicted.speedup` is {speedup}, and not `best_single_ms` over `makespan_ms`"


def _is_word(key: str, value: str) -> bool:
    if key == "source":
        return value == "predicted"
    if key.endswith("_precision"):
        return value in _PRECISIONS
    return (key.endswith("_processor") or key in ("measure_next", "far_ahead")) and 0 < len(value) <= 100 and value.isprintable()


def _check_problems(manifest: Manifest) -> Iterator[str]:
    """Yield problems of the checks: the comparison with torch, which bundles written without torch lack, and the tables of exports."""
    checks = manifest.checks
    yield from _number_problems("checks", checks, signed=True)
    results = checks.keys() - _EXPORT_CHECKS
    for key in sorted(results):
        if not isinstance(checks[key], dict):
            yield f"`checks.{key[:80]}` is no table of results"
    rounding = checks.get(ROUNDING, {})
    if not isinstance(rounding, dict) or any(_number(error) is None for error in rounding.values()):
        yield f"`checks.{ROUNDING}` is no table of numbers"
    elif not all(0 <= (_number(error) or 0) <= MAX_ROUNDING for error in rounding.values()):
        yield f"`checks.{ROUNDING}` states an error above {MAX_ROUNDING:g}"
    if len(results) == len(checks):
        return
    tolerance = _number(checks.get("tolerance"))
    if not tolerance:
        yield "`checks` has no `tolerance` above zero"
    if not isinstance(checks.get("reference"), str):
        yield "`checks` lacks `reference`, the file that the others were compared with"
    yield from _error_problems(manifest, tolerance)


def _error_problems(manifest: Manifest, tolerance: float | None) -> Iterator[str]:
    names = {"model", *manifest.controls, *(entry.name for entry in manifest.subgraphs)}
    stated, largest = manifest.checks.get("errors"), _number(manifest.checks.get("max_error"))
    errors = {name: _number(error) for name, error in stated.items()} if isinstance(stated, dict) else {}
    numbers = [error for error in errors.values() if error is not None]
    if not errors or len(numbers) < len(errors):
        yield "`checks.errors` is not a number from zero for each file"
    elif unknown := sorted(errors.keys() - names):
        yield f"`checks.errors` has `{unknown[0][:80]}`, which is no file of the bundle"
    elif largest is None or not math.isclose(largest, max(numbers), rel_tol=_ROUNDING):
        yield f"`checks.max_error` is {largest}, and not the largest of `checks.errors`"
    elif tolerance and largest > tolerance:
        yield f"`checks.max_error` is {largest}, `checks.tolerance` allows {tolerance}"


def _number_problems(location: str, value: Any, *, signed: bool = False, depth: int = 0) -> Iterator[str]:
    """Yield the numbers in a statement that are not finite, or negative where that is not allowed."""
    if depth > _MAX_DEPTH:
        yield f"`{location[:80]}` is nested deeper than {_MAX_DEPTH} levels"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _number_problems(f"{location}.{key}", inner, signed=signed, depth=depth + 1)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _number_problems(f"{location}[{i}]", inner, signed=signed, depth=depth + 1)
    elif isinstance(value, int | float) and not isinstance(value, bool) and not (_finite(value) and (signed or value >= 0)):
        yield f"`{location[:80]}` is {str(value)[:40]}, which is no number from zero"


def _finite(value: float) -> bool:
    """Return whether a number is finite as a float; whole numbers in JSON have no limit."""
    return abs(value) < 1e300


def _number(value: object) -> float | None:
    """Return `value` as a float if it is a finite number from zero, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if _finite(value) and value >= 0 else None


def _join_names(names: list[str]) -> str:
    """Return the names for a sentence; of many names only the first eight."""
    return ", ".join(name[:40] for name in names[:8]) + (", …" if len(names) > 8 else "")
