"""Application of a design to an operator graph, the paper's F (paper 003, eq. 1) without weights; and completion of design files."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.channels import Narrowed, Pieces
from predictors.devices import DeviceProfile
from predictors.errors import StretchError, UnknownNameError
from predictors.graph import SHARED, Op, OpGraph, SharedWeight, shared_weights
from predictors.host import host_among
from predictors.joins import DEFAULT, JoinKind, join_of, joins_that, meeting_of
from predictors.kinds import unscaled
from predictors.operators import kind_of
from predictors.rewrites import apply_exact_rewrites, inexact_rewrites
from predictors.shapes import Attr, width, with_width
from stretch.planning.design.branch_design import (
    DIVISION_NAMES,
    BranchDesign,
    BranchDraft,
    BranchScale,
    DesignDraft,
    SegmentDesign,
    SegmentDraft,
    SideDesign,
    Taken,
    check_division,
    divisions,
    safe_name,
    shares_of,
    undivided,
)
from stretch.planning.network.segments import (
    Backbone,
    ChannelGroups,
    Segment,
    backbone_of,
    channel_groups,
    cut_segment,
    is_tap,
    memoised,
    rewrite_segment,
    split_segments,
)

# Width scaling: the number of channels of a branch (paper 003, R_width).

#: Width ratios to try if a branch's backbone is a concatenation of several groups.
_RATIOS = tuple(n / 64 for n in range(1, 65))


def scaled_units(units: int, per: int, ratio: float, align: int) -> int:
    """Return the units that a group keeps at a width ratio; its channels are a multiple of `align` if it is large enough."""
    if ratio == 1:
        return units
    step = align // gcd(align, per)
    wanted = units * ratio
    if wanted < step:
        return max(1, round(wanted))
    return round(wanted / step) * step


def aligns(device: DeviceProfile, processors: Iterable[str]) -> dict[str, int]:
    """Return the channels that each processor computes at a time; widths of its branches are multiples of this number."""
    return {name: device.processor(name).width_slice for name in processors}


def legal_widths(segment: Segment, align: int, floor: float = 0.0, ceiling: float = 1.0) -> list[int]:
    """Return the valid widths of a branch, ascending, the original included; `ceiling` above 1 lets a sequential control widen."""
    full = segment.width
    if segment.fixed_width:
        return [full]
    pieces = segment.channels.pieces[segment.end]
    if len(pieces) == 1:
        step = lcm(align, pieces[0][1])
        widths = set(range(step, int(full * ceiling) + 1, step))
    else:
        widths = set(backbone_widths(segment.channels, pieces, align))
    return sorted({w for w in widths if floor * full <= w <= ceiling * full} | {full})


def backbone_widths(channels: ChannelGroups, pieces: Pieces, align: int) -> dict[int, float]:
    """Return the ratio of the groups for each width of a concatenated backbone; channels of the input are not scaled."""
    scaled = [(group, size) for group, size in pieces if group not in channels.frozen and group != channels.input_group]
    stays = sum(channels.units[group] * size for group, size in pieces if group in channels.frozen or group == channels.input_group)
    # a backbone of dozens of pieces has few distinct ones
    alike = Counter((channels.units[group], channels.per_unit[group], size) for group, size in scaled)
    return {
        stays + sum(scaled_units(units, per, ratio, align) * size * count for (units, per, size), count in alike.items()): ratio
        for ratio in _RATIOS
    }


def partitions(width: int, widths: Sequence[int], align: int) -> list[int]:
    """Return the channels that each branch contributes to a `project` join, in proportion to its width: multiples of `align` if `width` is one."""
    result: list[int] = each_partitions(width, np.array(widths)[:, None], align)[:, 0].tolist()
    return result


def each_partitions(width: int, widths: NDArray[np.int64], align: int) -> NDArray[np.int64]:
    """Return `partitions` for many combinations of widths (branches × combinations)."""
    count = len(widths)
    if width < count:
        raise StretchError(f"{width} channels cannot be divided among {count} branches", "use fewer processors, or join by `sum`")
    step = align if width % align == 0 and width // align >= count else 1
    slots = width // step
    exact = slots * widths / widths.sum(axis=0)
    counts: NDArray[np.int64] = np.maximum(1, exact.astype(np.int64))
    while (left := slots - counts.sum(axis=0)).any():
        short, over = np.flatnonzero(left > 0), np.flatnonzero(left < 0)
        errors = exact - counts
        counts[errors[:, short].argmax(axis=0), short] += 1
        # every branch keeps at least one channel
        counts[np.where(counts > 1, errors, np.inf)[:, over].argmin(axis=0), over] -= 1
    return counts * step


# Depth scaling: a segment with fewer blocks (paper 003, R_depth).


@memoised
def dropped_blocks(segment: Segment, depth: int) -> set[int]:
    """Return the numbers of the blocks that a segment drops to have only `depth` blocks.

    Each unit is dropped from the end of the run that keeps the largest share of its blocks, so that merged stages shrink evenly.
    """
    if not segment.min_depth <= depth <= segment.depth:
        raise StretchError(
            f"segment `{segment.name}` cannot have depth {depth}",
            f"it has {segment.depth} blocks, {segment.min_depth} of which stay: choose {segment.min_depth} to {segment.depth}",
        )
    total = Counter(block.run for block in segment.blocks)
    left = {run: [i for i, block in enumerate(segment.blocks) if block.removable and block.run == run] for run in total}
    removed: set[int] = set()
    for _ in range(segment.depth - depth):
        run = max((r for r in left if left[r]), key=lambda r: (len(left[r]) / total[r], r))
        removed.add(left[run].pop())
    return removed


def missing_blocks(segment: Segment, depth: int, dropped: Sequence[int] = ()) -> set[int]:
    """Return the numbers of the blocks that a branch lacks: `dropped` if given, else those of `dropped_blocks`."""
    return set(dropped) or dropped_blocks(segment, depth)


def drop_units(segment: Segment, depth: int, dropped: Sequence[int] = ()) -> OpGraph:
    """Return the segment's graph without its `missing_blocks`."""
    removed = missing_blocks(segment, depth, dropped)
    units = {i for i, block in enumerate(segment.blocks) if block.removable}
    if not removed <= units or len(removed) != segment.depth - depth:
        of_depth = f" and have depth {depth}" if removed <= units else ""
        raise StretchError(
            f"a branch of segment `{segment.name}` cannot do without the blocks {', '.join(map(str, sorted(removed)))}{of_depth}",
            f"of its blocks, numbered from 0 to {segment.depth - 1}, these can be left out: {', '.join(map(str, sorted(units))) or 'none'}",
        )
    if not removed:
        return segment.graph
    renamed: dict[str, str] = {}
    without: set[str] = set()
    for i, block in enumerate(segment.blocks):
        if i in removed:
            renamed[block.end] = renamed.get(block.start, block.start)
            without.update(block.ops)
    kept = (op for op in segment.graph.ops if op.name not in without)
    ops = [Op(op.name, op.kind, tuple(renamed.get(n, n) for n in op.inputs), op.attrs, tags=op.tags) for op in kept]
    return OpGraph.build(segment.graph.name, ops, renamed.get(segment.graph.output, segment.graph.output))


# Operators with fewer channels.


def narrowed_ops(source: OpGraph, channels: ChannelGroups, kept: Mapping[int, int]) -> list[Op]:
    """Return the operators of a graph whose channel groups keep `kept` units, with attributes adapted to the remaining channels."""
    widths = channels.widths(kept)
    return [narrowed_op(op, source, channels, kept, widths) if op.inputs else op for op in source.ops]


def narrowed_op(op: Op, source: OpGraph, channels: ChannelGroups, kept: Mapping[int, int], widths: Mapping[str, int]) -> Op:
    """Return one operator with the remaining channels; `widths` are the new channels of every operator."""
    first, scaled = op.inputs[0], kind_of(op.kind).scaled
    if scaled is unscaled:
        return op
    before, after, out = width(source.by_name[first].shape), widths[first], widths[op.name]
    change = Narrowed(before=before, after=after, out=out, position=lambda channel: channels.position(first, channel, kept))
    return Op(op.name, op.kind, op.inputs, scaled(op.attrs, change), tags=op.tags)


# Checks of a design's sides and joins.


def check_sides(backbone: Backbone, design: BranchDesign) -> list[str]:
    """Return the processor of each side of a backbone, in order; refuse a design with other sides."""
    names, placed = [side.name for side in backbone.sides], [side.name for side in design.sides]
    if names != placed:
        required, given = (", ".join(value) or "none" for value in (names, placed))
        raise StretchError(
            f"the design places {given} outside the backbone of `{backbone.graph.name}`, which has {required}",
            "give each of them a processor",
        )
    return [side.processor for side in design.sides]


def check_join(segment: Segment, design: SegmentDesign) -> None:
    """Refuse a segment whose join does not fit its branches."""
    where, join, division = f"segment `{segment.name}`", join_of(design.join), design.division
    processors = [b.processor for b in design.branches]
    twice = len(set(processors)) != len(processors) and not join.hands_on
    if not processors or twice:
        raise StretchError(f"{where} needs one branch per processor, it has {', '.join(processors) or 'none'}")
    if len({safe_name(name) for name in design.names}) < len(processors):
        raise StretchError(f"{where} has processors with the same name: {', '.join(design.names)}", "use one core set of each")
    if len(processors) == 1 and division is None:
        if join.convolves:
            raise StretchError(f"{where} has one branch and nothing to join by `{design.join}`", 'set join = "none"')
        if join.meets is None and design.branches[0].width != segment.width:
            raise StretchError(f'{where} keeps its width {segment.width} with join = "none"', 'set join = "concat" to let the width change')
        return
    if join.meets is None and division is None:
        first, *others = (f'"{name}"' for name in joins_that(lambda join: True))
        raise StretchError(f"{where} has {len(processors)} branches that nothing joins", f"set join to {', '.join(others)} or {first}")
    if join.meets is not None and len(segment.graph.by_name[segment.end].shape) != 4 and not (division is not None and division.vectors):
        raise StretchError(f"{where} ends with a vector, branches join at feature maps", "let it end before the flattening")
    if division is not None:
        check_division(segment, design, division)
    if join.divides and sum(b.partition for b in design.branches) != segment.width:
        raise StretchError(
            f"{where} has partitions that add up to {sum(b.partition for b in design.branches)}, its width is {segment.width}"
        )


ENTRY_CONV, ENTRY_NORM, ENTRY_SLICE, JOIN_CONV = "entry_conv", "entry_norm", "entry_slice", "join_conv"


@dataclass(frozen=True)
class ScaledBranch:
    """One branch of one segment, scaled."""

    graph: OpGraph  # Operators: entry, kept blocks, the branch's part of the join. Names are the original's.
    source: OpGraph  # The segment with units dropped, at the original widths.
    channels: ChannelGroups  # Channel groups of `source`.
    kept: dict[int, int]  # Units that each of these groups keeps.
    backbone: int  # First channel of the original backbone that the branch computes.
    taken: Mapping[str, Taken] = field(default_factory=dict)  # Part of each operator's weights, for a branch of channels.


def kept_units(segment: Segment, source: OpGraph, channels: ChannelGroups, scale: BranchScale, in_channels: int) -> dict[int, int]:
    """Return the units that each group of `source` keeps in a branch."""
    where = f"branch `{segment.name}.{scale.processor}`"
    full = width(source.by_name[source.output].shape)
    per = channels.per_unit
    pieces = channels.pieces[source.output]
    ratio = scale.width / full if len(pieces) == 1 else backbone_widths(channels, pieces, scale.align).get(scale.width, scale.width / full)
    kept = {
        group: units if group in channels.frozen else scaled_units(units, per[group], ratio, scale.align)
        for group, units in channels.units.items()
    }
    if len(pieces) == 1 and pieces[0][0] not in channels.frozen:
        group, size = pieces[0]
        if scale.width % size or not 0 < scale.width <= full * 4:
            raise StretchError(f"{where} cannot have width {scale.width}", f"its channels come in steps of {size}")
        kept[group] = scale.width // size
    if scale.entry == "none":
        group, size = channels.pieces[source.input.name][0]
        if len(pieces) == 1 and pieces[0][0] == channels.input_group and scale.width * size != in_channels * pieces[0][1]:
            reason = f"{where} starts with an identity skip over {in_channels} channels, so width {scale.width} needs an entry"
            raise StretchError(reason, 'give it entry = "project" or "slice", or let the segment before it join by "project"')
        if in_channels % size:
            raise StretchError(
                f"{where} reads {in_channels} channels, which are no multiple of {size}", "choose another width for the segment before it"
            )
        kept[group] = in_channels // size
    written = sum(kept[group] * size for group, size in pieces)
    if written != scale.width:
        nearest = min(legal_widths(segment, scale.align), key=lambda w: abs(w - scale.width))
        raise StretchError(f"{where} cannot have width {scale.width}, its channels would be {written}", f"the nearest width is {nearest}")
    return kept


def backbone_parts(design: SegmentDesign, width: int) -> list[int]:
    """Return the number of channels of the original backbone that each branch computes, in order of the branches."""
    if join_of(design.join).divides:
        return [b.partition for b in design.branches]
    return partitions(width, [b.width for b in design.branches], 1)


def scale_branch(segment: Segment, design: SegmentDesign, index: int, in_channels: int) -> ScaledBranch:
    """Return branch number `index` of a segment, scaled."""
    scale = design.branches[index]
    if inexact_rewrites(scale.rewrites) != segment.rewrites:
        segment = rewrite_segment(segment, scale.rewrites)
    source = drop_units(segment, scale.depth, scale.dropped)
    channels = segment.channels if source is segment.graph else channel_groups(source)
    kept = kept_units(segment, source, channels, scale, in_channels)
    offset = sum(backbone_parts(design, segment.width)[:index])
    start = max(0, min(offset, segment.width - scale.width))
    ops = [Op(source.input.name, "input", attrs={"shape": with_width(source.input.shape, in_channels)})]
    if scale.entry != "none":
        ops += entry_ops(segment, scale, channels.channels(source.input.name, kept), start)
    arriving, arguments = source.input.name, ops[-1].name
    for op in narrowed_ops(source, channels, kept):
        if op.kind != "input":
            reads_input = arguments != arriving and arriving in op.inputs
            ops.append(replace(op, inputs=tuple(arguments if name == arriving else name for name in op.inputs)) if reads_input else op)
    output = arguments if source.output == arriving else source.output
    join = join_of(design.join)
    if join.convolves:
        out = segment.width if join.whole else scale.partition
        if out <= 0:
            problem = f"branch `{segment.name}.{scale.processor}` contributes no channel to its join"
            raise StretchError(problem, f"give the branches of a `{design.join}` join their `partition`, or leave it out in all")
        ops.append(Op(JOIN_CONV, "conv", (output,), _pointwise(out, bias=True)))
        output = JOIN_CONV
    return ScaledBranch(OpGraph.build(f"{segment.name}.{scale.processor}", ops, output), source, channels, kept, start)


def whole_branch(segment: Segment, design: SegmentDesign, in_channels: int) -> ScaledBranch:
    """Return an exactly divided segment in one piece, for a number of arriving channels."""
    if in_channels != segment.in_width:
        return scale_branch(segment, design.undivided, 0, in_channels)
    return ScaledBranch(segment.graph, segment.graph, segment.channels, dict(segment.channels.units), 0)


def scale_branches(segment: Segment, design: SegmentDesign, in_channels: int) -> list[ScaledBranch]:
    """Return every branch of a segment, in the order of its design."""
    check_join(segment, design)
    division = design.division
    if division is None:
        return [scale_branch(segment, design, i, in_channels) for i in range(len(design.branches))]
    whole = whole_branch(segment, design, in_channels)
    names = [f"{segment.name}.{name}" for name in design.names]
    pieces = division.pieces(whole.graph, names, [shares_of(branch)[division.word] for branch in design.branches], design.join)
    return [replace(whole, graph=piece.graph, taken=piece.taken) for piece in pieces]


def _pointwise(out: int, *, bias: bool) -> dict[str, Attr]:
    return {"out_channels": out, "kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1, "bias": bias}


def entry_ops(segment: Segment, scale: BranchScale, width: int, start: int) -> list[Op]:
    """Return the operators of a branch's entry; `start` is the first channel of a slice."""
    if scale.entry == "slice":
        if width > segment.in_width:
            problem = f"branch `{segment.name}.{scale.processor}` cannot slice {width} of {segment.in_width} channels"
            raise StretchError(problem, 'give it entry = "project"')
        begin = min(start, segment.in_width - width)
        return [Op(ENTRY_SLICE, "slice", (segment.start,), {"start": begin, "stop": begin + width})]
    norm: dict[str, Attr] = {"eps": 1e-5, "momentum": 0.1, "affine": True}
    return [Op(ENTRY_CONV, "conv", (segment.start,), _pointwise(width, bias=False)), Op(ENTRY_NORM, "batch_norm", (ENTRY_CONV,), norm)]


def join_width(segment: Segment, design: SegmentDesign) -> int:
    """Return the number of channels after the segment's meeting point."""
    join = join_of(design.join)
    return sum(b.width for b in design.branches) if join.widens else segment.width


def design_segments(graph: OpGraph, design: BranchDesign) -> list[Segment]:
    """Return the original segments of a design, checked."""
    graph = backbone_of(graph).graph
    at = graph.input.name
    segments = []
    for part in design.segments:
        if part.start != at:
            raise StretchError(
                f"segment `{part.name}` starts at `{part.start}`, the one before it ends at `{at}`", "segments must follow each other"
            )
        segment, at = cut_segment(graph, part.name, part.start, part.end), part.end
        segments.append(segment)
        # operators outside the backbone may only read a segment's end, with the original's channels
        inner = next((op.name for op in segment.graph.ops if op.name not in (segment.start, segment.end) and is_tap(op)), None)
        if inner is not None:
            reason = f"segment `{segment.name}` reaches beyond `{inner}`, which is read outside the backbone or returned"
            raise StretchError(reason, f"let a segment end at `{inner}`")
        width = join_width(segment, part)
        if segment.tapped and width != segment.width:
            reason = f"segment `{segment.name}` has {width} channels after its meeting point, and a reader outside the backbone needs {segment.width}"
            raise StretchError(reason, "join its branches by `project` or `sum`")
    if at != graph.output:
        raise StretchError(f"the design ends at `{at}`, the network at `{graph.output}`", "add a segment for the rest")
    return segments


def scaled_branches(graph: OpGraph, design: BranchDesign) -> list[list[ScaledBranch]]:
    """Return every branch of every segment, in order."""
    result: list[list[ScaledBranch]] = []
    channels = width(backbone_of(graph).graph.input.shape)
    for segment, part in zip(design_segments(graph, design), design.segments, strict=True):
        result.append(scale_branches(segment, part, channels))
        channels = join_width(segment, part)
    return result


def remaining_shared_weights(graph: OpGraph, design: BranchDesign) -> list[SharedWeight]:
    """Return the shared weights of a network that its operators still share in a design."""
    if not any(SHARED in op.tags for op in graph.ops):
        return []
    branches = [branch.graph for branches in scaled_branches(graph, undivided(design)) for branch in branches]
    return shared_weights([*branches, *backbone_of(graph).sides])


def run_graph(branch: ScaledBranch, scale: BranchScale) -> OpGraph:
    """Return the graph of a branch after exact rewrites, as its processor runs it; new operators hold parts of the old weights."""
    return apply_exact_rewrites(branch.graph, scale.rewrites)[0]


def scaled_graph(graph: OpGraph, design: BranchDesign, branched: Sequence[Sequence[ScaledBranch]] | None = None) -> OpGraph:
    """Return the branched network (the paper's G_branch).

    Operators are named ``<segment>_<processor>_<original name>``, joins ``<segment>_join``. Tags state `origin`, `segment`, `processor`,
    `subgraph` and `meeting_point` (``true`` on the operator that ends a meeting).
    """
    backbone = backbone_of(graph)
    placed = dict(zip((side.name for side in backbone.sides), check_sides(backbone, design), strict=True))
    ops: list[Op] = list(graph.inputs)
    names = {op.name: op.name for op in graph.inputs}

    def add_sides(sides: Iterable[OpGraph]) -> None:
        for side in sides:
            processor = placed[side.name]
            added, written = _rename_branch(side.name, processor, processor, side, names)
            ops.extend(added)
            names.update(written)

    add_sides(backbone.before)
    at = names[backbone.graph.input.name]
    for part, branches in zip(design.segments, branched or scaled_branches(graph, design), strict=True):
        handed, ends = {part.start: at}, []
        for name, scale, branch in zip(part.names, part.branches, branches, strict=True):
            named, written = _rename_branch(part.name, name, scale.processor, run_graph(branch, scale), handed)
            ops += named
            handed |= written
            ends.append(next(reversed(written.values())))
        at = ends[-1]
        if join_of(part.join).meets is not None and len(ends) > 1:
            at = f"{part.name}_join"
            tags = {"segment": part.name, "processor": host_processor(design), "subgraph": f"{part.name}.join", "meeting_point": "true"}
            ops.append(Op(at, meeting_of(part.join).operator, tuple(ends), tags=tags))
        names[part.end] = at
    add_sides(backbone.after)
    if any(SHARED in op.tags for op in graph.ops):
        shared = {holder for weight in remaining_shared_weights(graph, design) for holder in weight.holders}
        ops = [replace(op, tags={**op.tags, SHARED: _shared_name(op, shared)}) if SHARED in op.tags else op for op in ops]
    return OpGraph.build(graph.name, ops, [names[name] for name in graph.outputs])


def _shared_name(op: Op, shared: Collection[tuple[str, str]]) -> str:
    """Return the names of the weights that an operator shares both in the original and in a design."""
    return " ".join(word for word in op.tags[SHARED].split() if (op.tags["origin"], word.partition("=")[0]) in shared)


def host_processor(design: BranchDesign) -> str:
    """Return the processor that waits and joins: the design's host, else its first processor."""
    return host_among(design.processors) or design.processors[0]


def _rename_branch(segment: str, name: str, processor: str, branch: OpGraph, handed: Mapping[str, str]) -> tuple[list[Op], dict[str, str]]:
    """Return the operators of a branch with their names in the whole network, and the names of its outputs there."""
    prefix = f"{segment}_{safe_name(name)}_"
    names: Mapping[str, str] = {op.name: handed[op.name] if op.kind == "input" else prefix + op.name for op in branch.ops}
    tags = {"segment": segment, "processor": processor, "subgraph": f"{segment}.{name}", "meeting_point": "false"}
    ops = [
        Op(names[op.name], op.kind, tuple(names[n] for n in op.inputs), op.attrs, tags={**op.tags, **tags, "origin": op.name})
        for op in branch.ops
        if op.kind != "input"
    ]
    return ops, {output: names[output] for output in branch.outputs}


# Completion and check of a hand-written design for a network.


def resolve_design(draft: DesignDraft, graph: OpGraph, device: str, align: Mapping[str, int], default: str) -> BranchDesign:
    """Fill in the missing fields of a design file.

    Segments are named after the network's stages or bounded by any cut points. A part of the network without a given segment
    stays whole on the default processor. Depth and width default to the original's, the entry to `project` if needed, the
    join to `project`.

    Args:
        align: Width rounding by processor, for all processors of the device.
    """
    if draft.model is not None and draft.model != graph.name:
        reason = f"the design is for the model `{draft.model}`, not for `{graph.name}`"
        raise StretchError(reason, f"remove `model` from the design or branch `{draft.model}`")
    backbone = backbone_of(graph)
    parts: list[SegmentDesign] = []
    arriving = width(backbone.graph.input.shape)
    for segment, current in _resolve_segments(draft, backbone.graph):
        whole = BranchScale(default, segment.depth, segment.width, align=align[default])
        part = SegmentDesign(segment.name, segment.start, segment.end, (whole,))
        if current is not None:
            part = _resolve_segment(segment, current, arriving, align)
        arriving = join_width(segment, part)
        parts.append(part)
    design = BranchDesign(graph.name, device, tuple(parts), sides=_resolve_sides(draft, backbone, default, align))
    scaled_graph(graph, design)
    return design


def _resolve_sides(draft: DesignDraft, backbone: Backbone, default: str, align: Mapping[str, int]) -> tuple[SideDesign, ...]:
    """Return the processor of each side: as the draft says, else the default processor."""
    sides = {side.name: side.processor for side in draft.sides}
    names = [side.name for side in backbone.sides]
    for name, processor in sides.items():
        if name not in names:
            raise UnknownNameError.among("side", name, names)
        if processor not in align:
            raise UnknownNameError.among("processor", processor, align)
    return tuple(SideDesign(name, sides.get(name, default)) for name in names)


def _resolve_segments(draft: DesignDraft, graph: OpGraph) -> list[tuple[Segment, SegmentDraft | None]]:
    """Return every segment of the network with its draft, in order; parts without a draft keep the network's stages."""
    stages = {s.name: s for s in split_segments(graph)}
    result: list[tuple[Segment, SegmentDraft | None]] = []
    at = graph.input.name
    for number, current in enumerate(draft.segments, start=1):
        start, end, name = current.start, current.end, current.name or f"s{number}"
        if end is None:
            if current.name is None:
                reason = f"segment number {number} of the design has neither `name` nor `end`"
                raise StretchError(reason, f"name one of {', '.join(stages)}")
            if name not in stages:
                raise UnknownNameError.among("segment", name, stages)
            start, end = start or stages[name].start, stages[name].end
        start = at if start is None else start
        segment = cut_segment(graph, name, start, end)
        if graph.position[start] < graph.position[at]:
            problem = f"segment `{name}` of the design starts at `{start}`, before `{at}` where the one before it ends"
            raise StretchError(problem, "order the segments from input to output")
        result += [(s, None) for s in _segments_between(graph, at, start, stages)]
        result.append((segment, current))
        at = segment.end
    result += [(s, None) for s in _segments_between(graph, at, graph.output, stages)]
    names = [s.name for s, _ in result]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise StretchError(f"two segments of the design are called `{twice}`", "give each its own name")
    return result


def _segments_between(graph: OpGraph, start: str, end: str, stages: dict[str, Segment]) -> list[Segment]:
    """Return the network's stages from cut point `start` to `end`, cut at the design's boundaries."""
    pieces, at = [], start
    while graph.position[at] < graph.position[end]:
        stage = next(s for s in stages.values() if graph.position[s.end] > graph.position[at])
        stop = stage.end if graph.position[stage.end] <= graph.position[end] else end
        whole = (at, stop) == (stage.start, stage.end)
        pieces.append(stage if whole else cut_segment(graph, f"{stage.name}_{'rest' if at != stage.start else 'start'}", at, stop))
        at = stop
    return pieces


def _resolve_segment(segment: Segment, segment_draft: SegmentDraft, in_channels: int, align: Mapping[str, int]) -> SegmentDesign:
    if not segment_draft.branches:
        raise StretchError(f"segment `{segment.name}` of the design has no branches", "list at least one { processor, depth, width }")
    scales = [_resolve_branch(segment, b, in_channels, align) for b in segment_draft.branches]
    word = next((word for word in DIVISION_NAMES if any(word in shares_of(b) for b in scales)), None)
    default_join = divisions()[word].join(segment) if word is not None else DEFAULT
    alone = len(scales) == 1 and word is None
    join: JoinKind = segment_draft.join or (("none" if scales[0].width == segment.width else "concat") if alone else default_join)
    without = [b.processor for b in segment_draft.branches if not b.partition]
    if join_of(join).divides and 0 < len(without) < len(scales):
        problem = f"branch `{segment.name}.{without[0]}` of the design has no `partition`, others of its segment have"
        raise StretchError(problem, f"give each branch of a `{join}` join its `partition`, or leave it out in all")
    if join_of(join).divides and without:
        shares = partitions(segment.width, [b.width for b in scales], max(b.align for b in scales))
        scales = [replace(b, partition=share) for b, share in zip(scales, shares, strict=True)]
    return SegmentDesign(segment.name, segment.start, segment.end, tuple(scales), join)


def _resolve_branch(segment: Segment, draft: BranchDraft, in_channels: int, align: Mapping[str, int]) -> BranchScale:
    if draft.processor not in align:
        raise UnknownNameError.among("processor", draft.processor, align)
    defaults = {"depth": segment.depth, "width": segment.width, "align": align[draft.processor]}
    scale: dict[str, Any] = {key: value if (stated := getattr(draft, key)) is None else stated for key, value in defaults.items()}
    for key, value in scale.items():
        if value < 1:
            raise StretchError(f"branch `{segment.name}.{draft.processor}` has {key} {value}", f"{key} is a whole number from 1")
    entry = draft.entry or segment.entry(scale["width"], in_channels)
    if draft.dropped and draft.depth is None:
        scale["depth"] = max(segment.depth - len(set(draft.dropped)), 1)
    how = BranchScale(draft.processor, entry=entry, partition=draft.partition or 0, rewrites=draft.rewrites, **(scale | shares_of(draft)))
    return replace(how, dropped=tuple(sorted(set(draft.dropped))))
