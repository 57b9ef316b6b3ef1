"""A torch network while it is written from a file: calls of torch whose shapes are worked out without data."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import fx, nn
from torch.func import functional_call

from predictors.errors import StretchError, first_line
from scheduler.formats.onnx.checks import MAX_ALIVE

#: How a format's rules see a tensor of the running network.
View = TypeVar("View")


@dataclass(frozen=True)
class OperatorInputs(Generic[View]):
    """What one operator reads."""

    inputs: Sequence[View | np.ndarray | None]  # In the order of the file: tensors of the network, stored ones, None where one is left out.

    def value(self, i: int) -> View | np.ndarray | None:
        """Input `i`, or None where it is left out."""
        return self.inputs[i] if i < len(self.inputs) else None

    def known(self, i: int, what: str) -> np.ndarray:
        """Input `i`, which the file must store."""
        value = self.value(i)
        if not isinstance(value, np.ndarray):
            raise StretchError(f"its {what} depends on what the network reads, or is left out")
        return value

    def optional(self, i: int, what: str) -> np.ndarray | None:
        """Input `i`, which the file stores if it is there."""
        return None if self.value(i) is None else self.known(i, what)


#: Elements that a tensor of stored ones alone may have.
MAX_KNOWN = 1 << 26

#: What a network that is read from a file says of itself: no module or tensor of it is called so.
_STATED = ("input_shape", "warnings")


class Builder:
    """A torch network while it is written; shapes are worked out on tensors without data.

    Args:
        shapes: Of the input, or of several by the names of the forward's arguments, which are words of Python.

    Attributes:
        inputs: What stands for each input, by its argument.
    """

    def __init__(self, shapes: Sequence[int] | Mapping[str, Sequence[int]]) -> None:
        self._root, self._graph = nn.Module(), fx.Graph()
        self.inputs: dict[str, fx.Node] = {}
        for name, shape in (shapes if isinstance(shapes, Mapping) else {"x": shapes}).items():
            self.inputs[name] = self._graph.placeholder(name)
            self.inputs[name].meta["val"] = torch.empty(tuple(shape), device="meta")

    @property
    def input(self) -> fx.Node:
        """What stands for the first input."""
        return next(iter(self.inputs.values()))

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A call of a function of torch."""
        return self._record(self._graph.call_function(function, args, kwargs), lambda *a, **k: function(*a, **k))

    def method(self, name: str, x: fx.Node, *args: Any) -> fx.Node:
        """A call of a method of a tensor."""
        return self._record(self._graph.call_method(name, (x, *args)), lambda self, *a: getattr(self, name)(*a))

    def module(self, module: nn.Module, x: fx.Node, name: str) -> fx.Node:
        """A module that reads one tensor, under a name of its own."""
        current = self._own(name)
        self._root.add_module(current, module.eval())
        state = {key: item.to("meta") for key, item in module.state_dict().items()}
        return self._record(self._graph.call_module(current, (x,)), lambda seen: functional_call(module, state, (seen,)))

    def behind(self, node: fx.Node) -> nn.Module | None:
        """The module that gives this, if one does."""
        return self._root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def value(self, node: Any) -> torch.Tensor | None:
        """The stored tensor that a node stands for; None for anything else."""
        return attrgetter(str(node.target))(self._root) if isinstance(node, fx.Node) and node.op == "get_attr" else None

    def stored(self, x: np.ndarray, name: str) -> fx.Node:
        """A stored tensor: trained with the network if it is of reals."""
        current, value = self._own(name), torch.from_numpy(np.array(x))
        if value.is_floating_point():
            self._root.register_parameter(current, nn.Parameter(value))
        else:
            self._root.register_buffer(current, value)
        node = self._graph.get_attr(current)
        node.meta["val"] = value.to("meta")
        return node

    def evaluated(self, node: fx.Node) -> np.ndarray:
        """The numbers that a node gives which depends on stored tensors alone."""
        if prod(shape_of(node)) > MAX_KNOWN:
            raise StretchError("it makes a stored tensor too large")
        with torch.no_grad():
            numbers: np.ndarray = self.finish(node, "Known")(torch.zeros(1)).numpy()
        return numbers

    def finish(self, result: Any, name: str) -> fx.GraphModule:
        """The network that returns this: calls within tuples, lists and dictionaries; what leads to nothing is left out."""
        self._graph.output(result)
        graph_module = fx.GraphModule(self._root, self._graph, name)
        graph_module.graph.eliminate_dead_code()
        graph_module.delete_all_unused_submodules()
        graph_module.recompile()
        return graph_module.eval()

    def _record(self, node: fx.Node, compute: Callable[..., Any]) -> fx.Node:
        try:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda item: item.meta["val"])
            with torch.no_grad():
                built = compute(*args, **kwargs)
        # Torch raises an error of its own kind for each thing that does not fit.
        except Exception as error:
            raise StretchError(f"torch does not take what it reads: {first_line(error)[:160]}") from error
        parts = built if isinstance(built, tuple | list) else (built,)
        sizes = [part.numel() for part in parts if isinstance(part, torch.Tensor)]
        if not all(0 < size <= MAX_ALIVE for size in sizes):
            raise StretchError(f"it makes a tensor of {max(sizes):.1e} elements, 1 to {MAX_ALIVE:.1e} are allowed")
        node.meta["val"] = built
        return node

    def _own(self, name: str) -> str:
        """A name for a submodule or parameter, like the one in the file."""
        plain = result = plain_name(name)
        count = 1
        while hasattr(self._root, result) or _taken(result):
            result, count = f"{plain}_{count}", count + 1
        return result


def _taken(name: str) -> bool:
    """Whether something else of a network is called so."""
    return hasattr(fx.GraphModule, name) or name in _STATED


def plain_name(name: str) -> str:
    """A name that code may hold, for fx writes it into some."""
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return plain if plain and not plain[0].isdigit() else f"n_{plain}"


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Shape of what a node of the network gives."""
    return tuple(node.meta["val"].shape)


def turned(builder: Builder, x: fx.Node, order: Sequence[int]) -> fx.Node:
    """A tensor with its axes in another order; what was turned before is not turned back and forth."""
    order = tuple(order)
    if order == tuple(range(len(order))):
        return x
    if x.op == "call_function" and x.target is torch.permute:
        earlier, first = x.args
        assert isinstance(earlier, fx.Node)
        together = tuple(first[i] for i in order)  # type: ignore[index]
        return turned(builder, earlier, together)
    return builder.call(torch.permute, x, order)


def filled(module: nn.Module, **numbers: np.ndarray | None) -> nn.Module:
    """The module with these parameters and statistics, by name; None for one that it has not."""
    for name, number in numbers.items():
        current = getattr(module, name)
        if number is not None and tuple(current.shape) != number.shape:
            raise StretchError(f"its weights have the shape {list(number.shape)}, {list(current.shape)} are needed")
        if number is not None:
            # The file's array may lie in memory that cannot be written.
            value = torch.from_numpy(number.copy())
            setattr(module, name, nn.Parameter(value) if isinstance(current, nn.Parameter) else value)
    return module
