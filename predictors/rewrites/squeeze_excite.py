"""Squeeze-and-excitation removed: a factor a channel, which waits for the mean of the whole image."""

from dataclasses import replace

from predictors.graph import Op, OpGraph
from predictors.rewrites import rewrites

#: Kinds between the mean and the gate.
_INSIDE = frozenset(
    {"conv", "linear", "relu", "relu6", "silu", "hard_swish", "gelu", "identity", "flatten", "unflatten", "batch_norm", "view"}
)
_GATES = frozenset({"sigmoid", "hard_sigmoid"})


@rewrites.register("squeeze_excite=none")
def remove(graph: OpGraph) -> OpGraph:
    """The graph without factors of channels that are worked out of the mean of what they scale."""
    removed: set[str] = set()
    passed: dict[str, str] = {}
    for op in graph.ops:
        if op.kind == "mul" and len(set(op.inputs)) == 2:
            for image, gate in (op.inputs, op.inputs[::-1]):
                chain = _chain(graph, image, gate, op.name)
                if chain:
                    removed |= chain
                    passed[op.name] = image
                    break
    if not passed:
        return graph
    ops = [
        replace(op, kind="identity", inputs=(passed[op.name],), attrs={}) if op.name in passed else op
        for op in graph.ops
        if op.name not in removed
    ]
    return OpGraph(graph.name, tuple(ops), graph.outputs)


def _chain(graph: OpGraph, image: str, gate: str, reader: str) -> set[str]:
    """Operators from the mean of an image to its gate, which nothing else reads; empty if it is none."""
    names: set[str] = set()
    op: Op = graph.by_name[gate]
    if op.kind not in _GATES:
        return set()
    while True:
        if set(graph.consumers[op.name]) - names - {reader} or op.name in graph.outputs or len(op.inputs) != 1:
            return set()
        names.add(op.name)
        if op.kind == "global_avg_pool":
            return names if op.inputs == (image,) else set()
        if op.kind not in _INSIDE | _GATES:
            return set()
        op = graph.by_name[op.inputs[0]]
