"""Calls of ATen operators as rules see them, what they become, and tensors seen as axes over channels and pixels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import fx

from predictors.operators.opaque import CALLS, FIXED, attributes
from predictors.shapes import Attr, Shape
from stretch.operators.capturing import Step
from stretch.operators.opaque.calls import Call, Calls, CallTensor, to_builtins

# A tensor seen as axes over the channels and pixels of a feature map.
#
# Tokens, windows and heads are a feature map in another order: N×P×C has its channels
# last, a window is some rows and some columns, a head is some channels. So each axis
# of a tensor is a product of *factors*, each of which steps through images,
# channels or pixels of the map. Reshaping splits and merges factors, permuting moves
# axes, and nothing is computed.

T = TypeVar("T")


class Unsupported(Exception):
    """The effect of a call on axes cannot be followed to single channels: it is computed on the plain tensors."""


def require(value: T | None) -> T:
    """Return a value, or raise `Unsupported` if it is None."""
    if value is None:
        raise Unsupported
    return value


def require_that(condition: bool) -> None:
    """Raise `Unsupported` unless a condition holds."""
    if not condition:
        raise Unsupported


#: Things that a factor steps through; the scores of attention also have queries and keys.
FactorKind = Literal["image", "channel", "pixel", "query", "key"]


@dataclass(frozen=True)
class Factor:
    """Some of a map's images, channels or pixels, in equal steps."""

    of: FactorKind  # Thing that it steps through.
    size: int  # How many.
    step: int  # From one to the next; pixels are counted row by row.

    def split(self, inner: int) -> tuple["Factor", "Factor"]:
        """Two factors, the inner one of this size."""
        return Factor(self.of, self.size // inner, self.step * inner), Factor(self.of, inner, self.step)


Axis = tuple[Factor, ...]


@dataclass(frozen=True)
class Axes:
    """Factors of every axis of a tensor."""

    axes: tuple[Axis, ...]  # Of each axis its factors, the outermost first; none for an axis of one element.
    first: int = 0  # Channel of the map at which it starts.

    @property
    def shape(self) -> Shape:
        """Of the tensor."""
        return tuple(_size(axis) for axis in self.axes)

    def factors(self, of: FactorKind) -> tuple[Factor, ...]:
        """Those that step through channels, pixels or images, in order."""
        return tuple(factor for axis in self.axes for factor in axis if factor.of == of)

    def channels(self) -> list[int]:
        """Channels of the map, in the order in which the tensor has them."""
        result = [self.first]
        for factor in self.factors("channel"):
            result = [offset + i * factor.step for offset in result for i in range(factor.size)]
        return result

    def reshape(self, shape: Shape) -> "Axes | None":
        """The same elements in another shape; None if an axis would begin within a factor."""
        left = [factor for axis in self.axes for factor in axis][::-1]
        axes: list[Axis] = []
        for size in shape:
            axis: list[Factor] = []
            while _size(axis) < size:
                if not left:
                    return None
                factor, missing = left.pop(), size // _size(axis)
                if factor.size > missing:
                    if size % _size(axis) or factor.size % missing:
                        return None
                    factor, rest = factor.split(factor.size // missing)
                    left.append(rest)
                axis.append(factor)
            if _size(axis) != size:
                return None
            axes.append(_merge_factors(axis))
        return None if left else replace(self, axes=tuple(axes))

    def permute(self, order: Sequence[int]) -> "Axes":
        """Its axes in another order."""
        return replace(self, axes=tuple(self.axes[axis] for axis in order))

    def cut(self, axis: int, start: int, size: int) -> "Axes | None":
        """Some of an axis over channels; None if it runs over something else or a cut lies within an inner factor."""
        factors = self.axes[axis]
        if start == 0 and size == _size(factors):
            return self
        if not factors or factors[0].of != "channel":
            return None
        inner = _size(factors[1:])
        if start % inner or size % inner:
            return None
        outer = factors[0]
        channels = Factor("channel", size // inner, outer.step)
        axes = (*self.axes[:axis], _merge_factors([channels, *factors[1:]]), *self.axes[axis + 1 :])
        return replace(self, axes=axes, first=self.first + start // inner * outer.step)

    def drop_axis(self, axis: int) -> "Axes":
        """Without an axis of one element."""
        return replace(self, axes=(*self.axes[:axis], *self.axes[axis + 1 :]))

    def sort_factors(self) -> "Axes":
        """The axes of a map that has the same images, channels and pixels in the order in which they are seen here."""
        left = {of: prod(factor.size for factor in self.factors(of)) for of in get_args(FactorKind)}
        axes = []
        for axis in self.axes:
            factors = []
            for factor in axis:
                left[factor.of] //= factor.size
                factors.append(replace(factor, step=left[factor.of]))
            axes.append(tuple(factors))
        return Axes(tuple(axes))

    def merge(self) -> "Axes":
        """With factors that continue each other as one."""
        return replace(self, axes=tuple(map(_merge_factors, self.axes)))


def map_axes(shape: Shape) -> Axes:
    """A feature map N×C×H×W as it is."""
    n, c, h, w = shape
    factors = (Factor("image", n, 1), Factor("channel", c, 1), Factor("pixel", h, w), Factor("pixel", w, 1))
    return Axes(tuple(_merge_factors([factor]) for factor in factors))


def common_factors(a: Axis, b: Axis) -> list[tuple[Factor, Factor]]:
    """The factors of two axes of one size, split so that they come in pairs of one size."""
    left, right, pairs = list(a)[::-1], list(b)[::-1], []
    while left and right:
        first, second = left.pop(), right.pop()
        size = min(first.size, second.size)
        require_that(max(first.size, second.size) % size == 0)
        if first.size > size:
            first, rest = first.split(first.size // size)
            left.append(rest)
        elif second.size > size:
            second, rest = second.split(second.size // size)
            right.append(rest)
        pairs.append((first, second))
    require_that(not left and not right)
    return pairs


def _size(axis: Sequence[Factor]) -> int:
    return prod(factor.size for factor in axis)


def _merge_factors(axis: Sequence[Factor]) -> Axis:
    """Factors without those of one element, and neighbours that continue each other as one."""
    merged: list[Factor] = []
    for factor in axis:
        if factor.size == 1:
            continue
        last = merged[-1] if merged else None
        if last is not None and last.of == factor.of and last.step == factor.step * factor.size:
            merged[-1] = Factor(factor.of, last.size * factor.size, factor.step)
        else:
            merged.append(factor)
    return tuple(merged)


def rearrangement(pairs: Sequence[tuple[Factor, Factor]]) -> tuple[Shape, Shape]:
    """How pixels that lie in the steps of the first of each pair come to lie in the steps of the second."""
    before = sorted(range(len(pairs)), key=lambda i: -pairs[i][0].step)
    after = sorted(range(len(pairs)), key=lambda i: -pairs[i][1].step)
    for order, side in ((before, 0), (after, 1)):
        factors = [pairs[i][side] for i in order]
        require_that(not factors or factors[-1].step == 1)
        require_that(all(outer.step == inner.step * inner.size for outer, inner in pairwise(factors)))
    return tuple(pairs[i][0].size for i in before), tuple(before.index(i) for i in after)


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
        """The same elements in another shape."""
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

    @property
    def axis(self) -> int:
        """The axis of its argument ``dim``, counted from the first."""
        return int(self.arguments["dim"]) % len(self.tensors[0].shape)

    def order(self, rank: int) -> tuple[int, ...]:
        """Return where each of so many axes comes in its result, computed by torch itself."""
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
    """The operator of a call with this work; it reads all tensors of the call."""
    return Step("opaque", attributes(call.out, kernel, variant or call.operator, work, call.constants), tuple(call.tensors))


def opaque_node(call: AtenCall) -> Step:
    """The operator of a call that no rule takes."""
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
        """An argument as JSON has it; raises ValueError if it is nothing that a call may have."""
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
        """An opaque operator that is computed by some calls with what was collected.

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
    """The call that gives a tensor in another type."""
    return Call("_to_copy.default", (tensor,), {"dtype": {"dtype": _name(dtype)}})


def storage_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Return the type in which operators exchange a tensor: float32 for integers, booleans and short floats."""
    return torch.float32 if dtype is None or dtype.itemsize < 4 or not (dtype.is_floating_point or dtype.is_complex) else dtype


def _replace_infinities(tensor: torch.Tensor) -> torch.Tensor:
    """A mask of minus infinity as the lowest number of fp16, behind which a softmax gives the same zeros: files hold no infinity."""
    if not tensor.is_floating_point() or not tensor.isinf().any():
        return tensor
    maximum = torch.finfo(torch.float16).max
    return tensor.nan_to_num(nan=torch.nan, posinf=maximum, neginf=-maximum)


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype or torch.float32).removeprefix("torch.")
