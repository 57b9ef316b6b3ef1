"""Which rule takes a call of an ATen operator on tensors whose axes are known."""

import torch

from stretch.capture.aten_call import AtenCall
from stretch.capture.axes.attention import PRODUCTS, attention
from stretch.capture.axes.maps import Maps
from stretch.capture.axes.rules import RULES, Result, elementwise, projected_by_matrix

#: Computed element by element, though torch does not say so.
_POINTWISE = frozenset({"hardswish", "hardsigmoid", "hardtanh", "relu6", "selu", "celu", "softplus", "log_sigmoid", "elu", "mish"})


def applied(maps: Maps, call: AtenCall) -> Result:
    """What a call makes of tensors of known axes; None if it is none of these, or gives the elements in another way."""
    if call.operator == "scaled_dot_product_attention":
        return attention(maps, call)
    if call.operator in PRODUCTS | {"mm"}:
        return projected_by_matrix(maps, call)
    rule = RULES.get(call.operator)
    if rule is not None:
        return rule(maps, call)
    if call.operator in _POINTWISE:
        return elementwise(maps, call)
    tags = getattr(call.node.target, "tags", ())
    return elementwise(maps, call) if torch.Tag.pointwise in tags else None
