"""A design applied to an operator graph: the paper's F (paper 003, eq. 1), without weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from predictors.channels import Narrowed
from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.host import host_among
from predictors.joins import join_of, joins_that, meeting_of
from predictors.operators import kind_of
from predictors.rows import height
from predictors.shapes import Attr
from predictors.slices import Channels
from stretch.planning.design.bands import band_graph
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign, safe_name
from stretch.planning.design.channels import Taken, channel_part, check_channels
from stretch.planning.design.depth import drop_units
from stretch.planning.design.paths import JOINS, find_paths, path_graph, whole_paths
from stretch.planning.design.portions import check_portions, portion_graphs
from stretch.planning.design.widths import legal_widths, partitions, per_unit, scaled_units, trunk_widths
from stretch.planning.network.channels import ChannelGroups, channel_groups
from stretch.planning.network.segments import Segment, cut_segment

ENTRY_CONV, ENTRY_NORM, ENTRY_SLICE, JOIN_CONV = "entry_conv", "entry_norm", "entry_slice", "join_conv"


@dataclass(frozen=True)
class ScaledBranch:
    """One branch of one segment, scaled.

    Args:
        graph: Its operators: entry, kept blocks, its own part of the join.
            Names are the original's.
        source: The segment with units dropped, at the original widths.
        channels: Channel groups of `source`.
        kept: Units that each of those groups keeps.
        trunk: First channel of the original trunk that it answers for.
        taken: Of a branch of channels, what it has of each operator's weights.
    """

    graph: OpGraph
    source: OpGraph
    channels: ChannelGroups
    kept: dict[int, int]
    trunk: int
    taken: Mapping[str, Taken] = field(default_factory=dict)


def _kept(segment: Segment, source: OpGraph, channels: ChannelGroups, scale: BranchScale, in_channels: int) -> dict[int, int]:
    """Units each group keeps in a branch."""
    where = f"branch `{segment.name}.{scale.processor}`"
    full = source.by_name[source.output].shape[1]
    per = per_unit(channels)
    pieces = channels.pieces[source.output]
    ratio = scale.width / full if len(pieces) == 1 else trunk_widths(channels, pieces, scale.align).get(scale.width, scale.width / full)
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
            raise StretchError(
                f"{where} starts with an identity skip over {in_channels} channels, so width {scale.width} needs an entry",
                'give it entry = "project" or "slice", or let the segment before it join by "project"',
            )
        if in_channels % size:
            raise StretchError(
                f"{where} reads {in_channels} channels, which are no multiple of {size}", "choose another width for the segment before it"
            )
        kept[group] = in_channels // size
    width = sum(kept[group] * size for group, size in pieces)
    if width != scale.width:
        near = min(legal_widths(segment, scale.align), key=lambda w: abs(w - scale.width))
        raise StretchError(f"{where} cannot have width {scale.width}, its channels would be {width}", f"the nearest width is {near}")
    return kept


def _scale_op(op: Op, source: OpGraph, channels: ChannelGroups, kept: dict[int, int]) -> Op:
    if not op.inputs:
        return op
    first = op.inputs[0]
    narrowed = Narrowed(
        before=source.input_shapes(op)[0][1],
        after=channels.channels(first, kept),
        out=channels.channels(op.name, kept),
        position=lambda channel: channels.position(first, channel, kept),
    )
    return Op(op.name, op.kind, op.inputs, kind_of(op.kind).scaled(op.attrs, narrowed), tags=op.tags)


def trunk_parts(design: SegmentDesign, width: int) -> list[int]:
    """How many channels of the original trunk each branch answers for, in order of the branches."""
    join = join_of(design.join)
    if join.divides:
        return [b.partition for b in design.branches]
    return partitions(width, [b.width for b in design.branches], 1)


def _trunk_start(design: SegmentDesign, index: int, full: int) -> int:
    """First channel of the original trunk that a branch answers for."""
    offset = sum(trunk_parts(design, full)[:index])
    return max(0, min(offset, full - design.branches[index].width))


def scale_branch(segment: Segment, design: SegmentDesign, index: int, in_channels: int) -> ScaledBranch:
    """Branch number `index` of a segment.

    Args:
        segment: The original segment.
        design: Its design, complete (partitions included).
        index: Which branch; of portions only all are scaled together, by `scale_branches`.
        in_channels: Channels that arrive.

    Raises:
        StretchError: If depth, width, entry or join do not fit the segment.
    """
    scale = design.branches[index]
    if (scale.rows, scale.paths, scale.channels) != (None, None, None):
        return _part(segment, scale, in_channels, hidden=join_of(design.join).hidden)
    source = drop_units(segment, scale.depth)
    channels = segment.channels if source is segment.graph else channel_groups(source)
    kept = _kept(segment, source, channels, scale, in_channels)
    start = _trunk_start(design, index, segment.width)
    ops = [Op(source.input.name, "input", attrs={"shape": (source.input.shape[0], in_channels, *source.input.shape[2:])})]
    reads = {source.input.name: source.input.name}
    if scale.entry != "none":
        ops += _entry(segment, scale, channels.channels(source.input.name, kept), start)
        reads[source.input.name] = ops[-1].name
    for op in source.ops:
        if op.kind != "input":
            scaled = _scale_op(op, source, channels, kept)
            ops.append(Op(scaled.name, scaled.kind, tuple(reads.get(n, n) for n in scaled.inputs), scaled.attrs, tags=scaled.tags))
    output = reads.get(source.output, source.output)
    join = join_of(design.join)
    if join.convolves:
        out = segment.width if join.whole else scale.partition
        if out <= 0:
            raise StretchError(
                f"branch `{segment.name}.{scale.processor}` contributes no channel to its join",
                f"give the branches of a `{design.join}` join their `partition`, or leave it out in all",
            )
        ops.append(Op(JOIN_CONV, "conv", (output,), _pointwise(out, bias=True)))
        output = JOIN_CONV
    return ScaledBranch(OpGraph.build(f"{segment.name}.{scale.processor}", ops, output), source, channels, kept, start)


def _part(segment: Segment, scale: BranchScale, in_channels: int, *, hidden: bool) -> ScaledBranch:
    """A band of rows, some paths or some channels of a segment, everything else as it is."""
    where = f"{segment.name}.{scale.processor}"
    parts = {"a band of rows": scale.rows, "some paths": scale.paths, "some channels": scale.channels}
    what, *others = (name for name, part in parts.items() if part is not None)
    if others:
        raise StretchError(f"branch `{where}` computes {what} and {others[0]}", "let it compute one of them")
    if (scale.depth, scale.width, scale.entry) != (segment.depth, segment.width, "none"):
        raise StretchError(
            f"branch `{where}` computes {what}, so it has all {segment.depth} blocks, width {segment.width} and no entry",
            "leave out its depth, width and entry",
        )
    whole = _undivided(segment, scale, in_channels)
    if scale.rows is not None:
        return replace(whole, graph=band_graph(whole.graph, where, *scale.rows))
    if scale.paths is not None:
        return replace(whole, graph=path_graph(whole.graph, where, *scale.paths))
    assert scale.channels is not None
    made = channel_part(whole.graph, where, Channels(*scale.channels), hidden=hidden)
    return replace(whole, graph=made.graph, taken=made.taken)


def _undivided(segment: Segment, scale: BranchScale, in_channels: int) -> ScaledBranch:
    """The whole of a segment that is divided exactly, where so many channels arrive."""
    if in_channels != segment.in_width:
        alone = SegmentDesign(segment.name, segment.start, segment.end, (replace(scale, rows=None, paths=None, channels=None, ends=None),))
        return scale_branch(segment, alone, 0, in_channels)
    return ScaledBranch(segment.graph, segment.graph, segment.channels, dict(segment.channels.units), 0)


def scale_branches(segment: Segment, design: SegmentDesign, in_channels: int) -> list[ScaledBranch]:
    """Every branch of a segment, in the order of its design.

    Args:
        segment: The original segment.
        design: Its design, complete.
        in_channels: Channels that arrive.

    Raises:
        StretchError: If depth, width, entry or join do not fit the segment.
    """
    _check_join(segment, design)
    if not join_of(design.join).placed:
        return [scale_branch(segment, design, i, in_channels) for i in range(len(design.branches))]
    whole = _undivided(segment, design.branches[0], in_channels)
    names = [f"{segment.name}.{name}" for name in design.names]
    return [replace(whole, graph=graph) for graph in portion_graphs(whole.graph, names, [b.ends or () for b in design.branches])]


def _pointwise(out: int, *, bias: bool) -> dict[str, Attr]:
    return {"out_channels": out, "kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1, "bias": bias}


def _entry(segment: Segment, scale: BranchScale, width: int, start: int) -> list[Op]:
    if scale.entry == "slice":
        if width > segment.in_width:
            raise StretchError(
                f"branch `{segment.name}.{scale.processor}` cannot slice {width} of {segment.in_width} channels",
                'give it entry = "project"',
            )
        begin = min(start, segment.in_width - width)
        return [Op(ENTRY_SLICE, "slice", (segment.start,), {"start": begin, "stop": begin + width})]
    norm: dict[str, Attr] = {"eps": 1e-5, "momentum": 0.1, "affine": True}
    return [Op(ENTRY_CONV, "conv", (segment.start,), _pointwise(width, bias=False)), Op(ENTRY_NORM, "batch_norm", (ENTRY_CONV,), norm)]


def join_width(segment: Segment, design: SegmentDesign) -> int:
    """Channels behind the segment's meeting point."""
    join = join_of(design.join)
    return sum(b.width for b in design.branches) if join.widens else segment.width


def design_segments(graph: OpGraph, design: BranchDesign) -> list[Segment]:
    """The original segments a design speaks of.

    Raises:
        StretchError: If they do not cover the network from input to output.
    """
    at = graph.input.name
    segments = []
    for part in design.segments:
        if part.start != at:
            raise StretchError(
                f"segment `{part.name}` starts at `{part.start}`, the one before it ends at `{at}`", "segments must follow each other"
            )
        segments.append(cut_segment(graph, part.name, part.start, part.end))
        at = part.end
    if at != graph.output:
        raise StretchError(f"the design ends at `{at}`, the network at `{graph.output}`", "add a segment for the rest")
    return segments


def scaled_branches(graph: OpGraph, design: BranchDesign) -> list[list[ScaledBranch]]:
    """Every branch of every segment, in order.

    Raises:
        StretchError: If the design does not fit the network.
    """
    result: list[list[ScaledBranch]] = []
    channels = graph.input.shape[1]
    for segment, part in zip(design_segments(graph, design), design.segments, strict=True):
        result.append(scale_branches(segment, part, channels))
        channels = join_width(segment, part)
    return result


def _check_join(segment: Segment, design: SegmentDesign) -> None:
    where, join = f"segment `{segment.name}`", join_of(design.join)
    if join.placed or any(b.ends is not None for b in design.branches):
        check_portions(segment, design)
        return
    processors = [b.processor for b in design.branches]
    if not processors or len(set(processors)) != len(processors):
        raise StretchError(f"{where} needs one branch per processor, it has {', '.join(processors) or 'none'}")
    if len(processors) == 1:
        alone = design.branches[0]
        if (alone.rows, alone.paths, alone.channels) != (None, None, None) or join.exact:
            what = "paths" if join.paths or alone.paths is not None else "rows"
            what = "channels" if join.channels or alone.channels is not None else what
            raise StretchError(
                f"{where} has one branch, and {what} are divided among two or more", f'leave out its {what} and its join = "{design.join}"'
            )
        if join.convolves:
            raise StretchError(f"{where} has one branch and nothing to join by `{design.join}`", 'set join = "none"')
        if join.meets is None and design.branches[0].width != segment.width:
            raise StretchError(f'{where} keeps its width {segment.width} with join = "none"', 'set join = "concat" to let the width change')
        return
    if join.meets is None:
        first, *others = (f'"{name}"' for name in joins_that(lambda join: True))
        raise StretchError(f"{where} has {len(processors)} branches that nothing joins", f"set join to {', '.join(others)} or {first}")
    if len(segment.graph.by_name[segment.end].shape) != 4 and not join.channels:
        raise StretchError(f"{where} ends with a vector, branches join at feature maps", "let it end before the flattening")
    _check_rows(segment, design)
    _check_paths(segment, design)
    check_channels(segment, design)
    if join.divides and sum(b.partition for b in design.branches) != segment.width:
        raise StretchError(
            f"{where} has partitions that add up to {sum(b.partition for b in design.branches)}, its width is {segment.width}"
        )


def _check_rows(segment: Segment, design: SegmentDesign) -> None:
    """Bands lie below each other without a gap, from the first row to the last."""
    where, at = f"segment `{segment.name}`", 0
    if not join_of(design.join).bands:
        if any(b.rows is not None for b in design.branches):
            raise StretchError(f"{where} has branches of some rows, which `{design.join}` does not join", 'set join = "rows"')
        return
    rows = height(segment.graph.by_name[segment.end].shape)
    if len(design.branches) > rows:
        raise StretchError(
            f"{where} has {rows} rows for {len(design.branches)} processors, so that one of them has none",
            "divide them among fewer processors",
        )
    for branch in design.branches:
        if branch.rows is None:
            raise StretchError(
                f"{where} is joined by rows, its branch on {branch.processor} does not say which it computes",
                "give it rows = [first, behind the last]",
            )
        start, stop = branch.rows
        if start != at or stop <= start:
            raise StretchError(
                f"{where} has rows {start} to {stop} on {branch.processor}, where rows from {at} on are due",
                f"the bands follow each other from row 0 to {rows}, and none is empty",
            )
        at = stop
    if at != rows:
        raise StretchError(f"{where} has bands up to row {at}, its output has {rows} rows", "let the last band end there")


def _check_paths(segment: Segment, design: SegmentDesign) -> None:
    """The branches compute every path once, in order."""
    where, join = f"segment `{segment.name}`", join_of(design.join)
    if not join.paths:
        if any(b.paths is not None for b in design.branches):
            raise StretchError(f"{where} has branches of some paths, which `{design.join}` does not join", 'leave out its "join"')
        return
    kind, count = segment.graph.by_name[segment.end].kind, len(find_paths(segment.graph))
    if JOINS.get(kind) != design.join or not count:
        raise StretchError(
            f"{where} ends with `{segment.end}` ({kind}), which does not join paths of its own by `{design.join}`",
            "let it start and end where the network branches and meets",
        )
    parts = [b.paths for b in design.branches if b.paths is not None]
    if len(parts) < len(design.branches) or not whole_paths(parts, count):
        raise StretchError(
            f"{where} has {count} paths, and its branches do not compute each of them once, in order",
            "say paths = [first, behind the last]",
        )


def scaled_graph(graph: OpGraph, design: BranchDesign) -> OpGraph:
    """The branched network (the paper's G_branch).

    Operators are called ``<segment>_<processor>_<original name>``, joins
    ``<segment>_join``. Tags say `origin`, `segment`, `processor`, `subgraph`
    and `meeting_point` (``true`` on the operator that ends a meeting).

    Raises:
        StretchError: If the design does not fit the network.
    """
    ops: list[Op] = [graph.input]
    at = graph.input.name
    for part, branches in zip(design.segments, scaled_branches(graph, design), strict=True):
        handed, ends = {part.start: at}, []
        for name, scale, branch in zip(part.names, part.branches, branches, strict=True):
            named, written = _renamed(part.name, name, scale.processor, branch.graph, handed)
            ops += named
            handed |= written
            ends.append(next(reversed(written.values())))
        at = ends[-1]
        if join_of(part.join).meets is not None and len(ends) > 1:
            at = f"{part.name}_join"
            tags = {"segment": part.name, "processor": host_processor(design), "subgraph": f"{part.name}.join", "meeting_point": "true"}
            ops.append(Op(at, meeting_of(part.join).operator, tuple(ends), tags=tags))
    return OpGraph.build(graph.name, ops, at)


def host_processor(design: BranchDesign) -> str:
    """The processor that waits and joins: the design's host, else its first processor."""
    return host_among(design.processors) or design.processors[0]


def _renamed(segment: str, name: str, processor: str, branch: OpGraph, handed: Mapping[str, str]) -> tuple[list[Op], dict[str, str]]:
    """Operators of a branch with their names in the whole network, and those of what it writes.

    Args:
        segment: Name of its segment.
        name: Its own.
        processor: Where it runs.
        branch: Its graph.
        handed: What it may read, by the names there.
    """
    prefix = f"{segment}_{safe_name(name)}_"
    names: Mapping[str, str] = {op.name: handed[op.name] if op.kind == "input" else prefix + op.name for op in branch.ops}
    tags = {"segment": segment, "processor": processor, "subgraph": f"{segment}.{name}", "meeting_point": "false"}
    ops = [
        Op(names[op.name], op.kind, tuple(names[n] for n in op.inputs), op.attrs, tags={**op.tags, **tags, "origin": op.name})
        for op in branch.ops
        if op.kind != "input"
    ]
    return ops, {output: names[output] for output in branch.outputs}
