"""One run of a traced network: shapes, constants, and which operator a changed tensor comes from."""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from stretch.capture.structure import tensors
from stretch.operators.capturing import Refusal


class InPlaceProxy(fx.Proxy):
    """A proxy that records ``x += y`` as the in-place operation it is.

    fx itself records it as ``x = x + y``, so that another name of `x` would
    keep the old value, which it does not when the network runs.
    """

    def __iadd__(self, other: Any) -> fx.Proxy:
        """``self += other``."""
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        """``self -= other``."""
        return self._in_place(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        """``self *= other``."""
        return self._in_place(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        """``self /= other``."""
        return self._in_place(operator.itruediv, other)

    def _in_place(self, function: Callable[..., Any], other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})


def assembles(node: fx.Node) -> bool:
    """Whether a node only puts tensors into a container: a named tuple, or a dataclass."""
    target = node.target
    return isinstance(target, type) and (hasattr(target, "_fields") or dataclasses.is_dataclass(target))


class Values(fx.Interpreter):
    """Runs the traced graph once and keeps what lowering needs.

    Attributes:
        shapes: Shape of each node's tensor.
        constants: Values of nodes that are no tensors.
        parts: Values of nodes that are several tensors.
        parameters: Tensors that do not depend on the input: parameters,
            buffers, and what is computed of them alone.
        given_back: What it returned.
        returned: What the network itself returned for the same inputs.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.constants: dict[fx.Node, Any] = {}
        self.parts: dict[fx.Node, tuple[torch.Tensor, ...]] = {}
        self.parameters: dict[fx.Node, torch.Tensor] = {}
        self.given_back: Any = None
        self.returned: Any = None
        self._versions: dict[fx.Node, int] = {}
        self._latest: dict[int, tuple[fx.Node, int]] = {}
        self._moved: dict[tuple[fx.Node, fx.Node], fx.Node | None] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and note what it read and wrote."""
        for source in n.all_input_nodes:
            value = self.env[source]
            if isinstance(value, torch.Tensor) and value._version != self._versions[source]:
                # Somebody changed it since: if through this very tensor, his result is what is read.
                writer, version = self._latest[id(value)]
                self._moved[n, source] = writer if version == value._version else None
        fixed = n.op in ("get_attr", "call_function", "call_method") and all(
            source in self.parameters or source in self.constants for source in n.all_input_nodes
        )
        value = super().run_node(n)
        if n.op == "output":
            self.given_back = value
        elif isinstance(value, torch.Tensor):
            self.shapes[n] = tuple(value.shape)
            self._versions[n] = value._version
            self._latest[id(value)] = (n, value._version)
            if fixed:
                self.parameters[n] = value
        elif isinstance(value, tuple | list) and any(isinstance(part, torch.Tensor) for part in value):
            self.parts[n] = tuple(value)
        else:
            self.constants[n] = value
        if not isinstance(value, torch.Tensor) and n.op != "output" and not assembles(n):
            # a tensor that has no node of its own is not taken for an earlier one that lay at the same place
            self._latest |= {id(part): (n, part._version) for part in tensors(value)}
        return value

    def writer(self, tensor: torch.Tensor) -> fx.Node:
        """The node whose result a tensor of the output is."""
        writer, version = self._latest[id(tensor)]
        if version != tensor._version:
            raise Refusal(f"it returns `{writer.name}`, which was changed in place through a view of it")
        if writer not in self.shapes:
            raise Refusal(f"it returns one of several results of `{writer.name}`")
        return writer

    def source(self, reader: fx.Node, read: fx.Node) -> fx.Node:
        """The node whose result `reader` sees where it reads `read`.

        Another one where the tensor was changed in place in between.
        """
        value = self._moved.get((reader, read), read)
        if value is None:
            raise Refusal(f"it reads `{read.name}`, which was changed in place through a view of it")
        return value
