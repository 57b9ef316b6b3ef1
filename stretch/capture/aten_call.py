"""A call of an ATen operator as rules see it, and what they make of it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import fx

from predictors.shapes import Attr, Shape
from stretch.capture.factors import Axes


@dataclass(frozen=True)
class AtenValue:
    """A tensor of an exported network."""

    op: str  # Name of the operator that computes it; empty where it depends on weights alone.
    shape: Shape  # As it is seen.
    base: Shape = ()  # As its operator gives it, with the same elements.
    piece: "AtenStep | None" = None  # What cuts it out of another tensor where it is used.
    dtype: torch.dtype | None = None  # Of its elements, where it is known.
    #: The tensor itself, where it depends on weights alone and they are looked at.
    tensor: torch.Tensor | None = field(default=None, compare=False, repr=False)
    learned: bool = False  # Whether that is a parameter, or computed from one.
    axes: Axes | None = None  # What its axes run over in the operator's feature map, where its elements are not in the operator's order.

    def seen(self, shape: Shape) -> "AtenValue":
        """The same elements in another shape."""
        return replace(self, shape=shape, base=self.base or self.shape)


@dataclass(frozen=True)
class AtenStep:
    """One operator of a chain."""

    kind: str  # Its kind.
    attrs: Mapping[str, Attr]  # What the kind needs.
    reads: tuple[AtenValue, ...] = ()  # The tensors that it reads; each operator but the first also reads, before them, the one before it.
    #: Its weights by name, where they are looked at.
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class AtenCall:
    """A call."""

    node: fx.Node  # In the exported graph.
    arguments: Mapping[str, Any]  # Arguments by name.
    shapes: list[Shape] = field(default_factory=list)  # Of its results.

    @property
    def operator(self) -> str:
        """Name of the ATen operator without its overload, such as ``add``; a change in place is no matter."""
        packet = getattr(self.node.target, "_overloadpacket", self.node.target)
        name = getattr(packet, "__name__", str(packet))
        return name.removesuffix("_") if not name.startswith("_") else name

    @property
    def overload(self) -> str:
        """Name of its overload, such as ``Tensor``."""
        return str(getattr(self.node.target, "_overloadname", ""))

    @property
    def out(self) -> Shape:
        """Shape of its first result."""
        return self.shapes[0]

    @property
    def values(self) -> list[AtenValue]:
        """All tensors among its arguments."""
        return list(_flat(list(self.arguments.values())))

    @property
    def tensors(self) -> list[AtenValue]:
        """Those that depend on the network's input."""
        return [value for value in self.values if value.op]

    @property
    def constants(self) -> int:
        """Elements of those that do not."""
        return sum(prod(value.shape) for value in self.values if not value.op)

    def tensor(self, name: str) -> AtenValue | None:
        """The argument of this name, if it is a tensor that depends on the input."""
        value = self.arguments.get(name)
        return value if isinstance(value, AtenValue) and value.op else None

    def constant(self, name: str) -> AtenValue | None:
        """The argument of this name, if it is a tensor that does not."""
        value = self.arguments.get(name)
        return value if isinstance(value, AtenValue) and not value.op else None

    def order(self, rank: int) -> tuple[int, ...]:
        """Which of so many axes comes where in its result, told by torch itself."""
        target: Any = self.node.target
        dims = torch.empty([2 + i for i in range(rank)], device="meta")
        others = [self.arguments[argument.name] for argument in target._schema.arguments[1:]]
        return tuple(size - 2 for size in target(dims, *others).shape)


#: A chain of operators, the tensor itself in another shape, or its pieces; None if the call must be opaque.
Made = list[AtenStep] | AtenValue | tuple[AtenValue, ...] | None
AtenRule = Callable[[AtenCall], Made]


def _flat(arguments: Any) -> Iterator[AtenValue]:
    if isinstance(arguments, AtenValue):
        yield arguments
    elif isinstance(arguments, list | tuple):
        for item in arguments:
            yield from _flat(item)
