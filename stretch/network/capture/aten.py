"""Calls of ATen operators as rules see them, and what they become: operators of known kinds where they fit, views, or opaque operators."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import fx

from predictors.operators.opaque import CALLS, FIXED, attributes
from predictors.registry import RuleTable
from predictors.shapes import Attr, Shape
from stretch.operators.capturing import ATEN, FunctionRule, UnsupportedNode, module_chain
from stretch.operators.elementwise import clamp
from stretch.operators.opaque.calls import Call, Calls, CallTensor, to_builtins
from stretch.operators.products import convolution

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
    return Axes(tuple(_merge_factors([factor]) for factor in _map_factors(n, c, h, w)))


def _map_factors(n: int, c: int, h: int, w: int) -> Iterator[Factor]:
    yield Factor("image", n, 1)
    yield Factor("channel", c, 1)
    yield Factor("pixel", h, w)
    yield Factor("pixel", w, 1)


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
    piece: "AtenStep | None" = None  # Step that cuts it out of another tensor where it is used.
    dtype: torch.dtype | None = None  # Of its elements, where it is known.
    #: The tensor itself, where it depends on weights alone and they are looked at.
    tensor: torch.Tensor | None = field(default=None, compare=False, repr=False)
    learned: bool = False  # Whether that is a parameter, or computed from one.
    axes: Axes | None = None  # Factors of its axes in the operator's feature map, where its elements are not in the operator's order.

    def reshape(self, shape: Shape) -> "AtenValue":
        """The same elements in another shape."""
        return replace(self, shape=shape, base=self.base or self.shape)


@dataclass(frozen=True)
class AtenStep:
    """One operator of a chain."""

    kind: str  # Its kind.
    attrs: Mapping[str, Attr]  # Attributes of the kind.
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

    def order(self, rank: int) -> tuple[int, ...]:
        """Return where each of so many axes comes in its result, computed by torch itself."""
        target: Any = self.node.target
        dims = torch.empty([2 + i for i in range(rank)], device="meta")
        others = [self.arguments[argument.name] for argument in target._schema.arguments[1:]]
        return tuple(size - 2 for size in target(dims, *others).shape)


#: A chain of operators, the tensor itself in another shape, or its pieces; None if the call must be opaque.
LoweringResult = list[AtenStep] | AtenValue | tuple[AtenValue, ...] | None
AtenRule = Callable[[AtenCall], LoweringResult]


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


def over_elements(shape: Shape, kernel: str, variant: str, weights: int = 0) -> dict[str, Attr]:
    """Return the attributes of an opaque elementwise operator."""
    return attributes(shape, kernel, variant, elements(shape), weights)


def opaque_step(call: AtenCall, kernel: str, work: _Work, variant: str = "") -> AtenStep:
    """The operator of a call with this work; it reads all tensors of the call."""
    return AtenStep("opaque", attributes(call.out, kernel, variant or call.operator, work, call.constants), tuple(call.tensors))


def product_step(call: AtenCall, inner: int, right: int, groups: int, left: int) -> AtenStep:
    """`groups` products of a `left` × `inner` and an `inner` × `right` matrix."""
    return opaque_step(call, "matmul", (inner, right, groups, 1, left), "matmul")


def reduction_step(call: AtenCall) -> AtenStep:
    """One that sums up or picks: each element of its result is of as many as it reads."""
    read, batch, built = max(prod(tensor.shape) for tensor in call.tensors), call.out[0] if call.out else 1, prod(call.out)
    return opaque_step(call, "reduce", (1, 1, max(1, built // batch), max(1, read // built), batch))


def opaque_node(call: AtenCall) -> AtenStep:
    """The operator of a call that no rule takes."""
    name = call.operator
    if name in REDUCTIONS:
        return reduction_step(call)
    if "avg_pool" in name or "max_pool" in name:
        return opaque_step(call, "pool", elements(call.out, max(1, prod(call.tensors[0].shape) // prod(call.out))))
    return opaque_step(call, "copy" if name in COPIES or name.startswith("upsample") else "elementwise", elements(call.out))


class CallRecorder:
    """Collects the tensors that calls read, and writes arguments as JSON has them."""

    def __init__(self) -> None:
        self._reads: list[AtenValue] = []
        self._constants: list[AtenValue] = []

    def __call__(self, argument: Any) -> Any:
        """An argument as JSON has it; raises ValueError if it is nothing that a call may have."""
        return to_builtins(argument, self._place)

    def _place(self, argument: Any) -> dict[str, int] | None:
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

    def step(self, attrs: Mapping[str, Attr], calls: Sequence[Call], result: torch.dtype = torch.float32) -> AtenStep:
        """An opaque operator that is computed by some calls with what was collected.

        Tensors between operators are real (`held`): calls that compute with whole numbers stand between conversions.

        Args:
            attrs: Its other attributes.
            result: Type of what the last call gives.
        """
        reads = tuple(CallTensor(_name(storage_dtype(value.dtype)), value.shape) for value in self._reads)
        others = [i for i, value in enumerate(self._reads) if storage_dtype(value.dtype) != value.dtype]
        before = [conversion({"read": i}, self._reads[i].dtype) for i in others]
        place = {i: {"call": number} for number, i in enumerate(others)}

        def behind(to: dict[str, Any]) -> dict[str, Any]:
            if "call" in to:
                return {**to, "call": to["call"] + len(before)}
            return place.get(to.get("read", -1), to)

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
        return AtenStep(
            "opaque", {**attrs, CALLS: text, "weights": count, **(fixed if fixed[FIXED] else {}), **shapes}, tuple(self._reads), weights
        )


def conversion(tensor: dict[str, int], dtype: torch.dtype | None) -> Call:
    """The call that gives a tensor in another type."""
    return Call("_to_copy.default", (tensor,), {"dtype": {"dtype": _name(dtype)}})


def storage_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Return the type in which operators exchange a tensor: float32 for integers, booleans and short floats."""
    return torch.float32 if dtype is None or dtype.itemsize < 4 or not (dtype.is_floating_point or dtype.is_complex) else dtype


def with_storage_dtype(value: AtenValue) -> AtenValue:
    """Return a tensor in the type in which operators exchange it, for operators that only move elements."""
    return replace(value, dtype=storage_dtype(value.dtype))


def _replace_infinities(tensor: torch.Tensor) -> torch.Tensor:
    """A mask of minus infinity as the lowest number of fp16, behind which a softmax gives the same zeros: files hold no infinity."""
    if not tensor.is_floating_point() or not tensor.isinf().any():
        return tensor
    maximum = torch.finfo(torch.float16).max
    return tensor.nan_to_num(nan=torch.nan, posinf=maximum, neginf=-maximum)


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype or torch.float32).removeprefix("torch.")


# Results of ATen operators: operators of known kinds where they fit, views, or opaque operators.


#: By name of the ATen operator without its overload.
RULES: RuleTable[AtenRule] = RuleTable()

_add = RULES.add


def _copy(x: AtenValue, shape: Shape, variant: str) -> list[AtenStep]:
    return [AtenStep("opaque", over_elements(shape, "copy", variant), (x,))]


@_add(
    *("detach", "alias", "contiguous", "clone", "lift_fresh_copy", "to", "_to_copy", "type_as", "dropout", "feature_dropout"),
    *("alpha_dropout", "native_dropout", "dropout2d", "identity", "view_of"),
)
def _identity(call: AtenCall) -> LoweringResult:
    """The tensor itself: precision is the processor's matter, and nothing is dropped at inference."""
    x = call.tensors[0]
    return x if x.shape == call.out else None


@_add("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "_reshape_alias", "reshape_as")
def _view(call: AtenCall) -> LoweringResult:
    x = call.tensors[0]
    if len(x.shape) == 2 and call.out == (*x.shape, 1, 1) and x.shape == (x.base or x.shape):
        return [AtenStep("unflatten", {}, (x,))]
    if len(x.shape) == 4 and call.out == (x.shape[0], prod(x.shape[1:])) and x.shape == (x.base or x.shape):
        return [AtenStep("flatten", {}, (x,))]
    return x.reshape(call.out)


@_add("expand", "expand_as", "broadcast_to")
def _expand(call: AtenCall) -> LoweringResult:
    x = call.tensors[0]
    return x if x.shape == call.out else [AtenStep("view", {"shape": call.out}, (x,))]


@_add("permute", "transpose", "t", "swapaxes", "movedim", "numpy_T", "adjoint")
def _permute(call: AtenCall) -> LoweringResult:
    """Free where only the order of an image's channels and pixels changes, which each runtime keeps as it likes."""
    x = call.tensors[0]
    order = call.order(len(x.shape))
    moved = [d for d in order if x.shape[d] != 1]
    if moved == sorted(moved) or order in ((0, 2, 3, 1), (0, 3, 1, 2)) or (order == (0, 2, 1) and _is_image(call, x)):
        return x.reshape(call.out)
    return _copy(x, call.out, "permute")


def _is_image(call: AtenCall, x: AtenValue) -> bool:
    """Whether a tensor N×C×P or N×P×C is seen as an image before or after its last two axes change places."""
    n, channels, pixels = x.shape
    if len(x.base) == 4 and x.base[:2] == (n, channels) and prod(x.base[2:]) == pixels:
        return True
    after = [tuple(getattr(reader.meta.get("val"), "shape", ())) for reader in call.node.users]
    # tokens N×P×C that become an image N×C×H×W
    return bool(after) and all(len(shape) == 4 and shape[:2] == (n, pixels) and prod(shape[2:]) == channels for shape in after)


def _cut(x: AtenValue, dim: int, start: int, out: Shape) -> AtenStep:
    """Operator that copies a piece: channels of an image or a vector by their own kind."""
    if dim == 1 and len(x.shape) in (2, 4) and len(out) == len(x.shape):
        return AtenStep("slice", {"start": start, "stop": start + out[1]}, (x,))
    return _copy(x, out, "slice")[0]


@_add("slice", "narrow")
def _slice(call: AtenCall) -> LoweringResult:
    x, dim = call.tensors[0], int(call.arguments["dim"]) % len(call.out)
    if x.shape == call.out:
        return x
    start = int(call.arguments.get("start") or 0)
    if call.arguments.get("step", 1) != 1:
        return _copy(x, call.out, "slice")
    return [_cut(x, dim, start + x.shape[dim] if start < 0 else start, call.out)]


@_add("select")
def _select(call: AtenCall) -> LoweringResult:
    x = call.tensors[0]
    return x.reshape(call.out) if prod(x.shape) == prod(call.out) else _copy(x, call.out, "slice")


@_add("split", "chunk", "split_with_sizes", "unbind", "tensor_split", "unsafe_split", "unsafe_chunk")
def _split(call: AtenCall) -> LoweringResult:
    return pieces(call, _cut)


def pieces(call: AtenCall, cut: Callable[[AtenValue, int, int, Shape], AtenStep]) -> LoweringResult:
    """Pieces of a tensor along one axis, each cut out where it is used, by what `cut` makes of tensor, axis, start and shape."""
    x, dim, start = call.tensors[0], int(call.arguments["dim"]) % len(call.tensors[0].shape), 0
    if len(call.shapes) == 1:
        return (x.reshape(call.out),)
    result = []
    for shape in call.shapes:
        result.append(AtenValue(x.op, shape, piece=cut(x, dim, start, shape)))
        start += 1 if call.operator == "unbind" else shape[dim]
    return tuple(result)


@_add("cat", "concat", "concatenate")
def _concat(call: AtenCall) -> LoweringResult:
    parts = call.tensors
    if not call.constants and len(parts) == 1:
        return parts[0]
    if not call.constants and int(call.arguments["dim"]) % len(call.out) == 1:
        return [AtenStep("concat", {}, tuple(parts))]
    return [opaque_step(call, "copy", elements(call.out), "concat")]


@_add("pad", "constant_pad_nd")
def _pad(call: AtenCall) -> LoweringResult:
    x, pad = call.tensors[0], [int(n) for n in call.arguments["pad"]]
    if not any(pad):
        return x
    zero = call.arguments.get("mode", "constant") == "constant" and call.arguments.get("value") in (None, 0, 0.0)
    if not zero or len(x.shape) != 4 or any(pad[4:]) or min(pad) < 0:
        return _copy(x, call.out, "pad")
    left, right, top, bottom = [*pad, 0, 0, 0, 0][:4]
    return [AtenStep("pad", {"padding": (top, left, bottom, right)}, (x,))]


#: Arguments that say nothing of what is computed.
_IGNORED_ARGUMENTS = frozenset({"cudnn_enabled", "cudnn_enable", "half_to_float"})


def call_family_rule(call: AtenCall, rule: FunctionRule, *ignored: str) -> LoweringResult:
    """Apply the rule of a family to a call whose first argument is a tensor of the network; None if it does not take it."""
    first, *others = call.arguments.items()
    x = first[1]
    if not isinstance(x, AtenValue) or not x.op:
        return None
    settings = {name: _to_python(value) for name, value in others if value is not None and name not in {*_IGNORED_ARGUMENTS, *ignored}}
    try:
        chain = module_chain(rule, x.shape, **settings)
    except UnsupportedNode:
        return None
    steps = [AtenStep(kind, attrs, () if i else (x,), weights) for i, (_, kind, attrs, weights) in enumerate(chain)]
    return x if [step.kind for step in steps] == ["identity"] else steps


def _to_python(value: Any) -> Any:
    """An argument as functions of torch have it: a stored tensor is one, if only of a shape."""
    if not isinstance(value, AtenValue) or value.op:
        return value
    return torch.empty(value.shape, device="meta") if value.tensor is None else value.tensor


RULES.update({name: partial(call_family_rule, rule=rule) for name, rule in ATEN.items()})


@_add("conv2d", "convolution", "conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _convolution(call: AtenCall) -> LoweringResult:
    x, weight, groups = call.tensor("input"), call.arguments["weight"], call.arguments["groups"]
    transposed = call.operator.startswith("conv_transpose") or bool(call.arguments.get("transposed"))
    if x is None or not isinstance(weight, AtenValue):
        return None
    if not transposed and not weight.op and len(x.shape) == 4:
        return call_family_rule(call, convolution, "transposed", "output_padding")
    channels = x.shape[-len(weight.shape) + 1]
    cin, cout, taps = channels // groups, call.out[-len(weight.shape) + 1] // groups, prod(weight.shape[2:])
    pixels = prod(x.shape if transposed else call.out) // (channels if transposed else cout * groups)
    kind = "depthwise" if cin == 1 and groups > 1 else "conv1x1" if taps == 1 else "conv" if groups == 1 else "grouped"
    return [opaque_step(call, kind, (cin, cout, groups, taps, pixels))]


@_add("linear")
def _linear(call: AtenCall) -> LoweringResult:
    x, weight = call.tensor("input"), call.constant("weight")
    if x is None or weight is None or len(weight.shape) != 2:
        return None
    return [AtenStep("linear", {"out_features": weight.shape[0], "bias": call.arguments["bias"] is not None}, (x,))]


@_add("matmul", "mm", "bmm", "addmm", "baddbmm", "dot", "mv")
def _matmul(call: AtenCall) -> LoweringResult:
    pairs = [("mat1", "mat2"), ("batch1", "batch2"), ("self", "other"), ("self", "mat2"), ("self", "tensor"), ("self", "vec")]
    names = next(item for item in pairs if all(name in call.arguments for name in item))
    a, b = (call.arguments[name] for name in names)
    bias = [value for value in call.values if value is not a and value is not b]
    if a.op and not b.op and len(b.shape) == 2 and (not bias or bias[0].shape == b.shape[1:]):
        return [AtenStep("linear", {"out_features": b.shape[1], "bias": bool(bias)}, (a,))]
    inner = a.shape[-1]
    right = b.shape[-1] if len(b.shape) > 1 else 1
    left = a.shape[-2] if len(a.shape) > 1 else 1
    return [product_step(call, inner, right, max(1, prod(call.out) // (left * right)), left)]


@_add("einsum")
def _einsum(call: AtenCall) -> LoweringResult:
    """A product of two tensors by the letters of its equation."""
    equation, operands = str(call.arguments["equation"]).replace(" ", ""), call.values
    if len(operands) != 2 or "." in equation or "->" not in equation:
        return None
    (first, second), out = equation.split("->")[0].split(","), equation.split("->")[1]
    size = dict(zip(first + second, operands[0].shape + operands[1].shape, strict=True))
    inner = prod(size[letter] for letter in size if letter not in out)
    batch = prod(size[letter] for letter in out if letter in first and letter in second)
    right = prod(size[letter] for letter in out if letter not in first)
    return [product_step(call, inner, right, batch, prod(size[letter] for letter in out if letter not in second))]


@_add("scaled_dot_product_attention")
def _attention(call: AtenCall) -> LoweringResult:
    """As runtimes that lack it compute it: a scaled product, a softmax over it, and a second product."""
    query, key, value = (call.arguments[name] for name in ("query", "key", "value"))
    if not (query.op and key.op and value.op):
        return None
    batch, inner, left, right = prod(query.shape[:-2]), query.shape[-1], query.shape[-2], key.shape[-2]
    scores = (*query.shape[:-1], right)
    steps = [
        AtenStep("mul_scalar", {"value": float(call.arguments.get("scale") or inner**-0.5)}, (query,)),
        AtenStep("opaque", attributes(scores, "matmul", "matmul", (inner, right, batch, 1, left)), (key,)),
    ]
    mask = call.arguments.get("attn_mask")
    if isinstance(mask, AtenValue):
        reads = (mask,) if mask.op else ()
        steps.append(AtenStep("opaque", over_elements(scores, "elementwise", "add", 0 if mask.op else prod(mask.shape)), reads))
    steps.append(AtenStep("opaque", over_elements(scores, "elementwise", "softmax")))
    steps.append(AtenStep("opaque", attributes(call.out, "matmul", "matmul", (right, value.shape[-1], batch, 1, left)), (value,)))
    return steps


@_add("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(call: AtenCall) -> LoweringResult:
    """All steps of all layers as one product of what a step reads with its gates' weights."""
    x, weights = call.tensors[0], [item.shape for item in call.arguments["params"] if len(item.shape) == 2]
    # each direction of each layer has a matrix for its input, one for its state, and one where its state is projected
    gates = weights[0][0]
    return [opaque_step(call, "linear", (sum(map(prod, weights)) // gates, gates, 1, 1, prod(x.shape[:-1])))]


@_add("batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(call: AtenCall) -> LoweringResult:
    x = call.tensor("input")
    if x is None or len(x.shape) < 2 or call.arguments.get("training"):
        return None
    numbers: dict[str, Attr] = {key: float(call.arguments[key]) for key in ("eps", "momentum")}
    return [AtenStep("batch_norm", {**numbers, "affine": call.arguments["weight"] is not None}, (x,))]


@_add("softmax", "log_softmax", "_softmax", "_log_softmax", "_safe_softmax")
def _softmax(call: AtenCall) -> LoweringResult:
    x = call.tensors[0]
    kind = "log_softmax" if "log" in call.operator else "softmax"
    built = call_family_rule(call, ATEN[kind], "dtype") if len(x.shape) in (2, 4) else None
    return built or [opaque_step(call, "elementwise", elements(call.out), kind)]


@_add("max_pool2d", "max_pool2d_with_indices", "avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d")
def _pool(call: AtenCall) -> LoweringResult:
    return call_family_rule(call, ATEN[call.operator]) if len(call.out) == 4 else None


@_add(*REDUCTIONS)
def _reduce(call: AtenCall) -> LoweringResult:
    """A mean over height and width is global pooling; another reduction is opaque."""
    x = call.tensors[0]
    dims = call.arguments.get("dim")
    over = sorted(d % len(x.shape) for d in ([dims] if isinstance(dims, int) else dims or ()))
    if len(x.shape) == 4 and over == [2, 3] and call.operator in ("mean", "amax"):
        kind = "global_avg_pool" if call.operator == "mean" else "global_max_pool"
        return [AtenStep(kind, {"keepdims": bool(call.arguments["keepdim"])}, (x,))]
    return [reduction_step(call)]


@_add("hardtanh", "clamp", "clip", "clamp_min")
def _clamp(call: AtenCall) -> LoweringResult:
    low = call.arguments.get("min_val", call.arguments.get("min"))
    high = call.arguments.get("max_val", call.arguments.get("max"))
    if isinstance(low, AtenValue) or isinstance(high, AtenValue):
        return None
    if low is None or (high is None and low != 0):
        return None
    return call_family_rule(replace(call, arguments={"self": call.tensors[0], "min": low, "max": high}), clamp)


def _scalar_operation(call: AtenCall, x: AtenValue, kind: str, value: float, neutral: float) -> LoweringResult:
    return x if value == neutral else [AtenStep(kind, {"value": float(value)}, (x,))]


@_add("add", "sub", "mul", "div", "neg")
def _arithmetic(call: AtenCall) -> LoweringResult:
    a, b, name = call.arguments["self"], call.arguments.get("other"), call.operator
    if name == "neg":
        return _scalar_operation(call, a, "mul_scalar", -1.0, 1.0)
    if call.arguments.get("alpha", 1) != 1 or call.arguments.get("rounding_mode"):
        return None
    if isinstance(b, int | float) and a.op and a.shape == call.out:
        if name in ("add", "sub"):
            return _scalar_operation(call, a, "add_scalar", b if name == "add" else -b, 0.0)
        return _scalar_operation(call, a, "mul_scalar", b if name == "mul" else 1 / b, 1.0) if b or name == "mul" else None
    if name not in ("add", "mul") or not isinstance(b, AtenValue):
        return None
    if a.op and b.op:
        return [AtenStep(name, {}, (a, b))] if len(a.shape) == len(b.shape) else None
    x, constant = (a, b) if a.op else (b, a)
    sizes = (*[1] * (len(call.out) - len(constant.shape)), *constant.shape)
    if x.shape == call.out and len(sizes) in (2, 4) and sizes[1] == call.out[1] == prod(sizes):
        return [AtenStep("scale" if name == "mul" else "shift", {}, (x,))]
    return None


@_add("upsample_nearest2d")
def _upsample(call: AtenCall) -> LoweringResult:
    x = call.tensors[0]
    if any(out % size for out, size in zip(call.out[2:], x.shape[2:], strict=True)):
        return None
    return [AtenStep("upsample", {"scale": (call.out[2] // x.shape[2], call.out[3] // x.shape[3])}, (x,))]
