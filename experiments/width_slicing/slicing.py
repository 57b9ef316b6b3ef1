"""Every channel group of a captured network at half of its width, and whether that is the masked parent."""

from typing import TYPE_CHECKING

from predictors.operators import kind_of
from stretch.planning.design.scale import ScaledBranch, narrowed_ops
from stretch.planning.network.segments import ChannelGroups, channel_groups

if TYPE_CHECKING:
    import torch

    from predictors.graph import OpGraph
    from stretch.capture import Captured
    from stretch.transform.model import Branch

#: Share of the units that each group keeps.
KEPT = 0.5

#: Kinds that normalise over channels: in a narrower network over those that are left, where zeros would count.
_NORMALISE = frozenset({"layer_norm", "group_norm", "softmax", "log_softmax", "channel_mean"})


def kept_units(graph: "OpGraph", channels: ChannelGroups) -> dict[int, int]:
    """Units that each group keeps: half of them, all of the input's, of the classes and of those that are held fast."""
    fixed = {channels.input_group, *(group for name in graph.outputs for group, _ in channels.pieces[name]), *channels.frozen}
    return {group: units if group in fixed else max(1, int(units * KEPT)) for group, units in channels.units.items()}


def sliced(captured: "Captured") -> "tuple[Branch, ScaledBranch, dict[int, torch.Tensor]]":
    """The network of half the width, with the units of the largest L1 norm and their weights.

    Args:
        captured: The network.

    Returns:
        The module, what it is a narrower copy of, and the units that each group keeps.
    """
    import torch

    from stretch.transform.build import load_weights
    from stretch.transform.model import Branch
    from stretch.transform.width import choose_units, importance, inherit

    graph, channels = captured.graph, channel_groups(captured.graph)
    kept = kept_units(graph, channels)
    narrow = OpGraph.build(graph.name, narrowed_ops(graph, channels, kept), graph.outputs)
    branch = ScaledBranch(narrow, graph, channels, kept, 0)
    chosen = choose_units(branch, importance(graph, channels, captured.weights), 0, sliced=False)
    module = Branch(narrow).eval()
    with torch.no_grad():
        for name, weights in inherit(branch, captured, chosen, None).items():
            load_weights(module.get_submodule(name), weights)
    return module, branch, chosen


def distance(captured: "Captured", module: "Branch", branch: ScaledBranch, chosen: "dict[int, torch.Tensor]", x: "torch.Tensor") -> float:
    """Largest difference between the narrow network and its parent with zeros in place of what was left out.

    Normalisations over channels look at those that are left, as they do in the narrow network.

    Args:
        captured: The parent.
        module: The narrow network.
        branch: What it is a narrower copy of.
        chosen: Units that each group keeps.
        x: Input, (n, channels, height, width).

    Returns:
        The difference over the largest of the parent's outputs.
    """
    import torch

    from stretch.operators.lowerings import make_module
    from stretch.transform.build import load_weights
    from stretch.transform.width import kept_channels

    graph = captured.graph
    index = {op.name: kept_channels(branch.channels, graph, op.name, chosen, None).index for op in graph.ops}
    with torch.no_grad():
        values = {graph.input.name: x}
        for op in graph.ops:
            if op.kind == "input":
                continue
            read = [values[name] for name in op.inputs]
            if op.kind in _NORMALISE and not kind_of(op.kind).stated:
                few = module.get_submodule(op.name)(*[value[:, index[name]] for value, name in zip(read, op.inputs, strict=True)])
                values[op.name] = torch.zeros(x.shape[0], *op.shape[1:]).index_copy(1, index[op.name], few)
                continue
            whole = make_module(op, graph.input_shapes(op)).eval()
            load_weights(whole, captured.weights.get(op.name, {}))
            built = whole(*read)
            if built.dim() > 1 and len(index[op.name]) < built.shape[1]:
                mask = torch.zeros(built.shape[1]).index_fill(0, index[op.name], 1.0)
                built = built * mask.reshape(1, -1, *[1] * (built.dim() - 2))
            values[op.name] = built
        want, got = values[graph.output], module(x)
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))
