"""Parts of a network that can be scaled or divided exactly, and the reasons for parts that cannot."""

from typing import Literal

import msgspec

from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from stretch.planning.design.branch_design import divisions
from stretch.planning.network.segments import Segment, backbone_of, cut_points, divide, split_segments

#: Dimensions of which a branch may have less: blocks, channels of the backbone, attention heads, hidden channels of a block.
Scaled = Literal["depth", "width", "heads", "hidden"]


class StageAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """Possible changes of a stage."""

    name: str  # ``stem``, ``s1``, …, ``head``; ``side1``, … for parts outside the backbone.
    shape: tuple[int, ...]  # Shape of its output, or of the first of several.
    depth: int = 1  # Number of blocks.
    min_depth: int = 1  # Number of blocks that are never removed.
    heads: int = 0  # Maximum number of heads of its attention operators; 0 without attention.
    opaque: int  # Number of operators of unknown kind, which cannot be scaled or divided.
    scaled: list[Scaled] = []  # Dimensions of which a branch may have less; empty if the stage cannot be stretched.
    exact: list[str] = []  # Exact divisions of at least one of its parts; empty if the stage stays whole.
    why: str  # Reason why it cannot be stretched; empty if it can.


def stage_abilities(graph: OpGraph) -> list[StageAbilities]:
    """Return the possible changes of each stage of a network, and of its sides if it has several inputs or outputs."""
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
