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

#: Maximum nesting of a structure; a deeper one is refused.
_MAX_DEPTH = 32


@dataclass(frozen=True)
class Result:
    """Placeholder of a tensor in a returned structure."""

    name: str  # Name of the operator that computes the tensor, or of the input that is returned.
    key: str  # Name among the results: the keys and positions that lead to the tensor, such as ``out``, ``boxes_0`` or ``output_1``.
    dtype: torch.dtype = torch.float32  # Data type of the tensor that the network returns; operators compute it as float32.

    def convert(self, value: Any) -> Any:
        """Convert a value to the data type that the network returns."""
        return value if self.dtype == torch.float32 else value.to(self.dtype)


@dataclass(frozen=True)
class OutputStructure:
    """Structure of a network's results, without their numbers."""

    #: The structure, with a `Result` in place of each tensor that depends on the network's inputs; everything else is the network's own.
    template: Any

    @property
    def results(self) -> tuple[Result, ...]:
        """Result tensors, in order; one that is returned twice occurs twice."""
        return tuple(leaf for _, leaf in leaves(self.template) if isinstance(leaf, Result))

    @property
    def is_single_tensor(self) -> bool:
        """Whether the network returns a single float32 tensor."""
        return isinstance(self.template, Result) and self.template.dtype == torch.float32

    def keys(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """Return the result name of each of a graph's outputs; the first one if an output is returned twice."""
        named: dict[str, str] = {}
        for result in self.results:
            named.setdefault(result.name, result.key)
        return tuple(named.get(name, name) for name in outputs)

    def substitute(self, values: Mapping[str, Any]) -> Any:
        """Return the structure with a value in place of each `Result`."""
        found = (leaf for _, leaf in leaves(self.template))
        return rebuild(self.template, iter([leaf.convert(values[leaf.name]) if isinstance(leaf, Result) else leaf for leaf in found]))


def leaves(structure: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Return the leaves of a structure in order, each with the keys and positions that lead to it."""
    if len(path) > _MAX_DEPTH:
        raise StretchError(f"the network's results are nested more than {_MAX_DEPTH} deep", "let it return its tensors in one dictionary")
    items = _container_items(structure)
    if items is None:
        return [(path, structure)]
    return [leaf for key, value in items for leaf in leaves(value, (*path, key))]


def _container_items(structure: Any) -> list[tuple[str, Any]] | None:
    """Return the items of a container by name; None for anything else."""
    if isinstance(structure, dict):
        return [("".join(c if c.isalnum() else "_" for c in str(key)) or "_", value) for key, value in structure.items()]
    if isinstance(structure, list | tuple):
        keys = getattr(structure, "_fields", None) or range(len(structure))
        return [(str(field_name), value) for field_name, value in zip(keys, structure, strict=True)]
    if dataclasses.is_dataclass(structure) and not isinstance(structure, type | Result):
        return [(field.name, getattr(structure, field.name)) for field in dataclasses.fields(structure)]
    return None


def tensors(structure: Any) -> list[torch.Tensor]:
    """Return the tensors of a structure, in order."""
    return [leaf for _, leaf in leaves(structure) if isinstance(leaf, torch.Tensor)]


def walk_leaves(structure: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a structure with unique names: the joined keys, or ``output_0`` for positions."""
    used: set[str] = set()
    for path, leaf in leaves(structure):
        joined = "_".join(path)
        name = "output" if not path else f"output_{joined}" if joined[0].isdigit() else joined
        while name in used:
            name += "_"
        used.add(name)
        yield name, leaf


def rebuild(structure: Any, built: Iterator[Any]) -> Any:
    """Rebuild a structure of the same types with other leaves.

    Args:
        built: Yields one new leaf for each of the structure's `leaves`, in their order.
    """
    items = _container_items(structure)
    if items is None:
        return next(built)
    parts = [rebuild(value, built) for _, value in items]
    if isinstance(structure, list | tuple):
        kind = type(structure)
        # a named tuple takes its items as separate arguments
        return kind(*parts) if hasattr(structure, "_fields") else kind(parts)
    copied = copy.copy(structure)
    if isinstance(structure, dict):
        for key, part in zip(structure, parts, strict=True):
            copied[key] = part
    else:
        for (name, _), part in zip(items, parts, strict=True):
            object.__setattr__(copied, name, part)
    return copied


Weights = dict[str, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Captured:
    """A network as data."""

    graph: OpGraph  # The network's operators.
    #: Weights and statistics by operator and name (shapes are those of `OpGraph.op_weights`); the tensors are the module's own.
    weights: Weights
    module: nn.Module  # The network itself.
    refusal: str = ""  # Why tracing could not capture the network, so that some operators may be opaque; empty if it could.
    #: The network's results; by default one tensor, or a tuple of several.
    returned: OutputStructure = field(default=None)  # type: ignore[assignment]
    warnings: tuple[str, ...] = ()  # Warnings about the capture.

    def __post_init__(self) -> None:
        """Take the graph's output as the result if none is given."""
        if self.returned is None:
            object.__setattr__(self, "returned", output_structure(self.graph))

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights and statistics by operator and name, such as ``conv1.weight``."""
        return {f"{op}.{key}": tensor for op, tensors in self.weights.items() for key, tensor in tensors.items()}

    @property
    def opaque(self) -> tuple[str, ...]:
        """Names of the operators that belong to no family and cannot be scaled or divided."""
        return tuple(op.name for op in self.graph.ops if op.kind == "opaque")


def with_shared_weights(captured: Captured) -> Captured:
    """Tag operators with `SHARED` if they share tensors with others, as when a module is called twice."""
    numbers: dict[Any, list[tuple[str, str]]] = {}
    for op, tensors in captured.weights.items():
        for key, tensor in tensors.items():
            # skip tensors that calls of torch read, such as masks, unless they are learned
            if tensor.numel() and (isinstance(tensor, nn.Parameter) or captured.graph.by_name[op].kind != "opaque"):
                storage = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
                numbers.setdefault(storage, []).append((op, key))
    tags: dict[str, list[str]] = {}
    for number, holders in enumerate(holders for holders in numbers.values() if len(holders) > 1):
        for op, key in holders:
            tags.setdefault(op, []).append(f"{key}={number}")
    if not tags:
        return captured
    graph = captured.graph
    ops = [dataclasses.replace(op, tags={**op.tags, SHARED: " ".join(tags[op.name])}) if op.name in tags else op for op in graph.ops]
    return dataclasses.replace(captured, graph=dataclasses.replace(graph, ops=tuple(ops)))


def output_structure(graph: OpGraph) -> OutputStructure:
    """Return the default results of a graph's network: its output, or a tuple of several outputs."""
    results = tuple(Result(name, f"output_{i}") for i, name in enumerate(graph.outputs))
    return OutputStructure(results if len(results) > 1 else Result(results[0].name, "output"))


def name_outputs(output: Any, names: Sequence[str | None]) -> OutputStructure:
    """Return the structure of a network's results, with a `Result` in place of each tensor that depends on its inputs.

    Args:
        names: Name of the operator that computes each leaf; None for a leaf that does not depend on the inputs.
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
    """Refuse a network that does not read one of its inputs."""
    unread = next((op.name for op in graph.inputs if not graph.consumers[op.name]), None)
    need(unread is None, f"nothing that `{graph.name}` returns depends on its input `{unread}`", "wrap it in a module without that input")


def unused_inputs(returned: OutputStructure, inputs: Sequence[str]) -> list[str]:
    """Return the warnings about results that no file can compute: inputs, and tensors that do not depend on them."""
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
    """Return the operators that lead to an output, and all inputs."""
    needed = set(outputs)
    for op in reversed(ops):
        if op.name in needed:
            needed.update(op.inputs)
    return [op for op in ops if op.name in needed or op.kind == "input"]


def named_outputs(output: Any, returned: OutputStructure) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors that a network returned with the names of their operators; none if the structure differs."""
    named = [leaf for _, leaf in leaves(returned.template)]
    output_leaves = [leaf for _, leaf in leaves(output)]
    if len(named) != len(output_leaves):
        return []
    pairs = [(a, b) for a, b in zip(named, output_leaves, strict=True) if isinstance(a, Result) and isinstance(b, torch.Tensor)]
    return [(a.name, b if b.is_floating_point() else b.float()) for a, b in pairs]
