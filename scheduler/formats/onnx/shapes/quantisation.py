"""Conversions between reals and bytes."""

from collections.abc import Mapping

from scheduler.formats.onnx.shapes.node import BYTES, FLOAT, INT32, REALS, UINT8, Cost, KnownTensor, Rule, ShapeNode, gives, need


def _check_scales(node: ShapeNode, x: KnownTensor) -> None:
    """A scale and a zero point for all elements, or for each place along one axis."""
    need(not node.whole("block_size", 0), "it has a scale for each block")
    axis = node.whole("axis", 1)
    for scales in [node.shape(i) for i in range(1, len(node.inputs))]:
        one = scales in ((), (1,))
        need(one or (-len(x.shape) <= axis < len(x.shape) and scales == (x.shape[axis],)), f"its scales have the shape {list(scales)}")


def _quantise(node: ShapeNode) -> Cost:
    x, zero = node.tensor(0, REALS), node.optional(2)
    _check_scales(node, x)
    need(zero is None or zero.type in BYTES, "its zero point is no byte")
    return gives(x.shape, x.size, UINT8 if zero is None else zero.type)


def _dequantise(node: ShapeNode) -> Cost:
    x = node.tensor(0, BYTES | {INT32})
    _check_scales(node, x)
    need(node.tensor(1).type in REALS, "its scales are no reals")
    return gives(x.shape, x.size, FLOAT)


RULES: Mapping[str, Rule] = {"DequantizeLinear": _dequantise, "QuantizeLinear": _quantise}
