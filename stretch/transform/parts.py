"""Weights of operators that processors run in parts: a torch module has them in one piece, files and code have those of each part."""

from collections.abc import Mapping
from typing import Any

from predictors.graph import OpGraph
from predictors.rewrites.grouped import owner_of

#: Tensors or arrays by operator and key.
Weights = dict[str, dict[str, Any]]


def weights_in_parts(graph: OpGraph, weights: Mapping[str, Mapping[str, Any]]) -> Weights:
    """The weights of a graph's operators, those of parts cut out of the whole operator's; they share its storage.

    Args:
        graph: As processors run it (`predictors.rewrites.grouped`).
    """
    found: Weights = {name: dict(own) for name, own in weights.items()}
    for owner, parts in _parts(graph).items():
        for key, tensor in found.pop(owner, {}).items():
            rows = len(tensor) // len(parts)
            for number, name in enumerate(parts):
                found.setdefault(name, {})[key] = tensor[number * rows : (number + 1) * rows]
    return found


def weights_of_wholes(graph: OpGraph, weights: Mapping[str, Mapping[str, Any]]) -> Weights:
    """What `weights_in_parts` cut, in one piece again; parts that lack a weight leave the operator without it.

    Args:
        weights: By the names of parts; tensors of torch.
    """
    import torch

    found: Weights = {name: dict(own) for name, own in weights.items()}
    for owner, parts in _parts(graph).items():
        given = [found.pop(name, {}) for name in parts]
        common = [key for key in given[0] if all(key in own for own in given)]
        found[owner] = {key: torch.cat([own[key] for own in given]) for key in common}
    return found


def _parts(graph: OpGraph) -> dict[str, list[str]]:
    """Parts with weights of each whole operator, in order of their channels."""
    found: dict[str, list[str]] = {}
    for op in graph.ops:
        if owner_of(op) != op.name and graph.op_weights(op):
            found.setdefault(owner_of(op), []).append(op.name)
    return found
