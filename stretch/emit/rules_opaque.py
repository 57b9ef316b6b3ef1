"""Python code of operators that no family describes: the calls of torch that compute them."""

from typing import Any

import torch

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.operators.attention import ADDED
from predictors.shapes import Shape, integer, ints, number
from stretch.emit.code import OWN, Code, call, codes, literal
from stretch.opaque.calls import calls_of, find_operator, type_of
from stretch.operators.attention import Attention
from stretch.operators.convolution import PaddedConv2d
from stretch.operators.elementwise import ChannelScale, ChannelShift
from stretch.operators.normalisation import ChannelNorm

_APPLIED = f"{OWN}({{0}})"


def _same(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    """One number where all are the same, as people write it."""
    return sizes[0] if len(set(sizes)) == 1 else sizes


@codes.register("conv")
def _conv(op: Op, shapes: list[Shape]) -> Code:
    a = op.attrs
    top, left, bottom, right = ints(a, "padding")
    settings: dict[str, object] = {"kernel_size": _same(ints(a, "kernel"))}
    if ints(a, "stride") != (1, 1):
        settings["stride"] = _same(ints(a, "stride"))
    even = (top, left) == (bottom, right)
    if even and (top, left) != (0, 0):
        settings["padding"] = _same((top, left))
    if ints(a, "dilation") != (1, 1):
        settings["dilation"] = _same(ints(a, "dilation"))
    if integer(a, "groups") != 1:
        settings["groups"] = integer(a, "groups")
    if not a["bias"]:
        settings["bias"] = False
    channels = shapes[0][1], integer(a, "out_channels")
    if even:
        return Code(_APPLIED, call("nn.Conv2d", *channels, **settings))
    return Code(_APPLIED, call("PaddedConv2d", *channels, **settings, pads=(top, left, bottom, right)), helpers=(PaddedConv2d,))


@codes.register("batch_norm")
def _batch_norm(op: Op, shapes: list[Shape]) -> Code:
    a = op.attrs
    usual = {"eps": (number(a, "eps"), 1e-5), "momentum": (number(a, "momentum"), 0.1), "affine": (bool(a["affine"]), True)}
    settings = {key: value for key, (value, default) in usual.items() if value != default}
    return Code(_APPLIED, call("nn.BatchNorm1d" if len(shapes[0]) == 2 else "nn.BatchNorm2d", shapes[0][1], **settings))


@codes.register("layer_norm")
def _layer_norm(op: Op, shapes: list[Shape]) -> Code:
    construction = call("ChannelNorm", shapes[0][1], eps=number(op.attrs, "eps"), affine=bool(op.attrs["affine"]))
    return Code(_APPLIED, construction, helpers=(ChannelNorm,))


@codes.register("scale")
def _scale(op: Op, shapes: list[Shape]) -> Code:
    return Code(_APPLIED, call("ChannelScale", shapes[0][1]), helpers=(ChannelScale,))


@codes.register("shift")
def _shift(op: Op, shapes: list[Shape]) -> Code:
    return Code(_APPLIED, call("ChannelShift", shapes[0][1]), helpers=(ChannelShift,))


@codes.register("attention")
def _attention(op: Op, shapes: list[Shape]) -> Code:
    a = op.attrs
    added = {key: ints(a, key) for key in ADDED if key in a}
    construction = call("Attention", integer(a, "heads"), integer(a, "keys"), number(a, "scale"), **added)
    return Code(f"{OWN}({{0}}, {{1}}, {{2}})", construction, helpers=(Attention,))


def zeros(shape: Shape, dtype: torch.dtype) -> str:
    """The initial value of a tensor that the package's file of weights fills."""
    return f"torch.zeros({tuple(shape)!r})" if dtype == torch.float32 else f"torch.zeros({tuple(shape)!r}, dtype={dtype})"


@codes.register("opaque")
def _opaque(op: Op, shapes: list[Shape]) -> Code:
    """The last call, with those that it reads inside of it."""
    calls = calls_of(op.attrs)
    tensors = {f"constant_{i}": (spec.learned, zeros(spec.shape, type_of(spec.dtype))) for i, spec in enumerate(calls.constants)}
    expressions: list[str] = []
    for step in calls.calls:
        # it names a function of torch that was checked, and nothing else
        several = len(find_operator(step.operator)._schema.returns) > 1
        argument_texts = [_argument(value, expressions) for value in step.arguments]
        argument_texts += [f"{_word(key)}={_argument(value, expressions)}" for key, value in step.options.items()]
        expressions.append(f"torch.ops.aten.{step.operator}({', '.join(argument_texts)})" + (f"[{int(step.result)}]" if several else ""))
    return Code(expressions[-1], tensors=tensors)


def _word(name: str) -> str:
    if not name.isidentifier():
        raise StretchError(f"`{name}` is no argument of a function")
    return name


def _argument(value: Any, expressions: list[str]) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_argument(element, expressions) for element in value)}]"
    if not isinstance(value, dict):
        return literal(value)
    ((key, what),) = value.items()
    if key == "read":
        return f"{{{int(what)}}}"
    if key == "constant":
        return f"{OWN}_constant_{int(what)}"
    if key == "call":
        return expressions[what]
    return f"torch.{str(type_of(what)).removeprefix('torch.')}" if key == "dtype" else f'float("{float(what)}")'
