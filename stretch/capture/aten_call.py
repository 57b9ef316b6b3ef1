"""Calls of ATen operators as rules see them, what they make of them, and opaque operators for those without a kind."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import fx

from predictors.operators.opaque import CALLS, attributes
from predictors.shapes import Attr, Shape
from stretch.capture.factors import Axes
from stretch.opaque.calls import Call, Calls, CallTensor, plain


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


#: Operators whose result has fewer elements than they read.
REDUCTIONS = (
    *("mean", "sum", "amax", "amin", "max", "min", "prod", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm"),
    *("argmax", "argmin", "logsumexp", "any", "all"),
)

#: Operators that select, order or repeat elements without computing with them.
COPIES = frozenset(
    {
        *("permute", "slice", "cat", "stack", "pad", "constant_pad_nd", "roll", "repeat", "repeat_interleave", "tile", "flip", "unfold"),
        *("index", "index_select", "index_put", "gather", "scatter", "select_scatter", "slice_scatter", "topk", "sort"),
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "col2im", "upsample_nearest2d"),
    }
)

#: Names of the pools without a kind.
_POOLS = ("avg_pool", "max_pool")

_Work = tuple[int, int, int, int, int]


def over_elements(shape: Shape, kernel: str, variant: str, weights: int = 0, taps: int = 1) -> dict[str, Attr]:
    """Attributes of one that does the same for each element of its result; channels are those of an image, or lie last."""
    channels = shape[1] if len(shape) == 4 else shape[-1] if shape else 1
    return attributes(shape, kernel, variant, (1, 1, channels, taps, prod(shape) // channels), weights)


def opaque(call: AtenCall, kernel: str, work: _Work) -> AtenStep:
    """The operator of a call with this work; it reads all tensors of the call."""
    return AtenStep("opaque", attributes(call.out, kernel, call.operator, work, call.constants), tuple(call.tensors))


def product(call: AtenCall, inner: int, right: int, groups: int, left: int) -> AtenStep:
    """`groups` products of a `left` × `inner` and an `inner` × `right` matrix."""
    return AtenStep(
        "opaque", attributes(call.out, "matmul", "matmul", (inner, right, groups, 1, left), call.constants), tuple(call.tensors)
    )


def reduced(call: AtenCall) -> AtenStep:
    """One that sums up or picks: each element of its result is of as many as it reads."""
    read = max(prod(tensor.shape) for tensor in call.tensors)
    batch = call.out[0] if call.out else 1
    built = prod(call.out)
    work = (1, 1, max(1, built // batch), max(1, read // built), batch)
    return AtenStep("opaque", attributes(call.out, "reduce", call.operator, work, call.constants), tuple(call.tensors))


def opaque_node(call: AtenCall) -> list[AtenStep]:
    """The operator of a call that no rule takes."""
    name = call.operator
    if name in REDUCTIONS:
        return [reduced(call)]
    if any(pool in name for pool in _POOLS):
        taps = max(1, prod(call.tensors[0].shape) // prod(call.out))
        return [AtenStep("opaque", over_elements(call.out, "pool", name, call.constants, taps), tuple(call.tensors))]
    kernel = "copy" if name in COPIES or name.startswith("upsample") else "elementwise"
    return [AtenStep("opaque", over_elements(call.out, kernel, name, call.constants), tuple(call.tensors))]


class CallRecorder:
    """Collects the tensors that calls read, and writes arguments as JSON has them."""

    def __init__(self) -> None:
        self._reads: list[AtenValue] = []
        self._constants: list[AtenValue] = []

    def __call__(self, argument: Any) -> Any:
        """An argument as JSON has it; raises ValueError if it is nothing that a call may have."""
        return plain(argument, self._place)

    def _place(self, argument: Any) -> dict[str, int] | None:
        if not isinstance(argument, AtenValue):
            return None
        there, key = (self._reads, "read") if argument.op else (self._constants, "constant")
        if not argument.op and argument.tensor is None:
            raise ValueError("is a tensor that is not known")
        same = (item is argument or (argument.op and (item.op, item.shape) == (argument.op, argument.shape)) for item in there)
        at = next((i for i, result in enumerate(same) if result), None)
        if at is None:
            there.append(argument)
            at = len(there) - 1
        return {key: at}

    def step(self, step: AtenStep, calls: tuple[Call, ...]) -> AtenStep:
        """An opaque operator that is computed by some calls with what was collected."""
        reads = tuple(CallTensor(_name(value.dtype), value.shape) for value in self._reads)
        tensors = [_finite(value.tensor) for value in self._constants if value.tensor is not None]
        constants = tuple(
            CallTensor(_name(tensor.dtype), tuple(tensor.shape), value.learned and tensor.is_floating_point())
            for tensor, value in zip(tensors, self._constants, strict=True)
        )
        weights = {f"constant_{i}": tensor for i, tensor in enumerate(tensors)}
        shapes: dict[str, Attr] = {key: tuple(tensor.shape) for key, tensor in weights.items()}
        attrs = {**step.attrs, CALLS: Calls(reads, constants, calls).text(), "weights": sum(t.numel() for t in tensors), **shapes}
        return AtenStep("opaque", attrs, tuple(self._reads), weights)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """A mask of minus infinity as the lowest number of fp16, behind which a softmax gives the same zeros: files hold no infinity."""
    if not tensor.is_floating_point() or not tensor.isinf().any():
        return tensor
    most = torch.finfo(torch.float16).max
    return tensor.nan_to_num(nan=torch.nan, posinf=most, neginf=-most)


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype or torch.float32).removeprefix("torch.")
