"""A node in the form that the rules of operators read, and a rule's result."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from predictors.errors import StretchError, need
from predictors.registry import RuleTable
from predictors.shapes import Shape as Shape

_T = TypeVar("_T")

#: Maximum of strides, dilations and padding.
MAX_STEP = 1 << 12

#: Maximum number of axes of a tensor.
MAX_RANK = 12

#: Maximum number of tensors that one operator writes.
MAX_RESULTS = 256

#: ONNX's numbers of the element types.
FLOAT, UINT8, INT8, INT32, INT64, BOOL, FLOAT16, DOUBLE = 1, 2, 3, 6, 7, 9, 10, 11

#: Element types that a bundle's files may have, by number.
TYPE_NAMES = {FLOAT: "float", UINT8: "uint8", INT8: "int8", INT32: "int32", INT64: "int64", BOOL: "bool", FLOAT16: "float16"}

REALS = frozenset({FLOAT, FLOAT16})
BYTES = frozenset({UINT8, INT8})
INDICES = frozenset({INT32, INT64})
NUMBERS = REALS | BYTES | INDICES
ANY = NUMBERS | {BOOL}


@dataclass(frozen=True)
class KnownTensor:
    """Facts about a tensor that are known without computing it."""

    shape: Shape  # Sizes of the axes; 0 only for constants without elements.
    type: int = FLOAT  # Element type, one of `ANY`.
    values: tuple[float, ...] | None = None  # Elements in order, if it is a short constant.

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def reshape(self, shape: Sequence[int]) -> "KnownTensor":
        """Return the same elements in another shape."""
        return KnownTensor(tuple(shape), self.type, self.values)


@dataclass(frozen=True)
class Cost:
    """Outputs and work of an operator."""

    results: tuple[KnownTensor, ...]  # Tensors written, in order.
    work: int  # Multiply-accumulates, or operations on single elements.

    @property
    def shape(self) -> Shape:
        """Shape of the first result."""
        return self.results[0].shape


@dataclass(frozen=True)
class ShapeNode:
    """One operator, with everything that its result depends on."""

    inputs: tuple[KnownTensor | None, ...]  # Inputs; None for an omitted one.
    attrs: Mapping[str, Any]  # Attributes by name.
    results: int = 1  # Number of tensors written.

    def optional(self, i: int) -> KnownTensor | None:
        """Return input `i`, or None if it is omitted."""
        return self.inputs[i] if i < len(self.inputs) else None

    def tensor(self, i: int, types: frozenset[int] = ANY) -> KnownTensor:
        """Return input `i`, which must exist and have one of these element types."""
        present = require(self.optional(i), f"it has no input {i}")
        need(present.type in types, f"its input {i} is of type {TYPE_NAMES[present.type]}")
        return present

    def tensors(self, types: frozenset[int] = ANY) -> list[KnownTensor]:
        """Return all inputs, which must have the same element type, one of `types`."""
        inputs = [self.tensor(i, types) for i in range(len(self.inputs))]
        need(bool(inputs), "it has no inputs")
        need(len({tensor.type for tensor in inputs}) == 1, "its inputs differ in their element types")
        return inputs

    def shape(self, i: int) -> Shape:
        """Return the shape of input `i`, which must exist."""
        return self.tensor(i).shape

    def numbers(self, i: int) -> list[int]:
        """Return the whole numbers of input `i`, which must be a short constant."""
        tensor = self.tensor(i)
        values = require(tensor.values, f"its input {i} is no short constant")
        need(tensor.type in INDICES and len(tensor.shape) <= 1, f"its input {i} is no list of whole numbers")
        return [int(n) for n in values]

    def number(self, i: int) -> int:
        """Return the only whole number of input `i`."""
        numbers = self.numbers(i)
        need(len(numbers) == 1, f"its input {i} has {len(numbers)} numbers, one is needed")
        return numbers[0]

    def attribute_or_input(self, name: str, i: int) -> list[int] | None:
        """Return whole numbers from an attribute, or from input `i` in later opsets; None if both are omitted."""
        if self.optional(i) is not None:
            return self.numbers(i)
        if name not in self.attrs:
            return None
        value = self.attrs[name]
        need(isinstance(value, list | tuple) and all(isinstance(n, int) for n in value), f"its {name} is no list of whole numbers")
        return list(value)

    def ints(self, name: str, default: Sequence[int], minimum: int) -> tuple[int, ...]:
        """Return a list of whole numbers from an attribute, as long as `default`, each from `minimum` to `MAX_STEP`."""
        value = self.attrs.get(name, default)
        listed = isinstance(value, Sequence) and not isinstance(value, bytes)
        need(listed and len(value) == len(default), f"its {name} is {str(value)[:60]}")
        need(all(isinstance(n, int) and minimum <= n <= MAX_STEP for n in value), f"its {name} is {list(value)}")
        return tuple(value)

    def integer(self, name: str, default: int) -> int:
        """Return a whole number from an attribute."""
        value = self.attrs.get(name, default)
        need(isinstance(value, int), f"its {name} is no whole number")
        return int(value)

    def string(self, name: str, default: str) -> str:
        """Return a word from an attribute."""
        value = self.attrs.get(name, default)
        need(isinstance(value, bytes | str), f"its {name} is no word")
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    def axis(self, name: str, default: int, rank: int) -> int:
        """Return an axis from an attribute, counted from the first."""
        return normalise_axis(self.integer(name, default), rank, name)


Rule = Callable[[ShapeNode], Cost]

#: Rule of each operator, by its name in ONNX.
RULES: RuleTable[Rule] = RuleTable()

#: Decorator that registers the rule of operators with these names.
rule = RULES.add


def require(value: _T | None, problem: str) -> _T:
    """Return `value`, which must not be None."""
    if value is None:
        raise StretchError(problem)
    return value


def result_cost(shape: Iterable[int], work: int, type: int = FLOAT) -> Cost:
    """Return the cost of an operator with one result."""
    return Cost((KnownTensor(tuple(shape), type),), work)


def same_shape_cost(tensor: KnownTensor, work: int = 1) -> Cost:
    """Return the cost of an operator with a result of a tensor's shape and type, and `work` operations per element."""
    return result_cost(tensor.shape, work * tensor.size, tensor.type)


def moved_cost(tensor: KnownTensor, shape: Sequence[int]) -> Cost:
    """Return the cost of giving the same elements another shape."""
    return Cost((tensor.reshape(shape),), tensor.size)


def normalise_axis(axis: int, rank: int, name: str = "axis") -> int:
    """Return a non-negative axis; negative ones count from the last."""
    need(-rank <= axis < rank, f"its {name} is {axis}, there are {rank} axes")
    return axis % rank


def normalise_axes(axes: Iterable[int], rank: int) -> list[int]:
    """Return non-negative axes, which must be distinct."""
    axes_of_rank = [normalise_axis(axis, rank, "axes") for axis in axes]
    need(len(set(axes_of_rank)) == len(axes_of_rank), f"its axes {axes_of_rank} are there twice")
    return axes_of_rank


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the common shape of broadcast tensors, as in numpy."""
    result: list[int] = []
    need(bool(shapes), "it has no inputs")
    for i in range(1, max(map(len, shapes)) + 1):
        sizes = {shape[-i] for shape in shapes if i <= len(shape)} - {1}
        need(len(sizes) <= 1, f"its inputs of shapes {', '.join(str(list(s)) for s in shapes)} do not go together")
        result.append(sizes.pop() if sizes else 1)
    return tuple(reversed(result))


_DYNAMIC_SIZES = "how large its result is depends on what the network computes"
_NESTED_GRAPH = "it holds a graph, and how often that runs is not bounded"
_RANDOM = "its result is random"

#: Reasons for operators that ONNX has and bundles may not contain.
REASONS: Mapping[str, str] = {
    **dict.fromkeys(("Compress", "NonMaxSuppression", "NonZero", "Unique"), _DYNAMIC_SIZES),
    **dict.fromkeys(("If", "Loop", "Scan", "SequenceMap"), _NESTED_GRAPH),
    **dict.fromkeys(("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), _RANDOM),
    "Dropout": "it is for training",
}


def unsupported_reason(operator: str) -> str:
    """Return the reason why a bundle may not contain an operator, and what to do instead."""
    reason = REASONS.get(operator, "nn-stretch does not know its result or its cost")
    return f"no bundle holds `{operator[:60]}`: {reason}; take it out of the network, or write it with other operators"
