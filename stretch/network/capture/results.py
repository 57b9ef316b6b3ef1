"""A captured network, its result (tensors within tuples, lists, dictionaries and dataclasses), and the operators of these tensors."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from predictors.errors import StretchError, need
from predictors.graph import SHARED, Op, OpGraph

#: Nested deeper, a structure is refused.
_MAX_DEPTH = 32


@dataclass(frozen=True)
class Result:
    """In place of a tensor in a returned structure."""

    name: str  # Of the operator that computes it, or of the input that it is.
    key: str  # Its name among the results: the keys and positions that lead to it, such as ``out``, ``boxes_0`` or ``output_1``.
    dtype: torch.dtype = torch.float32  # Of the tensor that the network returns; operators compute it as reals.

    def convert(self, value: Any) -> Any:
        """Return a value in the type that the network returns."""
        return value if self.dtype == torch.float32 else value.to(self.dtype)


@dataclass(frozen=True)
class OutputStructure:
    """Structure of what a network returns, without its numbers."""

    #: The structure, with a `Result` in place of each tensor that depends on the network's inputs; everything else is the network's own.
    template: Any

    @property
    def results(self) -> tuple[Result, ...]:
        """Return its tensors, in order; one that is returned twice occurs twice."""
        return tuple(leaf for _, leaf in leaves(self.template) if isinstance(leaf, Result))

    @property
    def is_single_tensor(self) -> bool:
        """Whether the network returns a single float32 tensor."""
        return isinstance(self.template, Result) and self.template.dtype == torch.float32

    def keys(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """Return the name of each of a graph's outputs among the results: the first, where one is returned twice."""
        named: dict[str, str] = {}
        for result in self.results:
            named.setdefault(result.name, result.key)
        return tuple(named.get(name, name) for name in outputs)

    def substitute(self, values: Mapping[str, Any]) -> Any:
        """Return the structure with a value in place of each `Result`."""
        held = (leaf for _, leaf in leaves(self.template))
        return rebuild(self.template, iter([leaf.convert(values[leaf.name]) if isinstance(leaf, Result) else leaf for leaf in held]))


def leaves(structure: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Return the content of a structure, each with the keys and positions that lead to it, in order."""
    if len(path) > _MAX_DEPTH:
        raise StretchError(f"the network's results are nested more than {_MAX_DEPTH} deep", "let it return its tensors in one dictionary")
    held = _container_items(structure)
    if held is None:
        return [(path, structure)]
    return [leaf for word, value in held for leaf in leaves(value, (*path, word))]


def _container_items(structure: Any) -> list[tuple[str, Any]] | None:
    """Return the items of a container by name; None for anything else."""
    if isinstance(structure, dict):
        return [("".join(c if c.isalnum() else "_" for c in str(key)) or "_", value) for key, value in structure.items()]
    if isinstance(structure, list | tuple):
        words = getattr(structure, "_fields", None) or range(len(structure))
        return [(str(word), value) for word, value in zip(words, structure, strict=True)]
    if dataclasses.is_dataclass(structure) and not isinstance(structure, type | Result):
        return [(field.name, getattr(structure, field.name)) for field in dataclasses.fields(structure)]
    return None


def tensors(structure: Any) -> list[torch.Tensor]:
    """Return the tensors of a structure, in order."""
    return [leaf for _, leaf in leaves(structure) if isinstance(leaf, torch.Tensor)]


def walk_leaves(structure: Any) -> Iterator[tuple[str, Any]]:
    """Return the content of a structure, each with its own name: its keys joined, ``output_0`` if there are only positions."""
    used: set[str] = set()
    for path, leaf in leaves(structure):
        words = "_".join(path)
        name = "output" if not path else f"output_{words}" if words[0].isdigit() else words
        while name in used:
            name += "_"
        used.add(name)
        yield name, leaf


def rebuild(structure: Any, built: Iterator[Any]) -> Any:
    """Return a structure of the same kinds with other leaves.

    Args:
        built: Gives a leaf for each of its `leaves`, in their order.
    """
    held = _container_items(structure)
    if held is None:
        return next(built)
    parts = [rebuild(value, built) for _, value in held]
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


Weights = dict[str, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Captured:
    """A network as data."""

    graph: OpGraph  # Its operators.
    #: Per operator, its weights and statistics by name (shapes are those of `OpGraph.op_weights`); the tensors are the module's own.
    weights: Weights
    module: nn.Module  # The network itself.
    refusal: str = ""  # Why tracing could not capture it, so that some of its operators may be opaque; empty where it could.
    #: Its results; one tensor, or several as a tuple, where nothing else is known.
    returned: OutputStructure = field(default=None)  # type: ignore[assignment]
    warnings: tuple[str, ...] = ()  # Warnings about its capture.

    def __post_init__(self) -> None:
        """Take the graph's output as the result where none was given."""
        if self.returned is None:
            object.__setattr__(self, "returned", output_structure(self.graph))

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights and statistics by operator and name, such as ``conv1.weight``."""
        return {f"{op}.{key}": tensor for op, tensors in self.weights.items() for key, tensor in tensors.items()}

    @property
    def opaque(self) -> tuple[str, ...]:
        """Names of the operators that no family describes: nothing scales or divides them."""
        return tuple(op.name for op in self.graph.ops if op.kind == "opaque")


def with_shared_weights(captured: Captured) -> Captured:
    """Return the network with the tag `SHARED` on the operators that have the same tensors as others, as where a module is called twice."""
    numbers: dict[Any, list[tuple[str, str]]] = {}
    for op, tensors in captured.weights.items():
        for key, tensor in tensors.items():
            # tensors that calls of torch read, such as masks, unless they are learned
            if tensor.numel() and (isinstance(tensor, nn.Parameter) or captured.graph.by_name[op].kind != "opaque"):
                storage = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
                numbers.setdefault(storage, []).append((op, key))
    words: dict[str, list[str]] = {}
    for number, holders in enumerate(holders for holders in numbers.values() if len(holders) > 1):
        for op, key in holders:
            words.setdefault(op, []).append(f"{key}={number}")
    if not words:
        return captured
    graph = captured.graph
    ops = [dataclasses.replace(op, tags={**op.tags, SHARED: " ".join(words[op.name])}) if op.name in words else op for op in graph.ops]
    return dataclasses.replace(captured, graph=dataclasses.replace(graph, ops=tuple(ops)))


def output_structure(graph: OpGraph) -> OutputStructure:
    """Return the default results of a graph's network: its output, or a tuple of several."""
    results = tuple(Result(name, f"output_{i}") for i, name in enumerate(graph.outputs))
    return OutputStructure(results if len(results) > 1 else Result(results[0].name, "output"))


def name_outputs(output: Any, names: Sequence[str | None]) -> OutputStructure:
    """Return a network's results, with a `Result` in place of each tensor that depends on its inputs.

    Args:
        names: Name of the operator that computes each leaf; None for what does not depend on the inputs.
    """
    built: list[Any] = []
    for (key, leaf), name in zip(walk_leaves(output), names, strict=True):
        if name is not None and isinstance(leaf, torch.Tensor):
            # a network in another precision is planned and computed in float32
            built.append(Result(name, key, torch.float32 if leaf.is_floating_point() else leaf.dtype))
        else:
            built.append(leaf.detach() if isinstance(leaf, torch.Tensor) else leaf)
    return OutputStructure(rebuild(output, iter(built)))


def outputs_of(returned: OutputStructure, inputs: Sequence[str], name: str) -> list[str]:
    """Return the names of the operators that are the network's outputs, each once."""
    results = list(dict.fromkeys(result.name for result in returned.results))
    outputs = [result for result in results if result not in inputs]
    if outputs:
        return outputs
    need(not results, f"`{name}` returns its input: it has no operator", "give a network with layers")
    if any(isinstance(leaf, torch.Tensor) for _, leaf in leaves(returned.template)):
        raise StretchError(f"`{name}` returns something that does not depend on its input", "give a network that reads its input")
    raise StretchError(f"`{name}` returns no tensor", "let its forward return the tensors that it computes")


def check_inputs_used(graph: OpGraph) -> None:
    """See that a network reads each of its inputs."""
    unread = next((op.name for op in graph.inputs if not graph.consumers[op.name]), None)
    need(unread is None, f"nothing that `{graph.name}` returns depends on its input `{unread}`", "wrap it in a module without that input")


def unused_inputs(returned: OutputStructure, inputs: Sequence[str]) -> list[str]:
    """Return the sentences on what a network returns and no file can compute: its inputs, and what does not depend on them."""
    fixed = [key for key, leaf in walk_leaves(returned.template) if not isinstance(leaf, Result)]
    passed = [result.key for result in returned.results if result.name in inputs]
    whole = [result.key for result in returned.results if not result.dtype.is_floating_point]
    sentences = {
        "of the network's results is of whole numbers: the module returns it so, bundles give it as float32": whole,
        "of what the network returns does not depend on its input: the module returns it, bundles leave it out": fixed,
        "of the network's results is its unchanged input: the module returns it, bundles leave it out": passed,
    }
    return [f"{', '.join(f'`{key}`' for key in keys)} {sentence}" for sentence, keys in sentences.items() if keys]


def reachable(ops: Sequence[Op], outputs: Sequence[str]) -> list[Op]:
    """Return the operators without those that do not lead to an output; inputs stay."""
    needed = set(outputs)
    for op in reversed(ops):
        if op.name in needed:
            needed.update(op.inputs)
    return [op for op in ops if op.name in needed or op.kind == "input"]


def named_outputs(output: Any, returned: OutputStructure) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors that a network returned, as operators compute them, each with its operator's name; none where it is of another form."""
    named = [leaf for _, leaf in leaves(returned.template)]
    output_leaves = [leaf for _, leaf in leaves(output)]
    if len(named) != len(output_leaves):
        return []
    held = [(a, b) for a, b in zip(named, output_leaves, strict=True) if isinstance(a, Result) and isinstance(b, torch.Tensor)]
    return [(a.name, b if b.is_floating_point() else b.float()) for a, b in held]
