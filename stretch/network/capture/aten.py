"""Calls of ATen operators as the rules see them, the tensors that they read, and the opaque operators that compute them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from string import ascii_letters
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

    op: str  # Name of the operator that computes the tensor; empty if the tensor depends on weights alone.
    shape: Shape  # Shape in which the network uses the tensor.
    base: Shape = ()  # Shape in which its operator returns it, with the same number of elements.
    piece: Step | None = None  # Step that cuts the tensor out of another one where it is used.
    dtype: torch.dtype | None = None  # Data type of the elements; None if unknown.
    #: The tensor itself, if it depends on weights alone and its values are needed.
    tensor: torch.Tensor | None = field(default=None, compare=False, repr=False)
    learned: bool = False  # Whether the tensor is a parameter, or computed from one.
    axes: Axes | None = None  # Factors of its axes in the operator's feature map, if its elements are not in the operator's order.

    def reshape(self, shape: Shape) -> "AtenValue":
        """Return the tensor with the same elements in another shape."""
        return replace(self, shape=shape, base=self.base or self.shape)


@dataclass(frozen=True)
class AtenCall:
    """A call of an ATen operator."""

    node: fx.Node  # Node of the call in the exported graph.
    arguments: Mapping[str, Any]  # Arguments by name.
    shapes: list[Shape] = field(default_factory=list)  # Shapes of the results.

    @property
    def operator(self) -> str:
        """Name of the ATen operator without its overload, such as ``add``; the underscore of in-place operators is dropped."""
        packet = getattr(self.node.target, "_overloadpacket", self.node.target)
        name = getattr(packet, "__name__", str(packet))
        return name.removesuffix("_") if not name.startswith("_") else name

    @property
    def overload(self) -> str:
        """Name of the operator's overload, such as ``Tensor``."""
        return str(getattr(self.node.target, "_overloadname", ""))

    @property
    def out(self) -> Shape:
        """Shape of the call's first result."""
        return self.shapes[0]

    @property
    def values(self) -> list[AtenValue]:
        """All tensors among the call's arguments."""
        return list(_flatten_values(list(self.arguments.values())))

    @property
    def tensors(self) -> list[AtenValue]:
        """Tensors among the arguments that depend on the network's input."""
        return [value for value in self.values if value.op]

    @property
    def constants(self) -> int:
        """Number of elements of the tensors that do not depend on the network's input."""
        return sum(prod(value.shape) for value in self.values if not value.op)

    def tensor(self, name: str) -> AtenValue | None:
        """Return the argument with this name; None unless it is a tensor that depends on the network's input."""
        value = self.arguments.get(name)
        return value if isinstance(value, AtenValue) and value.op else None

    def constant(self, name: str) -> AtenValue | None:
        """Return the argument with this name; None unless it is a tensor that does not depend on the network's input."""
        value = self.arguments.get(name)
        return value if isinstance(value, AtenValue) and not value.op else None

    @property
    def axis(self) -> int:
        """Axis given by the argument ``dim``, counted from the first."""
        return int(self.arguments["dim"]) % len(self.tensors[0].shape)

    def order(self, rank: int) -> tuple[int, ...]:
        """Return the input axis that each axis of the result comes from, computed by torch itself."""
        target: Any = self.node.target
        dims = torch.empty([2 + i for i in range(rank)], device="meta")
        settings = [self.arguments[argument.name] for argument in target._schema.arguments[1:]]
        return tuple(size - 2 for size in target(dims, *settings).shape)


#: Result of a rule: a chain of operators, the tensor itself in another shape, or its pieces; None if the call must be opaque.
LoweringResult = list[Step] | AtenValue | tuple[AtenValue, ...] | None
AtenRule = Callable[[AtenCall], LoweringResult]


def named_arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by name, with defaults for those that are left out."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(i): argument for i, argument in enumerate(node.args)} | dict(node.kwargs)
    bound = dict(zip([argument.name for argument in schema.arguments], node.args, strict=False)) | dict(node.kwargs)
    defaults = {argument.name: argument.default_value if argument.has_default_value() else None for argument in schema.arguments}
    return {name: bound.get(name, default) for name, default in defaults.items()}


def _flatten_values(arguments: Any) -> Iterator[AtenValue]:
    if isinstance(arguments, AtenValue):
        yield arguments
    elif isinstance(arguments, list | tuple):
        for item in arguments:
            yield from _flatten_values(item)


#: Operators whose result has fewer elements than their inputs.
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


def einsum_letters(equation: str, operands: Sequence[AtenValue]) -> tuple[list[str], str]:
    """Return the letters of each operand of `torch.einsum` and of its result, with letters in place of ``...`` and of a result left open."""
    read, arrow, out = equation.replace(" ", "").partition("->")
    terms = read.split(",")
    left_out = [len(value.shape) - len(term.replace("...", "")) for term, value in zip(terms, operands, strict=True)]
    most = max((count for count, term in zip(left_out, terms, strict=True) if "..." in term), default=0)
    dots = "".join([letter for letter in ascii_letters if letter not in read][:most])
    if not arrow:
        out = "..." + "".join(sorted(letter for letter in read if letter.isalpha() and read.count(letter) == 1))
    return [term.replace("...", dots[most - count :]) for count, term in zip(left_out, terms, strict=True)], out.replace("...", dots)


_Work = tuple[int, int, int, int, int]


def elements(shape: Shape, taps: int = 1) -> _Work:
    """Return the work of an elementwise operator; channels are the second axis of images, else the last axis."""
    channels = shape[1] if len(shape) == 4 else shape[-1] if shape else 1
    return 1, 1, channels, taps, prod(shape) // channels


def over_elements(shape: Shape, kernel: str, variant: str) -> dict[str, Attr]:
    """Return the attributes of an opaque elementwise operator."""
    return attributes(shape, kernel, variant, elements(shape))


def opaque_step(call: AtenCall, kernel: str, work: _Work, variant: str = "") -> Step:
    """Return an opaque operator for a call with this work; it reads all tensors of the call."""
    return Step("opaque", attributes(call.out, kernel, variant or call.operator, work, call.constants), tuple(call.tensors))


def opaque_node(call: AtenCall) -> Step:
    """Return the opaque operator of a call that no rule covers."""
    name, built = call.operator, prod(call.out)
    if name in REDUCTIONS:
        # each element of the result is computed from as many elements as this ratio
        read, batch = max(prod(tensor.shape) for tensor in call.tensors), call.out[0] if call.out else 1
        return opaque_step(call, "reduce", (1, 1, max(1, built // batch), max(1, read // built), batch))
    if "avg_pool" in name or "max_pool" in name:
        return opaque_step(call, "pool", elements(call.out, max(1, prod(call.tensors[0].shape) // built)))
    return opaque_step(call, "copy" if name in COPIES or name.startswith("upsample") else "elementwise", elements(call.out))


class CallRecorder:
    """Collects the tensors that calls read, and converts arguments to JSON values."""

    def __init__(self) -> None:
        self._reads: list[AtenValue] = []
        self._constants: list[AtenValue] = []

    def __call__(self, argument: Any) -> Any:
        """Convert an argument to a JSON value; raise ValueError if a call may not have it."""
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
        """Build an opaque operator that computes some calls with the collected tensors.

        Tensors between operators are real (`storage_dtype`): calls that compute with whole numbers are placed between conversions.

        Args:
            attrs: The operator's other attributes.
            result: Data type that the last call returns.
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
    """Return the call that converts a tensor to another data type."""
    return Call("_to_copy.default", (tensor,), {"dtype": {"dtype": _name(dtype)}})


def storage_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Return the data type in which operators exchange a tensor: float32 for integers, booleans and short floats."""
    return torch.float32 if dtype is None or dtype.itemsize < 4 or not (dtype.is_floating_point or dtype.is_complex) else dtype


def _replace_infinities(tensor: torch.Tensor) -> torch.Tensor:
    """Replace infinities in a mask by the extreme numbers of fp16, because files hold no infinity; a softmax gives the same zeros."""
    if not tensor.is_floating_point() or not tensor.isinf().any():
        return tensor
    maximum = torch.finfo(torch.float16).max
    return tensor.nan_to_num(nan=torch.nan, posinf=maximum, neginf=-maximum)


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype or torch.float32).removeprefix("torch.")
