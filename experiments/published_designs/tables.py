"""Stage tables in the terms of pycls, and design files for our captured networks.

A branch of a published design is written as pycls writes a network: DEPTHS, WIDTHS,
STRIDES, GROUP_WIDTHS and bottleneck multipliers, a number a stage. The mapping:

- Stage ``i`` ends behind its last block: at the last cut point of the captured network that has
  the original's channels and pixels of that stage. The stem and the head stay whole.
- DEPTHS are depths, 0 where a branch has no part of a stage. WIDTHS are first brought in line with
  group widths and multipliers, as pycls does when it builds a block; then they are widths.
- STRIDES and multipliers are those of the network; a table of others describes another network.
- Hidden channels follow the width, in steps that leave pycls's own numbers as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd, lcm, prod

from predictors.errors import StretchError, UnknownNameError
from predictors.graph import OpGraph
from predictors.joins import JoinKind
from stretch.planning.design.branch_design import BranchDesign, BranchDraft, DesignDraft, SegmentDraft
from stretch.planning.design.scale import scaled_branches
from stretch.planning.network.segments import cut_points, split_segments

#: The release of paper 003 rounds widths to multiples of this.
STEP = 8


@dataclass(frozen=True)
class StageTable:
    """A network, or a branch of one, in pycls's terms: a number a stage."""

    depths: tuple[int, ...]  # Blocks; 0 where a branch has no part of the stage.
    widths: tuple[int, ...]  # Channels that the stage's blocks write.
    strides: tuple[int, ...] = ()  # Of each stage's first block; empty for those of the network.
    group_widths: tuple[int, ...] = ()  # Channels of a group of the spatial convolution; empty for those of the network.
    multipliers: tuple[float, ...] = ()  # Hidden channels of a block over those it writes; empty for those of the network.

    def __post_init__(self) -> None:
        """Check that all rows have as many numbers.

        Raises:
            StretchError: If one has more or fewer.
        """
        for name in ("widths", "strides", "group_widths", "multipliers"):
            row = getattr(self, name)
            if len(row) != len(self.depths) and (row or name == "widths"):
                raise StretchError(
                    f"a stage table has {len(self.depths)} depths and {len(row)} {name.replace('_', ' ')}", "give a number for each stage"
                )


@dataclass(frozen=True)
class Original:
    """A network of paper 003 as its authors' configurations describe it."""

    table: StageTable  # All of it.
    stem_stride: int  # Pixels of the input over those that arrive at the first stage, in one direction.
    join: JoinKind  # How its branches meet in the release: outputs side by side, or a 1×1 convolution each and then side by side.
    changes: tuple[str, ...] = ()  # What the authors changed in all of it to deploy it (paper 003, section 7.2).
    rewrites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # What they changed on one processor.


#: Hidden channels of ResNet-50's blocks over those that they write.
BOTTLENECK = 0.25
#: Mobile GPUs have no grouped convolutions: a small convolution for each group stands in their place.
PARTS = {"gpu": ("grouped_conv=parts",)}
#: By the names that load them here.
ORIGINALS: dict[str, Original] = {
    "resnet34": Original(StageTable((3, 4, 6, 3), (64, 128, 256, 512), (1, 2, 2, 2)), 4, "concat"),
    "resnet50": Original(
        StageTable((3, 4, 6, 3), (256, 512, 1024, 2048), (1, 2, 2, 2), (64, 128, 256, 512), (BOTTLENECK,) * 4), 4, "concat"
    ),
    "regnet_x_1_6gf": Original(
        StageTable((2, 4, 10, 2), (72, 168, 408, 912), (2,) * 4, (24,) * 4, (1.0,) * 4), 2, "concat", rewrites=PARTS
    ),
    "timm:regnetx_040": Original(
        StageTable((2, 5, 14, 2), (80, 240, 560, 1360), (2,) * 4, (40,) * 4, (1.0,) * 4), 2, "concat", rewrites=PARTS
    ),
    "timm:efficientnet_lite4": Original(
        StageTable((1, 4, 4, 6, 6, 8, 1), (24, 32, 56, 112, 160, 272, 448), (1, 2, 2, 2, 1, 2, 1)), 2, "project"
    ),
    "efficientnet_b5": Original(
        StageTable((3, 5, 5, 7, 7, 9, 3), (24, 40, 64, 128, 176, 304, 512), (1, 2, 2, 2, 1, 2, 1)),
        2,
        "project",
        ("squeeze_excite=none",),
        {"cpu": ("silu=relu6",)},
    ),
}


def original_of(model: str) -> Original:
    """The table of a network.

    Raises:
        UnknownNameError: If there is none.
    """
    if model not in ORIGINALS:
        raise UnknownNameError.among("network of a stage table", model, ORIGINALS)
    return ORIGINALS[model]


def compatible(width: int, multiplier: float, group: int) -> tuple[int, int, int]:
    """Width, hidden channels and group width of a block as pycls builds it: hidden channels in whole groups come first.

    Args:
        width: As the table has it.
        multiplier: Hidden channels over written ones.
        group: Group width as the table has it.
    """
    hidden = max(1, int(width * multiplier))
    group = min(group, hidden)
    step = lcm(group, int(multiplier)) if multiplier > 1 else group
    hidden = max(step, round(hidden / step) * step)
    return int(hidden / multiplier), hidden, group


def stage_ends(graph: OpGraph, original: Original) -> list[str]:
    """The tensor that starts the first stage, and the one that ends each stage.

    Args:
        graph: The captured network, of one square image.
        original: Its table.

    Raises:
        StretchError: If the network has no such stage.
    """
    cuts = [graph.by_name[name] for name in cut_points(graph)]
    order = {op.name: i for i, op in enumerate(graph.ops)}
    ends = [split_segments(graph)[0].end]
    for number, width in enumerate(original.table.widths, start=1):
        pixels = graph.input.shape[-1] // (original.stem_stride * prod(original.table.strides[:number]))
        shape = (width, pixels, pixels)
        names = [op.name for op in cuts if op.shape[1:] == shape and order[op.name] > order[ends[-1]]]
        if not names:
            raise StretchError(f"stage {number} of `{graph.name}` should write {'×'.join(map(str, shape))}, and no cut point does")
        ends.append(names[-1])
    return ends


def draft_of(
    graph: OpGraph,
    branches: Mapping[str, StageTable],
    host: str,
    join: JoinKind | None = None,
    rewrites: Mapping[str, Sequence[str]] | None = None,
) -> DesignDraft:
    """A published design as a design file's content.

    Args:
        graph: The captured network, called as in `ORIGINALS`.
        branches: A table for each processor.
        host: Processor of what no table mentions: `resolve_design` takes it for the rest.
        join: How branches meet; the release's way if None.
        rewrites: Operators that have others in their place, by processor.

    Raises:
        UnknownNameError: If there is no table of the network.
        StretchError: If a table has another number of stages, or describes another network.
    """
    original = original_of(graph.name)
    for processor, table in branches.items():
        _check(processor, table, original.table)
    ends = stage_ends(graph, original)
    segments = []
    for i in range(len(original.table.depths)):
        current = [
            _branch(processor, table, original.table, i, tuple((rewrites or {}).get(processor, ())))
            for processor, table in branches.items()
            if table.depths[i]
        ]
        if current:
            meets = (join or original.join) if len(current) > 1 else None
            segments.append(SegmentDraft(branches=current, name=f"s{i + 1}", start=ends[i], end=ends[i + 1], join=meets))
    # pooling and the classifier in one piece: the pool alone would keep the original's channels, whatever arrives
    segments.append(SegmentDraft(branches=[BranchDraft(processor=host)], name="head", start=ends[-1], end=graph.output))
    return DesignDraft(segments=segments, model=graph.name)


def _check(processor: str, table: StageTable, original: StageTable) -> None:
    """Whether a branch is one of this network.

    Raises:
        StretchError: If it has other stages, strides or multipliers, or more blocks.
    """
    if len(table.depths) != len(original.depths):
        raise StretchError(f"branch `{processor}` has {len(table.depths)} stages, the network {len(original.depths)}")
    for name in ("strides", "multipliers"):
        value, known = getattr(table, name), getattr(original, name)
        if value and known and value != known:
            raise StretchError(
                f"branch `{processor}` has the {name} {value}, the network {known}",
                "a design scales depths and widths and leaves those as they are",
            )
    for number, (value, known) in enumerate(zip(table.depths, original.depths, strict=True), start=1):
        if value > known:
            raise StretchError(
                f"branch `{processor}` has {value} blocks in stage {number}, the network {known}", "branches have no more blocks"
            )


def built(table: StageTable, original: StageTable, stage: int) -> tuple[int, int, int | None]:
    """Width, hidden channels and group width (None for dense blocks without one) of a stage as pycls builds it.

    Args:
        table: Of the branch.
        original: Of the network.
        stage: Which, from 0.
    """
    width = table.widths[stage]
    if not original.multipliers:
        return width, width, None
    multiplier, known = original.multipliers[stage], original.group_widths[stage]
    # one group, as in ResNet, is as wide as the hidden channels: those are rounded first
    dense = known == int(original.widths[stage] * multiplier)
    hidden = max(STEP, round(width * multiplier / STEP) * STEP)
    group = table.group_widths[stage] if table.group_widths else hidden if dense else known
    return compatible(width if not dense or table.group_widths else int(hidden / multiplier), multiplier, group)


def _branch(processor: str, table: StageTable, original: StageTable, stage: int, rewrites: tuple[str, ...]) -> BranchDraft:
    width, hidden, _ = built(table, original, stage)
    return BranchDraft(processor=processor, depth=table.depths[stage], width=width, align=gcd(STEP, width, hidden), rewrites=rewrites)


def tables_of(graph: OpGraph, design: BranchDesign) -> dict[str, StageTable]:
    """The tables of a design that `draft_of` made: the way back.

    Args:
        graph: The captured network.
        design: A complete design whose segments end where stages do.

    Raises:
        StretchError: If a segment is none of the network's stages.
    """
    original = original_of(graph.name)
    ends = stage_ends(graph, original)
    stages = {(start, end): i for i, (start, end) in enumerate(pairwise(ends))}
    count, result = len(original.table.depths), dict[str, list[tuple[int, int]]]()
    for part in design.segments:
        stage = stages.get((part.start, part.end))
        if stage is None:
            if part.whole:
                continue
            raise StretchError(f"segment `{part.name}` is none of the stages of `{graph.name}`")
        for branch in part.branches:
            result.setdefault(branch.processor, [(0, 0)] * count)[stage] = (branch.depth, branch.width)
    return {name: StageTable(tuple(depth for depth, _ in rows), tuple(width for _, width in rows)) for name, rows in result.items()}


def differences(graph: OpGraph, design: BranchDesign, branches: Mapping[str, StageTable]) -> list[str]:
    """Where the design's blocks are not those that pycls would build, in words.

    Args:
        graph: The captured network.
        design: Made of `branches`.
        branches: The tables.
    """
    original = original_of(graph.name).table
    if not original.multipliers:
        return []
    result = []
    names = [f"s{i + 1}" for i in range(len(original.depths))]
    for part, scaled in zip(design.segments, scaled_branches(graph, design), strict=True):
        for scale, branch in zip(part.branches, scaled, strict=True):
            if part.name not in names or scale.processor not in branches or not branches[scale.processor].depths[names.index(part.name)]:
                continue
            _, hidden, group = built(branches[scale.processor], original, names.index(part.name))
            for op in branch.graph.ops:
                if op.kind == "conv" and max(op.attrs["kernel"]) > 1:
                    got = (op.shape[1], op.shape[1] // op.attrs["groups"])
                    if got != (hidden, group):
                        where = f"{part.name} on {scale.processor}"
                        result.append(f"{where}: {got[0]} hidden channels in groups of {got[1]}, pycls {hidden} in groups of {group}")
                        break
    return result
