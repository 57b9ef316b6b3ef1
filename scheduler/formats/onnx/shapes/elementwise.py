"""Operators that compute each element of their result from those at the same place."""

from collections.abc import Mapping

from predictors.errors import StretchError
from predictors.operators import Kind, kinds
from scheduler.formats.onnx.shapes.node import (
    ANY,
    BOOL,
    BYTES,
    FLOAT,
    FLOAT16,
    INDICES,
    INT32,
    INT64,
    NUMBERS,
    REALS,
    Cost,
    KnownTensor,
    Rule,
    ShapeNode,
    broadcast,
    gives,
    like,
    need,
)

#: Element types that a Cast may make.
CASTS = frozenset({FLOAT, FLOAT16, INT32, INT64, BOOL})

_REAL = (
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log", "Reciprocal"),
    *("Round", "Selu", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "ThresholdedRelu"),
)


def _alone(types: frozenset[int]) -> Rule:
    def rule(node: ShapeNode) -> Cost:
        need(len(node.inputs) == 1, f"it has {len(node.inputs)} inputs")
        return like(node.tensor(0, types))

    return rule


def _by_kind(kind: Kind) -> Rule:
    """The rule of an operator that one kind is written by and no other."""

    def rule(node: ShapeNode) -> Cost:
        need(len(node.inputs) >= kind.min_inputs, f"it has {len(node.inputs)} inputs")
        tensors = node.tensors(REALS)
        try:
            shape = kind.shape([tensor.shape for tensor in tensors], {})
        except ValueError as error:
            raise StretchError(str(error)) from error
        return _each(shape, tensors, tensors[0].type)

    return rule


def _each(shape: tuple[int, ...], tensors: list[KnownTensor], type: int) -> Cost:
    """One operation for each element and each tensor that is read."""
    return gives(shape, KnownTensor(shape).size * len(tensors), type)


def _together(types: frozenset[int], count: int | None = None, result_type: int | None = None) -> Rule:
    """Tensors of one type that broadcast: `count` of them or any number; into their own type or `made`."""

    def rule(node: ShapeNode) -> Cost:
        tensors = node.tensors(types)
        need(count in (None, len(tensors)), f"it has {len(tensors)} inputs")
        return _each(broadcast([tensor.shape for tensor in tensors]), tensors, tensors[0].type if result_type is None else result_type)

    return rule


def _pow(node: ShapeNode) -> Cost:
    base, exponent = node.tensor(0, REALS | INDICES), node.tensor(1, REALS | INDICES)
    return _each(broadcast([base.shape, exponent.shape]), [base, exponent], base.type)


def _mod(node: ShapeNode) -> Cost:
    need(bool(node.whole("fmod", 0)) or node.tensor(0).type not in REALS, "it takes the remainder of reals without fmod")
    return _together(NUMBERS, 2)(node)


def _where(node: ShapeNode) -> Cost:
    chosen, one, other = node.tensor(0, frozenset({BOOL})), node.tensor(1), node.tensor(2)
    need(one.type == other.type, "it chooses between two element types")
    return _each(broadcast([chosen.shape, one.shape, other.shape]), [chosen, one, other], one.type)


def _cast(node: ShapeNode) -> Cost:
    x, to = node.tensor(0), node.whole("to", 0)
    need(to in CASTS, f"it casts to type {to}")
    values = x.values
    if values is not None and to in INDICES | {BOOL}:
        # The nearest whole number towards zero; what is none stays unknown.
        whole = all(n == n and abs(n) < 1 << 53 for n in values)
        values = tuple(bool(n) if to == BOOL else int(n) for n in values) if whole else None
    return Cost((KnownTensor(x.shape, to, values),), x.size)


def _clip(node: ShapeNode) -> Cost:
    x = node.tensor(0, NUMBERS)
    for bound in (node.optional(1), node.optional(2)):
        need(bound is None or (not bound.shape and bound.type == x.type), "its bounds are no single numbers")
    return like(x)


def _prelu(node: ShapeNode) -> Cost:
    x, slope = node.tensor(0, REALS), node.tensor(1, REALS)
    need(broadcast([x.shape, slope.shape]) == x.shape, f"its slopes have the shape {list(slope.shape)}")
    return like(x)


def _test(node: ShapeNode) -> Cost:
    x = node.tensor(0, REALS)
    return gives(x.shape, x.size, BOOL)


def _identity(node: ShapeNode) -> Cost:
    x = node.tensor(0)
    return Cost((x,), x.size)


_BOOL, _WHOLE = frozenset({BOOL}), BYTES | INDICES

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_REAL, _alone(REALS)),
    **dict.fromkeys(("Neg", "Abs", "Sign"), _alone(NUMBERS)),
    "Not": _alone(_BOOL),
    "BitwiseNot": _alone(_WHOLE),
    **dict.fromkeys(("IsInf", "IsNaN"), _test),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _together(NUMBERS, 2)),
    **dict.fromkeys(("Max", "Min"), _together(NUMBERS)),
    **dict.fromkeys(("Mean", "Sum"), _together(REALS)),
    **dict.fromkeys(("And", "Or", "Xor"), _together(_BOOL, 2)),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), _together(_WHOLE, 2)),
    "Equal": _together(ANY, 2, BOOL),
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _together(NUMBERS, 2, BOOL)),
    "Cast": _cast,
    "Clip": _clip,
    "Identity": _identity,
    "Mod": _mod,
    "PRelu": _prelu,
    "Pow": _pow,
    "Where": _where,
    **{node: _by_kind(kinds.get(name)) for name in kinds for node in kinds.get(name).nodes},
}
