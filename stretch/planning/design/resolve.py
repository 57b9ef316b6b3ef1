"""A design as a person writes it, completed and checked against a network."""

from collections.abc import Mapping
from dataclasses import replace

from predictors.errors import StretchError, UnknownNameError
from predictors.graph import OpGraph
from predictors.joins import DEFAULT, JoinKind, join_of
from stretch.planning.design import branch_design
from stretch.planning.design.division import WORDS, divisions, shares_of
from stretch.planning.design.scale import join_width, partitions, scaled_graph
from stretch.planning.network.segments import Backbone, Segment, backbone_of, cut_segment, split_segments


def resolve_design(
    draft: branch_design.DesignDraft, graph: OpGraph, device: str, align: Mapping[str, int], default: str
) -> branch_design.BranchDesign:
    """Fill in what a design file leaves out.

    Segments may be named after the network's own stages or bounded by any cut
    points; where none is given for a part of the network, that part stays whole
    on the default processor. Depth and width default to the original's, the
    entry to `project` where one is needed, the join to `project`.

    Args:
        align: Width rounding by processor; its keys are the processors that exist.
    """
    if draft.model is not None and draft.model != graph.name:
        why = f"the design is for the model `{draft.model}`, not for `{graph.name}`"
        raise StretchError(why, f"remove `model` from the design or branch `{draft.model}`")
    backbone = backbone_of(graph)
    covered = _bounds(draft, backbone.graph)
    parts: list[branch_design.SegmentDesign] = []
    width = backbone.graph.input.shape[1]
    for segment, current in covered:
        if current is None:
            whole = branch_design.BranchScale(default, segment.depth, segment.width, align=align[default])
            part = branch_design.SegmentDesign(segment.name, segment.start, segment.end, (whole,))
        else:
            part = _part(segment, current, width, align)
        width = join_width(segment, part)
        parts.append(part)
    design = branch_design.BranchDesign(graph.name, device, tuple(parts), sides=_sides(draft, backbone, default, align))
    scaled_graph(graph, design)
    return design


def _sides(
    draft: branch_design.DesignDraft, backbone: Backbone, default: str, align: Mapping[str, int]
) -> tuple[branch_design.SideDesign, ...]:
    """Where the parts beside the backbone run: as the draft says, else on the default processor."""
    sides = {side.name: side.processor for side in draft.sides}
    names = [side.name for side in backbone.sides]
    for name, processor in sides.items():
        if name not in names:
            raise UnknownNameError.among("side", name, names)
        if processor not in align:
            raise UnknownNameError.among("processor", processor, align)
    return tuple(branch_design.SideDesign(name, sides.get(name, default)) for name in names)


def _bounds(draft: branch_design.DesignDraft, graph: OpGraph) -> list[tuple[Segment, branch_design.SegmentDraft | None]]:
    """Every part of the network with its draft, in order; parts without one keep the network's own stages."""
    stages = {s.name: s for s in split_segments(graph)}
    order = {op.name: i for i, op in enumerate(graph.ops)}
    result: list[tuple[Segment, branch_design.SegmentDraft | None]] = []
    at = graph.input.name
    for number, current in enumerate(draft.segments, start=1):
        start, end, name = current.start, current.end, current.name or f"s{number}"
        if current.end is None:
            if current.name is None:
                raise StretchError(
                    f"segment number {number} of the design has neither `name` nor `end`", f"name one of {', '.join(stages)}"
                )
            if current.name not in stages:
                raise UnknownNameError.among("segment", current.name, stages)
            start, end = current.start or stages[current.name].start, stages[current.name].end
        if start is None:
            start = at
        segment = cut_segment(graph, name, start, end or graph.output)
        if order[start] < order[at]:
            what = f"segment `{name}` of the design starts at `{start}`, before `{at}` where the one before it ends"
            raise StretchError(what, "order the segments from input to output")
        result += [(s, None) for s in _between(graph, at, start, stages)]
        result.append((segment, current))
        at = segment.end
    result += [(s, None) for s in _between(graph, at, graph.output, stages)]
    names = [s.name for s, _ in result]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise StretchError(f"two segments of the design are called `{twice}`", "give each its own name")
    return result


def _between(graph: OpGraph, start: str, end: str, stages: dict[str, Segment]) -> list[Segment]:
    """The network's own stages from cut point `start` to `end`, cut where the design cuts them."""
    order = {op.name: i for i, op in enumerate(graph.ops)}
    pieces, at = [], start
    while order[at] < order[end]:
        stage = next(s for s in stages.values() if order[s.end] > order[at])
        stop = stage.end if order[stage.end] <= order[end] else end
        whole = (at, stop) == (stage.start, stage.end)
        pieces.append(stage if whole else cut_segment(graph, f"{stage.name}_{'rest' if at != stage.start else 'start'}", at, stop))
        at = stop
    return pieces


def _part(
    segment: Segment, segment_draft: branch_design.SegmentDraft, arriving: int, align: Mapping[str, int]
) -> branch_design.SegmentDesign:
    if not segment_draft.branches:
        raise StretchError(f"segment `{segment.name}` of the design has no branches", "list at least one { processor, depth, width }")
    scales = [_branch(segment, b, arriving, align) for b in segment_draft.branches]
    word = next((word for word in WORDS if any(word in shares_of(b) for b in scales)), None)
    usual = divisions()[word].join(segment) if word is not None else DEFAULT
    alone = len(scales) == 1 and word is None
    join: JoinKind = segment_draft.join or (("none" if scales[0].width == segment.width else "concat") if alone else usual)
    without = [b.processor for b in segment_draft.branches if not b.partition]
    if join_of(join).divides and 0 < len(without) < len(scales):
        what = f"branch `{segment.name}.{without[0]}` of the design has no `partition`, others of its segment have"
        raise StretchError(what, f"give each branch of a `{join}` join its `partition`, or leave it out in all")
    if join_of(join).divides and without:
        shares = partitions(segment.width, [b.width for b in scales], max(b.align for b in scales))
        scales = [replace(b, partition=share) for b, share in zip(scales, shares, strict=True)]
    return branch_design.SegmentDesign(segment.name, segment.start, segment.end, tuple(scales), join)


def _branch(segment: Segment, draft: branch_design.BranchDraft, arriving: int, align: Mapping[str, int]) -> branch_design.BranchScale:
    if draft.processor not in align:
        raise UnknownNameError.among("processor", draft.processor, align)
    usual = {"depth": segment.depth, "width": segment.width, "align": align[draft.processor]}
    scale = {what: value if (stated := getattr(draft, what)) is None else stated for what, value in usual.items()}
    for what, value in scale.items():
        if value < 1:
            raise StretchError(f"branch `{segment.name}.{draft.processor}` has {what} {value}", f"{what} is a whole number from 1")
    entry = draft.entry or ("project" if segment.arriving(scale["width"]) not in (None, arriving) else "none")
    return branch_design.BranchScale(
        draft.processor, entry=entry, partition=draft.partition or 0, rewrites=draft.rewrites, **scale, **shares_of(draft)
    )
