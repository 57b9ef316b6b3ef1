"""Calls of ATen operators as rules see them, the tensors that they read, and opaque operators that compute them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import fx

from predictors.operators.opaque import CALLS, FIXED, attributes
from predictors.shapes import Attr, Shape
from stretch.network.capture.axes import Axes
from stretch.operators.capturing import Step
from stretch.operators.opaque.calls import Call, Calls, CallTensor, to_builtins


@dataclass(frozen=True)
class AtenValue:
    """A tensor of an exported network."""

    op: str  # Name of the operator that computes it; empty where it depends on weights alone.
    shape: Shape  # As it is seen.
    base: Shape = ()  # As its operator gives it, with the same elements.
    piece: Step | None = None  # Step that cuts it out of another tensor where it is used.
    dtype: torch.dtype | None = None  # Of its elements, where it is known.
    #: The tensor itself, where it depends on weights alone and they are looked at.
    tensor: torch.Tensor | None = field(default=None, compare=False, repr=False)
    learned: bool = False  # Whether that is a parameter, or computed from one.
    axes: Axes | None = None  # Factors of its axes in the operator's feature map, where its elements are not in the operator's order.

    def reshape(self, shape: Shape) -> "AtenValue":
        """Return the same elements in another shape."""
        return replace(self, shape=shape, base=self.base or self.shape)


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
        return list(_flatten_values(list(self.arguments.values())))

    @property
    def tensors(self) -> list[AtenValue]:
        """The tensors that depend on the network's input."""
        return [value for value in self.values if value.op]

    @property
    def constants(self) -> int:
        """Elements of those that do not."""
        return sum(prod(value.shape) for value in self.values if not value.op)

    def tensor(self, name: str) -> AtenValue | None:
        """Return the argument of this name, if it is a tensor that depends on the input."""
        value = self.arguments.get(name)
        return value if isinstance(value, AtenValue) and value.op else None

    def constant(self, name: str) -> AtenValue | None:
        """Return the argument of this name, if it is a tensor that does not."""
        value = self.arguments.get(name)
        return value if isinstance(value, AtenValue) and not value.op else None

    @property
    def axis(self) -> int:
        """The axis of its argument ``dim``, counted from the first."""
        return int(self.arguments["dim"]) % len(self.tensors[0].shape)

    def order(self, rank: int) -> tuple[int, ...]:
        """Return the place of each axis in its result, computed by torch itself."""
        target: Any = self.node.target
        dims = torch.empty([2 + i for i in range(rank)], device="meta")
        settings = [self.arguments[argument.name] for argument in target._schema.arguments[1:]]
        return tuple(size - 2 for size in target(dims, *settings).shape)


#: A chain of operators, the tensor itself in another shape, or its pieces; None if the call must be opaque.
LoweringResult = list[Step] | AtenValue | tuple[AtenValue, ...] | None
AtenRule = Callable[[AtenCall], LoweringResult]


def named_arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by name, those that are left out at their defaults."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(i): argument for i, argument in enumerate(node.args)} | dict(node.kwargs)
    given = dict(zip([argument.name for argument in schema.arguments], node.args, strict=False)) | dict(node.kwargs)
    defaults = {argument.name: argument.default_value if argument.has_default_value() else None for argument in schema.arguments}
    return {name: given.get(name, default) for name, default in defaults.items()}


def _flatten_values(arguments: Any) -> Iterator[AtenValue]:
    if isinstance(arguments, AtenValue):
        yield arguments
    elif isinstance(arguments, list | tuple):
        for item in arguments:
            yield from _flatten_values(item)


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

_Work = tuple[int, int, int, int, int]


def elements(shape: Shape, taps: int = 1) -> _Work:
    """Return the cost of an elementwise operator (channels second for images, else last)."""
    channels = shape[1] if len(shape) == 4 else shape[-1] if shape else 1
    return 1, 1, channels, taps, prod(shape) // channels


def over_elements(shape: Shape, kernel: str, variant: str) -> dict[str, Attr]:
    """Return the attributes of an opaque elementwise operator."""
    return attributes(shape, kernel, variant, elements(shape))


def opaque_step(call: AtenCall, kernel: str, work: _Work, variant: str = "") -> Step:
    """Return the operator of a call with this work; it reads all tensors of the call."""
    return Step("opaque", attributes(call.out, kernel, variant or call.operator, work, call.constants), tuple(call.tensors))


def opaque_node(call: AtenCall) -> Step:
    """Return the operator of a call that no rule takes."""
    name, built = call.operator, prod(call.out)
    if name in REDUCTIONS:
        # each element of the result is of as many as are read
        read, batch = max(prod(tensor.shape) for tensor in call.tensors), call.out[0] if call.out else 1
        return opaque_step(call, "reduce", (1, 1, max(1, built // batch), max(1, read // built), batch))
    if "avg_pool" in name or "max_pool" in name:
        return opaque_step(call, "pool", elements(call.out, max(1, prod(call.tensors[0].shape) // built)))
    return opaque_step(call, "copy" if name in COPIES or name.startswith("upsample") else "elementwise", elements(call.out))


class CallRecorder:
    """Collects the tensors that calls read, and writes arguments as JSON has them."""

    def __init__(self) -> None:
        self._reads: list[AtenValue] = []
        self._constants: list[AtenValue] = []

    def __call__(self, argument: Any) -> Any:
        """Return an argument as JSON has it; raises ValueError if it is nothing that a call may have."""
        return to_builtins(argument, self._reference)

    def _reference(self, argument: Any) -> dict[str, int] | None:
        if not isinstance(argument, AtenValue):
            return None
        tensors, key = (self._reads, "read") if argument.op else (self._constants, "constant")
        if not argument.op and argument.tensor is None:
            raise ValueError("is a tensor that is not known")
        same = (item is argument or (argument.op and (item.op, item.shape) == (argument.op, argument.shape)) for item in tensors)
        index = next((i for i, result in enumerate(same) if result), None)
        if index is None:
            tensors.append(argument)
            index = len(tensors) - 1
        return {key: index}

    def step(self, attrs: Mapping[str, Attr], calls: Sequence[Call], result: torch.dtype = torch.float32) -> Step:
        """Return an opaque operator that is computed by some calls with what was collected.

        Tensors between operators are real (`storage_dtype`): calls that compute with whole numbers stand between conversions.

        Args:
            attrs: Its other attributes.
            result: Type of what the last call gives.
        """
        reads = tuple(CallTensor(_name(storage_dtype(value.dtype)), value.shape) for value in self._reads)
        converted = [i for i, value in enumerate(self._reads) if storage_dtype(value.dtype) != value.dtype]
        before = [conversion({"read": i}, self._reads[i].dtype) for i in converted]
        results = {i: {"call": number} for number, i in enumerate(converted)}

        def behind(to: dict[str, Any]) -> dict[str, Any]:
            if "call" in to:
                return {**to, "call": to["call"] + len(before)}
            return results.get(to.get("read", -1), to)

        calls = [*before, *(call.referring(behind) for call in calls)]
        if storage_dtype(result) != result:
            calls.append(conversion({"call": len(calls) - 1, "result": calls[-1].result}, storage_dtype(result)))
        tensors = [_replace_infinities(value.tensor) for value in self._constants if value.tensor is not None]
        constants = tuple(
            CallTensor(_name(tensor.dtype), tuple(tensor.shape), value.learned and tensor.is_floating_point())
            for tensor, value in zip(tensors, self._constants, strict=True)
        )
        weights = {f"constant_{i}": tensor for i, tensor in enumerate(tensors)}
        shapes: dict[str, Attr] = {key: tuple(tensor.shape) for key, tensor in weights.items()}
        text, count = Calls(reads, constants, tuple(calls)).text(), sum(tensor.numel() for tensor in tensors)
        fixed: dict[str, Attr] = {FIXED: sum(prod(spec.shape) for spec in constants if not spec.learned)}
        return Step(
            "opaque", {**attrs, CALLS: text, "weights": count, **(fixed if fixed[FIXED] else {}), **shapes}, tuple(self._reads), weights
        )


def conversion(tensor: dict[str, int], dtype: torch.dtype | None) -> Call:
    """Return the call that gives a tensor in another type."""
    return Call("_to_copy.default", (tensor,), {"dtype": {"dtype": _name(dtype)}})


def storage_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Return the type in which operators exchange a tensor: float32 for integers, booleans and short floats."""
    return torch.float32 if dtype is None or dtype.itemsize < 4 or not (dtype.is_floating_point or dtype.is_complex) else dtype


def _replace_infinities(tensor: torch.Tensor) -> torch.Tensor:
    """Return a mask of minus infinity as the lowest number of fp16, behind which a softmax gives the same zeros: files hold no infinity."""
    if not tensor.is_floating_point() or not tensor.isinf().any():
        return tensor
    maximum = torch.finfo(torch.float16).max
    return tensor.nan_to_num(nan=torch.nan, posinf=maximum, neginf=-maximum)


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype or torch.float32).removeprefix("torch.")
