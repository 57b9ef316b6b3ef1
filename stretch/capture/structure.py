"""What a network returns: tensors within tuples, lists, dictionaries and dataclasses, which are made anew with other tensors."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from predictors.errors import StretchError

#: Nested deeper, a structure is refused.
_DEEPEST = 32


@dataclass(frozen=True)
class Result:
    """In place of a tensor in a returned structure."""

    name: str  # Of the operator that computes it, or of the input that it is.
    key: str  # Its name among the results: the keys and positions that lead to it, such as ``out``, ``boxes_0`` or ``output_1``.


@dataclass(frozen=True)
class Returned:
    """What a network returns, without its numbers."""

    #: The structure, with a `Result` in place of each tensor that depends on the network's inputs; everything else is the network's own.
    template: Any

    @property
    def results(self) -> tuple[Result, ...]:
        """Its tensors, in order; one that is returned twice stands there twice."""
        return tuple(leaf for _, leaf in leaves(self.template) if isinstance(leaf, Result))

    @property
    def plain(self) -> bool:
        """Whether it is one tensor and nothing else."""
        return isinstance(self.template, Result)

    def keys(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """The name of each of a graph's outputs among the results: the first, where one is returned twice."""
        named: dict[str, str] = {}
        for result in self.results:
            named.setdefault(result.name, result.key)
        return tuple(named.get(name, name) for name in outputs)

    def filled(self, values: Mapping[str, Any]) -> Any:
        """The structure with a value in place of each `Result`."""
        held = (leaf for _, leaf in leaves(self.template))
        return rebuilt(self.template, iter([values[leaf.name] if isinstance(leaf, Result) else leaf for leaf in held]))


def leaves(structure: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """What a structure holds, each with the keys and positions that lead to it, in order."""
    if len(path) > _DEEPEST:
        raise StretchError(f"what the network returns is nested more than {_DEEPEST} deep", "let it return its tensors in one dictionary")
    held = _held(structure)
    if held is None:
        return [(path, structure)]
    return [leaf for word, value in held for leaf in leaves(value, (*path, word))]


def _held(structure: Any) -> list[tuple[str, Any]] | None:
    """What a container holds directly, by words; None of something else."""
    if isinstance(structure, dict):
        return [(_word(key), value) for key, value in structure.items()]
    if isinstance(structure, list | tuple):
        words = getattr(structure, "_fields", None) or range(len(structure))
        return [(str(word), value) for word, value in zip(words, structure, strict=True)]
    if dataclasses.is_dataclass(structure) and not isinstance(structure, type | Result):
        return [(field.name, getattr(structure, field.name)) for field in dataclasses.fields(structure)]
    return None


def tensors(structure: Any) -> list[torch.Tensor]:
    """The tensors of a structure, in order."""
    return [leaf for _, leaf in leaves(structure) if isinstance(leaf, torch.Tensor)]


def keyed(structure: Any) -> Iterator[tuple[str, Any]]:
    """What a structure holds, each with a name of its own: its keys joined, ``output_0`` where there are only positions."""
    used: set[str] = set()
    for path, leaf in leaves(structure):
        words = "_".join(path)
        name = "output" if not path else f"output_{words}" if words[0].isdigit() else words
        while name in used:
            name += "_"
        used.add(name)
        yield name, leaf


def rebuilt(structure: Any, built: Iterator[Any]) -> Any:
    """A structure of the same kinds with other leaves.

    Args:
        built: Gives a leaf for each of its `leaves`, in their order.
    """
    held = _held(structure)
    if held is None:
        return next(built)
    parts = [rebuilt(value, built) for _, value in held]
    if isinstance(structure, list | tuple):
        kind = type(structure)
        # a named tuple takes them one by one
        return kind(*parts) if hasattr(structure, "_fields") else kind(parts)
    copied = copy.copy(structure)
    if isinstance(structure, dict):
        for key, part in zip(structure, parts, strict=True):
            copied[key] = part
    else:
        for (name, _), part in zip(held, parts, strict=True):
            object.__setattr__(copied, name, part)
    return copied


def _word(key: Any) -> str:
    """A key as a part of a name."""
    return "".join(c if c.isalnum() else "_" for c in str(key)) or "_"
