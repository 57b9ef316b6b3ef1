"""Parts of a network that can be scaled, parts that are divided exactly, and reasons where neither is possible."""

from typing import Literal

import msgspec

from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from stretch.planning.design.division import divisions
from stretch.planning.network.segments import Segment, backbone_of, cut_points, divide, split_segments

#: Things that a branch may have less of: blocks, channels of the backbone, heads of attention, hidden channels of a block.
Scaled = Literal["depth", "width", "heads", "hidden"]


class StageAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """Possible changes of a stage."""

    name: str  # ``stem``, ``s1``, …, ``head``; of parts other than the backbone ``side1``, …
    shape: tuple[int, ...]  # Of its output, of several outputs of the first.
    depth: int = 1  # Blocks.
    min_depth: int = 1  # Blocks that are never removed.
    heads: int = 0  # Most heads of its attentions; 0 where it has none.
    opaque: int  # Operators that only state their shape, which nothing scales or divides.
    scaled: list[Scaled] = []  # Things that a branch may have less of; nothing where the stage is not stretched.
    exact: list[str] = []  # Exact divisions of one part of it or more; where there are none the stage is placed as it is.
    why: str  # Why it is not stretched; empty where it is.


def stage_abilities(graph: OpGraph) -> list[StageAbilities]:
    """Return the possible splits of each stage of a network, and of the parts next to them if it has several inputs or outputs."""
    backbone, result = backbone_of(graph), []
    for stage in split_segments(backbone.graph):
        scaled, ops = _scaled(stage) if stage.branchable else [], stage.graph.ops
        parts = [part.graph for part in divide(backbone.graph, stage, frozenset(cut_points(backbone.graph)), False, True)]
        exact = [
            word
            for division in divisions().values()
            for word in sorted({word for part in parts for word in division.divisible_tensors(part)})
        ]
        result.append(
            StageAbilities(
                name=stage.name,
                shape=backbone.graph.by_name[stage.end].shape,
                depth=stage.depth,
                min_depth=stage.min_depth,
                heads=max((int(str(op.attrs["heads"])) for op in ops if op.kind == "attention"), default=0),
                opaque=sum(op.kind == "opaque" for op in ops),
                scaled=scaled,
                exact=exact,
                why="" if scaled else _unbranchable_reason(stage),
            )
        )
    for side in backbone.sides:
        opaque, shape = sum(op.kind == "opaque" for op in side.ops), side.by_name[side.outputs[0]].shape
        result.append(StageAbilities(name=side.name, shape=shape, opaque=opaque, why="it is outside the backbone and runs whole"))
    return result


def _scaled(stage: Segment) -> list[Scaled]:
    groups = stage.channels
    free = {group for group, units in groups.units.items() if units > 1} - groups.frozen - {groups.input_group}
    backbone = {group for group, _ in groups.pieces[stage.end]}
    heads = {group for op in stage.graph.ops if op.kind == "attention" for group, _ in groups.pieces[op.name]}
    scaled: list[Scaled] = []
    if stage.min_depth < stage.depth:
        scaled.append("depth")
    if not stage.fixed_width:
        scaled.append("width")
    if free & heads:
        scaled.append("heads")
    if free - heads - backbone:
        scaled.append("hidden")
    return scaled


def _unbranchable_reason(stage: Segment) -> str:
    if stage.name == "head":
        return "the head stays whole"
    if stage.name == "stem":
        return "the stem stays whole where segments are stages"
    holding = next((op for op in stage.graph.ops if kind_of(op.kind).stated), None)
    if not stage.branchable:
        return f"`{stage.start}` or `{stage.end}` is no feature map{_named_operator(holding)}"
    return f"its channels are held fast and no block may go{_named_operator(holding)}"


def _named_operator(op: Op | None) -> str:
    return "" if op is None else f", since `{op.name}` ({op.attrs.get('variant', op.kind)}) only states its shape"
