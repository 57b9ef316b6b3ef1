"""Operators with fewer channels."""

from collections.abc import Mapping

from predictors.channels import Narrowed
from predictors.graph import Op, OpGraph
from predictors.kinds import unscaled
from predictors.operators import kind_of
from stretch.planning.network.channels import ChannelGroups


def narrowed_ops(source: OpGraph, channels: ChannelGroups, kept: Mapping[int, int]) -> list[Op]:
    """The operators of a graph whose channel groups keep some of their units; their attributes are those of the channels that are left."""
    widths = channels.widths(kept)
    return [narrowed_op(op, source, channels, kept, widths) if op.inputs else op for op in source.ops]


def narrowed_op(op: Op, source: OpGraph, channels: ChannelGroups, kept: Mapping[int, int], widths: Mapping[str, int]) -> Op:
    """One of these operators."""
    first, scaled = op.inputs[0], kind_of(op.kind).scaled
    if scaled is unscaled:
        return op
    change = Narrowed(
        before=source.by_name[first].shape[1],
        after=widths[first],
        out=widths[op.name],
        position=lambda channel: channels.position(first, channel, kept),
    )
    return Op(op.name, op.kind, op.inputs, scaled(op.attrs, change), tags=op.tags)


def narrowed_graph(graph: OpGraph, channels: ChannelGroups, kept: Mapping[int, int]) -> OpGraph:
    """A graph whose channel groups keep some of their units."""
    return OpGraph.build(graph.name, narrowed_ops(graph, channels, kept), graph.outputs)
