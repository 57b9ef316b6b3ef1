"""Operators with fewer channels."""

from collections.abc import Mapping

from predictors.channels import Narrowed
from predictors.graph import Op, OpGraph
from predictors.kinds import unscaled
from predictors.operators import kind_of
from stretch.planning.network.channels import ChannelGroups


def narrowed_ops(source: OpGraph, channels: ChannelGroups, kept: Mapping[int, int]) -> list[Op]:
    """The operators of a graph whose channel groups keep some of their units; their attributes are those of the channels that are left.

    Args:
        source: The graph; what has no input stays as it is.
        channels: Its channel groups.
        kept: Units that each group keeps.
    """
    widths = channels.widths(kept)
    return [narrowed_op(op, source, channels, kept, widths) if op.inputs else op for op in source.ops]


def narrowed_op(op: Op, source: OpGraph, channels: ChannelGroups, kept: Mapping[int, int], widths: Mapping[str, int]) -> Op:
    """One of these operators.

    Args:
        op: The operator; it reads something.
        source: The graph.
        channels: Its channel groups.
        kept: Units that each group keeps.
        widths: Channels that are left of what it reads first and of what it writes, by operator.
    """
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
    """A graph whose channel groups keep some of their units.

    Args:
        graph: The original; its input keeps its channels.
        channels: Its channel groups.
        kept: Units that each group keeps.

    Raises:
        StretchError: If operators do not fit each other then.
    """
    return OpGraph.build(graph.name, narrowed_ops(graph, channels, kept), graph.outputs)
