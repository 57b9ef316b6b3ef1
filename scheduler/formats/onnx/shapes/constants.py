"""Tensors that are known before the network runs: stored in the file, counted, or told by a shape."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from scheduler.formats.onnx.shapes.node import FLOAT, INDICES, INT64, MAX_RANK, Cost, KnownTensor, Rule, ShapeNode, gives, need

#: Constants of at most this many elements may be sizes, and are looked into.
SHORT = 16

#: Attributes of Constant that hold numbers, with whether they are lists and whether they are reals.
_STORED = {"value_float": (False, True), "value_floats": (True, True), "value_int": (False, False), "value_ints": (True, False)}


def short(tensor: KnownTensor) -> KnownTensor:
    """The tensor, whose values are forgotten if they are too many to be sizes."""
    return tensor if tensor.size <= SHORT else KnownTensor(tensor.shape, tensor.type)


def _constant(node: ShapeNode) -> Cost:
    need(len(node.attrs) == 1 and not node.inputs, "it has no single value")
    [(name, value)] = node.attrs.items()
    if isinstance(value, KnownTensor):
        return Cost((value,), value.size)
    need(name in _STORED, f"it has its value as `{name}`")
    many, real = _STORED[name]
    values = tuple(value) if many else (value,)
    return Cost((short(KnownTensor((len(values),) if many else (), 1 if real else INT64, values)),), len(values))


def _shape(node: ShapeNode) -> Cost:
    x, rank = node.shape(0), len(node.shape(0))
    kept = x[node.whole("start", 0) : node.whole("end", rank)]
    need(rank <= MAX_RANK, f"its input has {rank} axes")
    return Cost((KnownTensor((len(kept),), INT64, tuple(kept)),), rank)


def _size(node: ShapeNode) -> Cost:
    return Cost((KnownTensor((), INT64, (node.tensor(0).size,)),), 1)


def _filled(node: ShapeNode) -> Cost:
    sizes, value = node.numbers(0), node.attrs.get("value", KnownTensor((1,), values=(0.0,)))
    need(isinstance(value, KnownTensor) and value.size == 1 and len(sizes) <= MAX_RANK, "its value is no single number")
    need(all(n > 0 for n in sizes), f"it makes {sizes}")
    size = math.prod(sizes)
    values = None if value.values is None or size > SHORT else value.values * size
    return Cost((KnownTensor(tuple(sizes), value.type, values),), size)


def _range(node: ShapeNode) -> Cost:
    bounds = [node.tensor(i, INDICES | {FLOAT}) for i in range(3)]
    need(len({bound.type for bound in bounds}) == 1, "its bounds differ in their element types")
    if bounds[0].type == FLOAT:
        return _real_range(bounds)
    first, last, by = (node.number(i) for i in range(3))
    need(by != 0, "its step is 0")
    counted = range(first, last, by)
    # `len` of a range overflows where its bounds are far apart.
    count = max(0, -(-(last - first) // by))
    return Cost((KnownTensor((count,), bounds[0].type, tuple(counted) if count <= SHORT else None),), count)


def _real_range(bounds: Sequence[KnownTensor]) -> Cost:
    """A range of reals, counted as ONNX Runtime counts it: the difference in single precision, the quotient in double."""
    need(all(bound.size == 1 and bound.values for bound in bounds), "its bounds are no single constants")
    first, last, by = (np.float32(bound.values[0]) for bound in bounds if bound.values)
    need(bool(by != 0 and np.isfinite([first, last, by, last - first]).all()), f"it goes from {first:g} to {last:g} by {by:g}")
    return gives((max(0, math.ceil(float(last - first) / float(by))),), 1)


RULES: Mapping[str, Rule] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Range": _range,
    "Shape": _shape,
    "Size": _size,
}
