"""Diagram of a network before and after branching: each segment as a chain of blocks, with its branches beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretch.planning.result import BranchAnswer, PlanAnswer, SegmentAnswer

#: So many segments in a row that stay whole on one processor are drawn as one.
LONG = 4

#: Height of a block in pixels, and of the highest chain of them.
_BLOCK, _HIGHEST = 14, 168


@dataclass(frozen=True)
class Box:
    """A branch in the picture."""

    processor: str  # Where it runs.
    place: int  # Of that processor in the legend, from 0.
    words: str  # What it computes and how long that takes.
    kind: str  # ``chain`` of blocks, or a ``part`` of the feature map.
    blocks: int = 1  # Blocks of the chain.
    height: float = _BLOCK  # Of the chain, px.
    width: float = 100.0  # Of the chain, percent of the original's channels.
    top: float = 0.0  # Where its part begins, percent of the map's height; 0 for a chain.
    left: float = 0.0  # The same of the map's width or channels.
    share: float = 100.0  # Its extent, percent: of the height of a band, of the width else.
    across: bool = False  # Whether the part is one of channels or paths, drawn side by side; bands of rows lie one above the other.
    halo: float = 0.0  # What it computes beyond its share, percent of its extent.


@dataclass(frozen=True)
class StretchedRow:
    """A segment, or several that stay whole."""

    name: str  # Of the segment, or of the first and last.
    kind: str  # ``whole``, ``stretch``, ``rows``, ``channels``, ``graph`` or ``beside``.
    before: str  # The original in words.
    blocks: int  # Blocks of the original.
    height: float  # Of the original's chain, px.
    boxes: Sequence[Box]  # Its branches.
    meets: str  # How they meet; empty where there is one.


#: What kinds of segments are called.
KINDS = {
    "whole": "stays whole",
    "stretch": "stretched: scaled copies side by side",
    "rows": "divided exactly: bands of rows",
    "channels": "divided exactly: some channels each",
    "graph": "divided exactly: along the network's own graph",
    "beside": "lies beside the backbone",
}


def stretched_rows(plan: "PlanAnswer") -> tuple[list[StretchedRow], list[str]]:
    """The rows of the picture, and the processors in the order of the legend."""
    order = list(
        dict.fromkeys([*plan.precision, *(b.processor for s in plan.segments for b in s.branches), *(s.processor for s in plan.sides)])
    )
    used = {b.processor for s in plan.segments for b in s.branches} | {side.processor for side in plan.sides}
    processors = [name for name in order if name in used]
    scale = min(_BLOCK, _HIGHEST / max([1, *(segment.depth for segment in plan.segments)]))
    rows: list[StretchedRow] = []
    run: list[SegmentAnswer] = []

    def flush() -> None:
        if len(run) < LONG:
            rows.extend(_row(segment, processors, scale) for segment in run)
        elif run:
            rows.append(_together(run, processors))
        run.clear()

    for segment in plan.segments:
        if run and (segment.kind != "whole" or segment.branches[0].processor != run[0].branches[0].processor):
            flush()
        if segment.kind == "whole" and segment.branches:
            run.append(segment)
        else:
            rows.append(_row(segment, processors, scale))
    flush()
    for side in plan.sides:
        box = Box(side.processor, processors.index(side.processor), f"{side.processor}: {side.predicted_ms:.2f} ms", "chain")
        rows.append(StretchedRow(side.name, "beside", f"{side.operators} operators", 1, _BLOCK, [box], ""))
    return rows, processors


def _row(segment: "SegmentAnswer", processors: list[str], scale: float) -> StretchedRow:
    before = f"{_count(segment.depth, 'block')} of {segment.width} channels"
    boxes = [_box(segment, branch, processors.index(branch.processor), scale) for branch in segment.branches]
    joined = f"{f': {segment.join}' if segment.join != 'none' else ''}{f', {segment.join_ms:.2f} ms' if segment.join_ms else ''}"
    meets = f"meeting point{joined}" if len(boxes) > 1 else ""
    return StretchedRow(segment.name, segment.kind, before, max(1, segment.depth), scale * max(1, segment.depth), boxes, meets)


def _box(segment: "SegmentAnswer", branch: "BranchAnswer", place: int, scale: float) -> Box:
    takes = f"{branch.predicted_ms:.2f} ms"

    def chain(words: str, depth: int, width: float = 100.0) -> Box:
        blocks = max(1, depth)
        return Box(branch.processor, place, f"{branch.processor}: {words}{takes}", "chain", blocks, scale * blocks, width)

    if segment.kind == "stretch":
        words = f"{branch.depth} of {_count(segment.depth, 'block')}, {branch.width} of {segment.width} channels, "
        return chain(words, branch.depth, min(100.0, 100.0 * branch.width / max(1, segment.width)))
    for what, span, whole, across in (
        ("rows", branch.rows, segment.shape[2] if len(segment.shape) == 4 else 0, False),
        ("channels", branch.channels, 0, True),
        ("paths", branch.paths, 0, True),
    ):
        if span is None:
            continue
        starts, ends = zip(*(getattr(interval, what) for interval in segment.branches), strict=True)
        extent = max(1, max(whole, *ends) - min(starts))
        share, at = 100.0 * (span[1] - span[0]) / extent, 100.0 * (span[0] - min(starts)) / extent
        halo = max(0.0, branch.macs / segment.macs - share / 100) if what == "rows" and segment.macs else 0.0
        beyond = f", {halo:.1%} of the segment's MACs computed twice" if halo > 0.0005 else ""
        words = f"{branch.processor}: {what} {span[0]} to {span[1] - 1}{beyond}, {takes}"
        drawn = {"left" if across else "top": at, "halo": min(40.0, 100 * halo * 100 / max(share, 1))}
        return Box(branch.processor, place, words, "part", share=share, across=across, **drawn)
    return chain(f"up to {', '.join(branch.ends)}, " if branch.ends else "", segment.depth)


def _together(run: "Sequence[SegmentAnswer]", processors: list[str]) -> StretchedRow:
    """Segments that stay whole on one processor, as one row."""
    processor = run[0].branches[0].processor
    ms = sum(segment.predicted_ms for segment in run)
    blocks = sum(segment.depth for segment in run)
    box = Box(processor, processors.index(processor), f"{processor}: {len(run)} segments whole, {ms:.2f} ms", "chain", LONG, LONG * _BLOCK)
    return StretchedRow(
        f"{run[0].name} to {run[-1].name}", "whole", f"{len(run)} segments, {_count(blocks, 'block')}", LONG, LONG * _BLOCK, [box], ""
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
