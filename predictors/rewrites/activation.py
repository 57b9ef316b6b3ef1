"""Replacement of activations by cheaper ones."""

from dataclasses import replace

from predictors.graph import OpGraph
from predictors.rewrites import Rewrite, rewrites

#: Smooth or costly activations, and approximations with a few instructions, the closest first.
REPLACEMENTS = {
    "silu": ("hard_swish", "relu6", "relu"),
    "hard_swish": ("relu6", "relu"),
    "gelu": ("hard_swish", "relu6", "relu"),
    "mish": ("hard_swish", "relu6", "relu"),
    "elu": ("relu",),
    "sigmoid": ("hard_sigmoid",),
}


def _replacement(kind: str, by: str) -> Rewrite:
    def rewrite(graph: OpGraph) -> OpGraph:
        if not any(op.kind == kind for op in graph.ops):
            return graph
        ops = (replace(op, kind=by, attrs={}) if op.kind == kind else op for op in graph.ops)
        return OpGraph(graph.name, tuple(ops), graph.outputs)

    return rewrite


for _kind, _others in REPLACEMENTS.items():
    for _by in _others:
        rewrites.register(f"{_kind}={_by}")(_replacement(_kind, _by))
