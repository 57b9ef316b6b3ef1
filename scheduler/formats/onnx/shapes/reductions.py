"""Operators that compute along axes: sums, largest elements, orders."""

from collections.abc import Mapping

from scheduler.formats.onnx.shapes.node import INDICES, INT64, NUMBERS, REALS, Cost, KnownTensor, Rule, ShapeNode, distinct, gives, need

_REDUCED = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


def _left(shape: tuple[int, ...], axes: list[int], keep: bool) -> list[int]:
    """The shape once these axes are reduced."""
    return [1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes]


def _reduce(node: ShapeNode) -> Cost:
    x, axes = node.tensor(0, REALS | INDICES), node.listed("axes", 1)
    if not axes and not node.whole("noop_with_empty_axes", 0):
        axes = list(range(len(x.shape)))
    reduced = distinct(axes or [], len(x.shape))
    return gives(_left(x.shape, reduced, bool(node.whole("keepdims", 1))), x.size, x.type)


def _arg(node: ShapeNode) -> Cost:
    x = node.tensor(0, NUMBERS)
    axis = node.axis("axis", 0, len(x.shape))
    return gives(_left(x.shape, [axis], bool(node.whole("keepdims", 1))), x.size, INT64)


def _top_k(node: ShapeNode) -> Cost:
    x, count = node.tensor(0, REALS | INDICES), node.number(1)
    axis = node.axis("axis", -1, len(x.shape))
    need(0 < count <= x.shape[axis], f"it takes {count} of {x.shape[axis]}")
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return Cost((KnownTensor(shape, x.type), KnownTensor(shape, INT64))[: node.results], x.size * x.shape[axis].bit_length())


def _cum_sum(node: ShapeNode) -> Cost:
    x, axis = node.tensor(0, REALS | INDICES), node.number(1)
    distinct([axis], len(x.shape))
    return gives(x.shape, x.size, x.type)


RULES: Mapping[str, Rule] = {
    **{f"Reduce{name}": _reduce for name in _REDUCED},
    "ArgMax": _arg,
    "ArgMin": _arg,
    "CumSum": _cum_sum,
    "TopK": _top_k,
}
