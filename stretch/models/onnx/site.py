"""Nodes of an ONNX file on their way into a torch network: what a rule reads, what is known of that, and how it writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper
from torch import fx

from predictors.errors import StretchError, first_line
from predictors.registry import RuleTable
from scheduler.formats.onnx.shapes import RULES as SHAPES
from scheduler.formats.onnx.shapes.moving import SHORT
from scheduler.formats.onnx.shapes.node import TYPE_NAMES, KnownTensor, ShapeNode
from stretch.models.builder import MAX_KNOWN, Builder, OperatorInputs, shape_of

#: Operators that move or choose bytes, or compare them, whatever they stand for.
MOVING = frozenset(
    {
        *("ArgMax", "ArgMin", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"),
        *("GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "Pad", "ReduceMax", "ReduceMin", "Reshape", "Resize", "Slice"),
        *("SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze", "Upsample", "Where", "Clip"),
    }
)


@dataclass(frozen=True, eq=False)
class Steps:
    """Real numbers that bytes stand for: (byte − zero) · scale."""

    scale: np.ndarray  # One number, or one for each place along an axis.
    zero: np.ndarray  # The byte that stands for zero, of the element type of the bytes.

    def __post_init__(self) -> None:
        """Refuse numbers that are no steps."""
        if self.scale.dtype != np.float32 or not np.isfinite(self.scale).all():
            raise StretchError("its scale is no real number")
        if self.zero.dtype.kind not in "iu" or self.zero.size not in (1, self.scale.size):
            raise StretchError(f"its zero point has {self.zero.size} numbers of type {self.zero.dtype} for {self.scale.size} scales")

    def same(self, other: "Steps") -> bool:
        """Whether bytes stand for the same numbers in both."""
        return np.array_equal(self.scale.ravel(), other.scale.ravel()) and np.array_equal(self.zero.ravel(), other.zero.ravel())

    def reals(self, stored: np.ndarray, axis: int = 0) -> np.ndarray:
        """What stored bytes stand for; `axis` is the one along which scales differ."""
        zero, scale = self._along(self.zero, stored, axis), self._along(self.scale, stored, axis)
        return np.asarray((stored.astype(np.float32) - zero) * scale, np.float32)

    @staticmethod
    def _along(numbers: np.ndarray, stored: np.ndarray, axis: int) -> np.ndarray:
        numbers = numbers.astype(np.float32)
        if numbers.size == 1:
            return numbers.reshape(())
        if numbers.ndim == stored.ndim > 1 and all(n in (1, size) for n, size in zip(numbers.shape, stored.shape, strict=True)):
            return numbers
        if not -stored.ndim <= axis < stored.ndim or numbers.size != stored.shape[axis]:
            raise StretchError(f"it has {numbers.size} scales for the shape {list(stored.shape)}")
        return numbers.reshape([-1 if i == axis % stored.ndim else 1 for i in range(stored.ndim)])


@dataclass(frozen=True)
class Rounded:
    """What a rule makes where the file has bytes: their reals, and the steps between these."""

    node: fx.Node
    steps: Steps


def reread(builder: Builder, x: fx.Node, old: Steps, new: Steps) -> fx.Node:
    """Reals whose bytes, made with `old` steps, are read with `new` ones."""
    if old.same(new):
        return x
    if max(old.scale.size, new.scale.size, old.zero.size, new.zero.size) > 1 or old.scale.item() <= 0:
        raise StretchError("its bytes were rounded with other scales than it states")
    factor = new.scale.item() / old.scale.item()
    shift = (int(old.zero.item()) - int(new.zero.item())) * new.scale.item()
    x = builder.call(torch.mul, x, factor) if factor != 1 else x
    return builder.call(torch.add, x, shift) if shift else x


def common(op: str, steps: Sequence[Steps | None]) -> Steps | None:
    """The steps of what an operator makes that knows nothing of them; None if it reads no bytes."""
    result = [step for step in steps if step is not None]
    if not result:
        return None
    if op not in MOVING:
        raise StretchError("it computes with bytes, and not with the numbers that they stand for")
    if not all(item.same(result[0]) for item in result):
        raise StretchError("it reads bytes that were rounded with several scales")
    return result[0]


#: What a node reads: a tensor of the running network, a stored one, or nothing.
Value = fx.Node | np.ndarray | None


@dataclass(frozen=True)
class OnnxSite(OperatorInputs[fx.Node]):
    """One node with what it reads."""

    op: str  # Its operator.
    name: str  # Its own, or that of what it writes.
    attrs: Mapping[str, Any]  # Its attributes; words are strings.
    results: int  # How many tensors it writes.
    opset: int  # Of its file.
    builder: Builder  # What its rule writes into.
    steps: Sequence[Steps | None] = ()  # For each input that is rounded to bytes in the file, what they stand for.

    @property
    def x(self) -> fx.Node:
        """Its first input as a tensor of the network."""
        return self.tensor(0)

    def tensor(self, i: int) -> fx.Node:
        """Input `i` as a tensor of the network, a stored one among its parameters."""
        value = self.value(i)
        if value is None:
            raise StretchError(f"it has no input {i}")
        return value if isinstance(value, fx.Node) else self.builder.stored(value, f"{self.name}_{i}")

    def steps_of(self, i: int) -> Steps | None:
        """What the bytes of input `i` stand for; None if it is none of bytes that the network computes."""
        return self.steps[i] if i < len(self.steps) else None

    def numbers(self, name: str, i: int) -> list[int] | None:
        """Whole numbers that are an attribute, or a stored input in later opsets; None where both are left out."""
        if self.value(i) is not None:
            return [int(n) for n in self.known(i, name).ravel()]
        return None if name not in self.attrs else [int(n) for n in self.attrs[name]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its first input."""
        return shape_of(self.x)

    def pair(self, name: str, usual: int = 1) -> list[int]:
        """A number for each axis of a window."""
        axes = len(self.shape) - 2
        numbers = [int(n) for n in self.attrs.get(name, [usual] * axes)]
        if len(numbers) != axes:
            raise StretchError(f"its {name} is {numbers} for {axes} axes")
        return numbers


#: One result of a node: computed, rounded in the file besides, or known already.
Result = fx.Node | Rounded | np.ndarray

#: Writes what a node computes, and gives its results.
Rule = Callable[[OnnxSite], Result | Sequence[Result]]

#: Rules by the name of the operator, which has its domain before it where that is not ONNX's own (`com.microsoft.QGemm`);
#: every file of this package adds its own.
RULES: RuleTable[Rule] = RuleTable()

#: Operators whose rules say what the bytes stand for that they make; of all others `MOVING` names those that may read any.
ROUNDING: set[str] = set()


def rule(*names: str, rounding: bool = False) -> Callable[[Rule], Rule]:
    """Decorator for the rule of operators of these names; `rounding` if it says what bytes stand for."""
    if rounding:
        ROUNDING.update(names)
    return RULES.add(*names)


#: The oldest opset in which the evaluator knows scales; they meant the same before.
_SCALED = 21

#: Operators whose result is part of what they read, and may be empty: exporters cut the shapes of single numbers out of others.
_CUTTING = ("Slice",)


def computed(node: Any, reads: list[np.ndarray | None], attrs: Mapping[str, Any], opset: int) -> list[np.ndarray]:
    """The results of a node that reads nothing but known tensors.

    They are computed by the reference evaluator of the `onnx` package, once it is sure how large they are.

    Args:
        node: The `onnx.NodeProto`.
        reads: Its inputs; None for one that is left out.
    """
    from onnx.reference import ReferenceEvaluator

    _check(node, reads, attrs)
    names = ["" if x is None else f"x{i}" for i, x in enumerate(reads)]
    lone = onnx.NodeProto()
    lone.CopyFrom(node)
    del lone.input[:]
    lone.input.extend(names)
    graph = helper.make_graph(
        [lone], "known", [onnx.ValueInfoProto(name=n) for n in names if n], [onnx.ValueInfoProto(name=n) for n in lone.output]
    )
    spoken = max(opset, _SCALED) if node.op_type in ("QuantizeLinear", "DequantizeLinear") else opset
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", spoken)])
    try:
        run_result = ReferenceEvaluator(model).run(None, {name: x for name, x in zip(names, reads, strict=True) if name})
    # The evaluator raises whatever numpy does.
    except Exception as error:
        raise StretchError(f"it cannot be computed from what the file stores: {first_line(error)[:120]}") from error
    arrays = [np.asarray(item) for item in run_result]
    return [array.astype(np.float32) if array.dtype == np.float16 else array for array in arrays]


def by_rule(rule: Rule, site: OnnxSite) -> list[np.ndarray]:
    """The results of a node that reads nothing but known tensors, by the rule for one of the network.

    For operators whose shapes bundles do not know; sizes are those that a network may have.
    """
    read = site.inputs[0]
    first = site.builder.stored(read, "x0") if isinstance(read, np.ndarray) else read
    built = rule(replace(site, inputs=[first, *site.inputs[1:]]))
    if isinstance(built, np.ndarray):
        return [built]
    if not isinstance(built, fx.Node):
        raise StretchError("it is not computed from what the file stores")
    return [site.builder.evaluated(built)]


def _check(node: Any, reads: list[np.ndarray | None], attrs: Mapping[str, Any]) -> None:
    if node.op_type in _CUTTING and node.domain in ("", "ai.onnx"):
        return
    rule = SHAPES.get(node.op_type)
    if rule is None or node.domain not in ("", "ai.onnx"):
        raise StretchError("it is not computed from what the file stores")
    seen = {key: tensor(value) if isinstance(value, np.ndarray) else value for key, value in attrs.items()}
    cost = rule(ShapeNode(tuple(None if x is None else tensor(x) for x in reads), seen, len(node.output)))
    if max(result.size for result in cost.results) > MAX_KNOWN or cost.work > 64 * MAX_KNOWN:
        raise StretchError("it makes a stored tensor too large")


def tensor(x: np.ndarray) -> KnownTensor:
    """What a rule of shapes knows of an array."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    if kind not in TYPE_NAMES:
        raise StretchError(f"it reads numbers of type {x.dtype}, which no network computes with")
    return KnownTensor(x.shape, kind, tuple(x.ravel().tolist()) if x.size <= SHORT else None)
