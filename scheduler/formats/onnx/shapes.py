"""Shapes and work of the operators that a bundle's files may hold, worked out before any runtime sees them.

Runtimes and the `onnx` package believe what a file says and start to allocate
and compute; the rules here only multiply numbers, and refuse what does not fit.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from predictors.errors import StretchError
from predictors.operators import Kind, kinds

_T = TypeVar("_T")

Shape = tuple[int, ...]

#: Strides, dilations and padding are at most this.
MAX_STEP = 1 << 12

#: Elements a convolution may lay out in rows for a matrix product: a gigabyte of reals.
MAX_COLUMNS = 1 << 28

#: Element types a Cast may make: FLOAT and FLOAT16.
REALS = (1, 10)


@dataclass(frozen=True)
class Node:
    """One operator with what its result depends on.

    Args:
        shapes: Of its inputs; None for one that is left out.
        attrs: Its attributes.
        constants: Numbers of the inputs that are short constants, by position.
    """

    shapes: tuple[Shape | None, ...]
    attrs: Mapping[str, Any]
    constants: Mapping[int, Sequence[float]]

    def shape(self, i: int) -> Shape:
        """Shape of input `i`, which must be there."""
        found = self.shapes[i] if i < len(self.shapes) else None
        return _there(found, f"it has no input {i}")

    def numbers(self, i: int) -> list[int]:
        """Whole numbers of input `i`, which must be a short constant."""
        return [int(n) for n in _there(self.constants.get(i), f"its input {i} is no short constant")]

    def ints(self, name: str, default: Sequence[int], least: int) -> tuple[int, ...]:
        """A list of whole numbers among the attributes, as long as `default`, each within `least` and `MAX_STEP`."""
        found = self.attrs.get(name, default)
        need(isinstance(found, list | tuple) and len(found) == len(default), f"its {name} is {str(found)[:60]}")
        need(all(isinstance(n, int) and least <= n <= MAX_STEP for n in found), f"its {name} is {list(found)}")
        return tuple(found)

    def whole(self, name: str, default: int) -> int:
        """A whole number among the attributes."""
        found = self.attrs.get(name, default)
        need(isinstance(found, int), f"its {name} is no whole number")
        return int(found)


@dataclass(frozen=True)
class Cost:
    """What an operator makes.

    Args:
        shape: Of its result.
        work: Multiply-accumulates, or operations on single elements.
    """

    shape: Shape
    work: int


Rule = Callable[[Node], Cost]


def need(holds: bool, problem: str) -> None:
    """Raise StretchError with `problem` unless it `holds`."""
    if not holds:
        raise StretchError(problem)


def _there(value: _T | None, problem: str) -> _T:
    if value is None:
        raise StretchError(problem)
    return value


def _same(node: Node) -> Cost:
    shape = node.shape(0)
    return Cost(shape, math.prod(shape))


def _by_kind(kind: Kind) -> Rule:
    """The rule of an operator that one kind is written by and no other."""

    def rule(node: Node) -> Cost:
        need(len(node.shapes) >= kind.min_inputs, f"it has {len(node.shapes)} inputs")
        try:
            shape = kind.shape([node.shape(i) for i in range(len(node.shapes))], {})
        except ValueError as error:
            raise StretchError(str(error)) from error
        return Cost(shape, math.prod(shape) * len(node.shapes))

    return rule


def _cast(node: Node) -> Cost:
    need(node.attrs.get("to") in REALS, f"it casts to type {node.attrs.get('to')}")
    return _same(node)


def _clip(node: Node) -> Cost:
    need(all(not shape for shape in node.shapes[1:] if shape is not None), "its bounds are no single numbers")
    return _same(node)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that tensors of several shapes have together, as numpy has it.

    Raises:
        StretchError: If two of them do not go together.
    """
    made: list[int] = []
    need(bool(shapes), "it has no inputs")
    for i in range(1, max(map(len, shapes)) + 1):
        sizes = {shape[-i] for shape in shapes if i <= len(shape)} - {1}
        need(len(sizes) <= 1, f"its inputs of shapes {', '.join(str(list(s)) for s in shapes)} do not go together")
        made.append(sizes.pop() if sizes else 1)
    return tuple(reversed(made))


def _together(node: Node) -> Cost:
    shape = broadcast([node.shape(i) for i in range(len(node.shapes))])
    return Cost(shape, math.prod(shape) * len(node.shapes))


def _prelu(node: Node) -> Cost:
    need(broadcast([node.shape(0), node.shape(1)]) == node.shape(0), f"its slopes have the shape {list(node.shape(1))}")
    return _same(node)


def _windows(node: Node, kernel: tuple[int, ...]) -> Shape:
    """Height and width of what a window that moves over the input gives."""
    need(node.attrs.get("auto_pad", b"NOTSET") == b"NOTSET", "its padding is automatic")
    strides, dilations = node.ints("strides", (1, 1), 1), node.ints("dilations", (1, 1), 1)
    pads = node.ints("pads", (0, 0, 0, 0), 0)
    made = []
    for i, size in enumerate(node.shape(0)[2:]):
        room = size + pads[i] + pads[i + 2] - dilations[i] * (kernel[i] - 1) - 1
        need(room >= 0, f"its window of {' × '.join(map(str, kernel))} is larger than its input")
        steps = -(-room // strides[i]) if node.whole("ceil_mode", 0) else room // strides[i]
        # a window that would begin in the padding behind the input is left out
        made.append(steps if node.whole("ceil_mode", 0) and steps * strides[i] >= size + pads[i] else steps + 1)
    return tuple(made)


def _conv(node: Node) -> Cost:
    x, w = node.shape(0), node.shape(1)
    need(len(x) == len(w) == 4, f"its input and weight have the shapes {list(x)} and {list(w)}")
    groups = node.whole("group", 1)
    need(groups >= 1 and x[1] == w[1] * groups and w[0] % groups == 0, f"{groups} groups do not divide {x[1]} and {w[0]} channels")
    need(node.attrs.get("kernel_shape", list(w[2:])) == list(w[2:]), "its kernel_shape is not that of its weight")
    need(len(node.shapes) < 3 or node.shapes[2] in (None, (w[0],)), "its bias is not one number a channel")
    size = _windows(node, w[2:])
    columns = math.prod(size) * math.prod(w[1:])
    need(columns <= MAX_COLUMNS, f"its kernel of {w[2]} × {w[3]} on {x[2]} × {x[3]} pixels is too much")
    return Cost((x[0], w[0], *size), x[0] * w[0] * columns)


def _pool(node: Node) -> Cost:
    x = node.shape(0)
    need(len(x) == 4, f"its input has the shape {list(x)}")
    kernel = node.ints("kernel_shape", (0, 0), 1)
    pads = node.ints("pads", (0, 0, 0, 0), 0)
    need(all(pad < kernel[i % 2] for i, pad in enumerate(pads)), "its padding is larger than its window")
    made = (*x[:2], *_windows(node, kernel))
    return Cost(made, math.prod(made) * math.prod(kernel))


def _global_pool(node: Node) -> Cost:
    x = node.shape(0)
    need(len(x) == 4, f"its input has the shape {list(x)}")
    return Cost((*x[:2], 1, 1), math.prod(x))


def _gemm(node: Node) -> Cost:
    a, b = node.shape(0), node.shape(1)
    need(len(a) == len(b) == 2, f"its inputs have the shapes {list(a)} and {list(b)}")
    a = a[::-1] if node.whole("transA", 0) else a
    b = b[::-1] if node.whole("transB", 0) else b
    need(a[1] == b[0], f"{a[1]} columns meet {b[0]} rows")
    made = (a[0], b[1])
    bias = node.shapes[2] if len(node.shapes) > 2 else None
    need(bias is None or broadcast([made, bias]) == made, "its bias does not fit its result")
    return Cost(made, a[0] * a[1] * b[1])


def _batch_norm(node: Node) -> Cost:
    x = node.shape(0)
    need(not node.whole("training_mode", 0), "it is in training mode")
    need(len(x) >= 2 and all(node.shape(i) == (x[1],) for i in range(1, 5)), "its statistics are not one number a channel")
    return _same(node)


def _layer_norm(node: Node) -> Cost:
    x = node.shape(0)
    need(node.whole("axis", -1) in (-1, len(x) - 1), "it normalises another axis than the last")
    need(all(shape in (None, x[-1:]) for shape in node.shapes[1:]), "its weights are not one number a channel")
    return Cost(x, 4 * math.prod(x))


def _along_axis(node: Node) -> Cost:
    shape = node.shape(0)
    axis = node.whole("axis", -1)
    need(-len(shape) <= axis < len(shape), f"its axis is {axis}")
    return Cost(shape, 4 * math.prod(shape))


def _concat(node: Node) -> Cost:
    parts = [list(node.shape(i)) for i in range(len(node.shapes))]
    axis = node.whole("axis", 1)
    need(bool(parts) and all(0 <= axis < len(part) for part in parts), f"its axis is {axis}")
    widths = [part.pop(axis) for part in parts]
    need(all(part == parts[0] for part in parts), "its inputs differ beside the joined axis")
    made = (*parts[0][:axis], sum(widths), *parts[0][axis:])
    return Cost(made, math.prod(made))


def _flatten(node: Node) -> Cost:
    x = node.shape(0)
    axis = node.whole("axis", 1)
    need(0 <= axis <= len(x), f"its axis is {axis}")
    return Cost((math.prod(x[:axis]), math.prod(x[axis:])), math.prod(x))


def _reshape(node: Node) -> Cost:
    x, sizes = node.shape(0), node.numbers(1)
    need(all(n > 0 for n in sizes) and math.prod(sizes) == math.prod(x), f"it makes {sizes} of {list(x)}")
    return Cost(tuple(sizes), math.prod(x))


def _transpose(node: Node) -> Cost:
    x = node.shape(0)
    order = node.ints("perm", range(len(x) - 1, -1, -1), 0)
    need(sorted(order) == list(range(len(x))), f"its order of axes is {list(order)}")
    return Cost(tuple(x[i] for i in order), math.prod(x))


def _unsqueeze(node: Node) -> Cost:
    x, axes = list(node.shape(0)), sorted(node.numbers(1))
    need(len(set(axes)) == len(axes) and all(0 <= a < len(x) + len(axes) for a in axes), f"its axes are {axes}")
    for axis in axes:
        x.insert(axis, 1)
    return Cost(tuple(x), math.prod(x))


def _pad(node: Node) -> Cost:
    x, widths = node.shape(0), node.numbers(1)
    need(len(widths) == 2 * len(x) and all(-MAX_STEP <= n <= MAX_STEP for n in widths), f"it pads by {widths}")
    need(node.attrs.get("mode", b"constant") == b"constant" and len(node.shapes) <= 3, "it pads with something else than a constant")
    # a negative width cuts off
    made = tuple(size + widths[i] + widths[i + len(x)] for i, size in enumerate(x))
    need(all(size + min(0, widths[i]) + min(0, widths[i + len(x)]) > 0 for i, size in enumerate(x)), f"it cuts off everything by {widths}")
    return Cost(made, math.prod(made))


def _slice(node: Node) -> Cost:
    made = list(node.shape(0))
    starts, ends, axes = (node.numbers(i) for i in (1, 2, 3))
    need(len(starts) == len(ends) == len(axes) == len(set(axes)) and len(node.shapes) == 4, "its bounds do not fit together")
    for start, end, axis in zip(starts, ends, axes, strict=True):
        need(0 <= axis < len(made) and 0 <= start < end, f"it cuts axis {axis} from {start} to {end}")
        made[axis] = min(end, made[axis]) - start
    return Cost(tuple(made), math.prod(node.shape(0)))


def _resize(node: Node) -> Cost:
    x = node.shape(0)
    scales = _there(node.constants.get(2), "its scales are no constant")
    need(len(scales) == len(x) == 4 and len(node.shapes) == 3, "it has no scale for each axis")
    need(all(1 <= s <= 64 and s == int(s) for s in scales), f"its scales are {list(scales)}")
    need(node.attrs.get("mode", b"nearest") == b"nearest", "it interpolates")
    made = tuple(int(size * scale) for size, scale in zip(x, scales, strict=True))
    return Cost(made, math.prod(made))


def _quantise(node: Node) -> Cost:
    x = node.shape(0)
    need(not node.whole("block_size", 0), "it has a scale for each block")
    axis = node.whole("axis", 1)
    for i in range(1, len(node.shapes)):
        scales = node.shape(i)
        one = scales in ((), (1,))
        need(one or (-len(x) <= axis < len(x) and scales == (x[axis],)), f"its scales have the shape {list(scales)}")
    return Cost(x, math.prod(x))


#: Operators that `stretch` writes, and no others: none of them holds a graph, a loop or a random number.
RULES: Mapping[str, Rule] = {
    "Add": _together,
    "AveragePool": _pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "DequantizeLinear": _quantise,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "Identity": _same,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _along_axis,
    "MaxPool": _pool,
    "Mul": _together,
    "PRelu": _prelu,
    "Pad": _pad,
    "QuantizeLinear": _quantise,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Softmax": _along_axis,
    "Sum": _together,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    **{node: _by_kind(kinds.get(name)) for name in kinds for node in kinds.get(name).nodes},
}
