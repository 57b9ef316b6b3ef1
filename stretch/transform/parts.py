"""Weights of divided operators: a torch module has them as a whole, files and code have those of each part."""

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
    in_parts: Weights = {name: dict(tensors) for name, tensors in weights.items()}
    for owner, parts in _parts(graph).items():
        for key, tensor in in_parts.pop(owner, {}).items():
            rows = len(tensor) // len(parts)
            for number, name in enumerate(parts):
                in_parts.setdefault(name, {})[key] = tensor[number * rows : (number + 1) * rows]
    return in_parts


def weights_of_wholes(graph: OpGraph, weights: Mapping[str, Mapping[str, Any]]) -> Weights:
    """The inverse of `weights_in_parts`; an operator lacks a weight if one of its parts does."""
    import torch

    in_wholes: Weights = {name: dict(tensors) for name, tensors in weights.items()}
    for owner, parts in _parts(graph).items():
        part_weights = [in_wholes.pop(name, {}) for name in parts]
        common = [key for key in part_weights[0] if all(key in tensors for tensors in part_weights)]
        in_wholes[owner] = {key: torch.cat([tensors[key] for tensors in part_weights]) for key in common}
    return in_wholes


def _parts(graph: OpGraph) -> dict[str, list[str]]:
    """Parts with weights of each whole operator, in order of their channels."""
    parts: dict[str, list[str]] = {}
    for op in graph.ops:
        if owner_of(op) != op.name and graph.op_weights(op):
            parts.setdefault(owner_of(op), []).append(op.name)
    return parts
