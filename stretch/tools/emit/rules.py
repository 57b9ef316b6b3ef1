"""Python code of operators: functions of torch, modules, and calls for operators that belong to no family."""

import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import torch
from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.operators.attention import ADDED
from predictors.registry import Registry
from predictors.shapes import Shape, integer, ints, number
from stretch.operators.attention import Attention
from stretch.operators.elementwise import ChannelScale, ChannelShift, StochasticDepth
from stretch.operators.lowerings import make_module
from stretch.operators.normalisation import ChannelNorm
from stretch.operators.opaque.calls import calls_of, find_operator, type_of
from stretch.operators.products import PaddedConv2d

#: Placeholder in an expression for the attribute that holds the operator's module or tensors.
ATTRIBUTE_PLACEHOLDER = "{own}"


@dataclass(frozen=True)
class OperatorCode:
    """An operator as Python code."""

    expression: str = "{0}"  # Code of its result. ``{0}`` is its first input, ``{own}`` its attribute of the class.
    module: str = ""  # Expression of its module, such as ``nn.Linear(3, 4)``; empty if it has none.
    #: Learned and constant tensors of an operator without a module, by the keys of its weights: whether the tensor is learned, and the
    #: code of its initial value.
    tensors: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
    helpers: tuple[type[nn.Module], ...] = ()  # Classes of nn-stretch that the module needs, which are copied into the package.
    passes: bool = False  # Whether the operator returns its input.


#: Function that writes an operator for inputs of these shapes.
CodeRule = Callable[[Op, list[Shape]], OperatorCode]

#: Rules by kind; the code of any other kind is the representation of its torch module.
codes: Registry[CodeRule] = Registry("operator kind with Python code")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Strings such as modes and equations of sums, which cannot end a Python string or name a tensor.
_WORD = re.compile(r"[A-Za-z0-9_ .,:>*-]*")


def code_of(op: Op, shapes: list[Shape]) -> OperatorCode:
    """Return an operator as Python code."""
    if op.kind in codes:
        return codes.get(op.kind)(op, shapes)
    module = make_module(op, shapes)
    name = type(module).__name__
    if getattr(nn, name, None) is not type(module):
        raise StretchError(f"operator `{op.name}` ({op.kind}) cannot be written as plain Python code")
    return OperatorCode(f"{ATTRIBUTE_PLACEHOLDER}({{0}})", f"nn.{module!r}")


def literal(value: Any) -> str:
    """Return a number, truth value, string or tuple of them as Python code; any other content of a file is refused."""
    if isinstance(value, bool | int) or value is None or (isinstance(value, str) and _WORD.fullmatch(value)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, tuple | list):
        return sequence_code(value, map(literal, value))
    raise StretchError(f"{value!r} cannot be written as Python code")


def sequence_code(value: tuple[Any, ...] | list[Any], elements: Iterable[str]) -> str:
    """Return the code of a tuple or list from the code of its elements."""
    elements_text = ", ".join(elements)
    return f"[{elements_text}]" if isinstance(value, list) else f"({elements_text},)" if len(value) == 1 else f"({elements_text})"


def call(name: str, *arguments: Any, **settings: Any) -> str:
    """Return a call with literal arguments."""
    texts = [literal(argument) for argument in arguments] + [f"{key}={literal(value)}" for key, value in settings.items()]
    return f"{name}({', '.join(texts)})"


def attribute(name: str) -> str:
    """Return a valid attribute name for a module: letters, digits and underscores, but no name that Python or torch uses."""
    safe = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
    if not _NAME.fullmatch(safe):
        safe = f"_{safe}"
    return f"{safe}_" if keyword.iskeyword(safe) or keyword.issoftkeyword(safe) or hasattr(nn.Module, safe) or safe == "self" else safe


def class_name(name: str) -> str:
    """Return a class name: the parts of the name, each with a capital letter."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    name_of_class = "".join(word[0].upper() + word[1:] for word in words) or "Network"
    return name_of_class if name_of_class[0].isalpha() else f"Network{name_of_class}"


_APPLY_TEMPLATE = f"{ATTRIBUTE_PLACEHOLDER}({{0}})"


def _function_rule(function: str, *arguments: Any, **settings: Any) -> OperatorCode:
    """Return a function of its only input, with literal settings; those that are None are left out."""
    code = call(function, *arguments, **{key: value for key, value in settings.items() if value is not None})
    return OperatorCode(code.replace("(", "({0}" + (", " if not code.endswith("()") else ""), 1))


def _module(kind: type[torch.nn.Module], *arguments: Any, **settings: Any) -> OperatorCode:
    """Return a module of nn-stretch with one input."""
    return OperatorCode(_APPLY_TEMPLATE, call(kind.__name__, *arguments, **settings), helpers=(kind,))


def _single_number(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    """Return one number if all are equal, as people write it."""
    return sizes[0] if len(set(sizes)) == 1 else sizes


def _all_inputs(shapes: list[Shape]) -> list[str]:
    """Return the placeholders of all inputs."""
    return [f"{{{i}}}" for i in range(len(shapes))]


def _global_pool(function: str, op: Op) -> OperatorCode:
    """Return the code of a mean or maximum over all pixels."""
    return OperatorCode(f"{function}({{0}}, 1)" if op.attrs["keepdims"] else f"{function}({{0}}, 1).flatten(1)")


#: Code of kinds without settings.
_UNARY = {
    "relu": "F.relu({0})",
    "relu6": "F.relu6({0})",
    "hard_swish": "F.hardswish({0})",
    "hard_sigmoid": "F.hardsigmoid({0})",
    "silu": "F.silu({0})",
    "sigmoid": "torch.sigmoid({0})",
    "tanh": "torch.tanh({0})",
    "mish": "F.mish({0})",
    "softmax": "F.softmax({0}, dim=1)",
    "log_softmax": "F.log_softmax({0}, dim=1)",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "channel_mean": "{0}.mean(1, keepdim=True)",
    "flatten": "{0}.flatten(1)",
    "unflatten": "{0}[:, :, None, None]",
}

#: Kinds whose code is one expression of their settings.
_RULES: dict[str, Any] = {
    "identity": lambda op, shapes: OperatorCode(passes=True),
    "clamp": lambda op, shapes: _function_rule("torch.clamp", number(op.attrs, "low"), number(op.attrs, "high")),
    "gelu": lambda op, shapes: _function_rule(
        "F.gelu", approximate=None if op.attrs["approximate"] == "none" else str(op.attrs["approximate"])
    ),
    "elu": lambda op, shapes: _function_rule("F.elu", alpha=number(op.attrs, "alpha")),
    "leaky_relu": lambda op, shapes: _function_rule("F.leaky_relu", number(op.attrs, "slope")),
    "add": lambda op, shapes: OperatorCode(" + ".join(_all_inputs(shapes))),
    "add_scalar": lambda op, shapes: OperatorCode(f"{{0}} + {literal(number(op.attrs, 'value'))}"),
    "mul_scalar": lambda op, shapes: OperatorCode(f"{{0}} * {literal(number(op.attrs, 'value'))}"),
    "concat": lambda op, shapes: OperatorCode(f"torch.cat([{', '.join(_all_inputs(shapes))}], dim=1)"),
    "concat_rows": lambda op, shapes: OperatorCode(f"torch.cat([{', '.join(_all_inputs(shapes))}], dim=2)"),
    "slice": lambda op, shapes: OperatorCode(f"{{0}}[:, {integer(op.attrs, 'start')} : {integer(op.attrs, 'stop')}]"),
    "slice_rows": lambda op, shapes: OperatorCode(f"{{0}}[:, :, {integer(op.attrs, 'start')} : {integer(op.attrs, 'stop')}]"),
    "pad": lambda op, shapes: _function_rule("F.pad", _sides(op)),
    "upsample": lambda op, shapes: _function_rule("F.interpolate", scale_factor=tuple(map(float, ints(op.attrs, "scale"))), mode="nearest"),
    "dropout": lambda op, shapes: OperatorCode(f"F.dropout({{0}}, {literal(number(op.attrs, 'p'))}, self.training)"),
    "stochastic_depth": lambda op, shapes: _module(StochasticDepth, number(op.attrs, "p"), str(op.attrs["mode"])),
    "global_avg_pool": lambda op, shapes: _global_pool("F.adaptive_avg_pool2d", op),
    "global_max_pool": lambda op, shapes: _global_pool("F.adaptive_max_pool2d", op),
    "global_l2_norm": lambda op, shapes: _function_rule("torch.linalg.vector_norm", dim=(2, 3), keepdim=bool(op.attrs["keepdims"])),
    "roll": lambda op, shapes: _function_rule("torch.roll", ints(op.attrs, "shift"), (2, 3)),
    "channels_first": lambda op, shapes: OperatorCode(f"{{0}}.unflatten(0, (-1, {integer(op.attrs, 'rows')})).permute(0, 3, 1, 2)"),
    "layer_norm": lambda op, shapes: _module(ChannelNorm, shapes[0][1], eps=number(op.attrs, "eps"), affine=bool(op.attrs["affine"])),
    "scale": lambda op, shapes: _module(ChannelScale, shapes[0][1]),
    "shift": lambda op, shapes: _module(ChannelShift, shapes[0][1]),
}


def _fixed_code(code: OperatorCode, op: Op, shapes: Sequence[Shape]) -> OperatorCode:
    return code


for _kind, _expression in _UNARY.items():
    codes.register(_kind)(partial(_fixed_code, OperatorCode(_expression)))
for _kind, _rule in _RULES.items():
    codes.register(_kind)(_rule)


@codes.register("view")
def _view(op: Op, shapes: list[Shape]) -> OperatorCode:
    shape = ints(op.attrs, "shape")
    return OperatorCode(f"{{0}}.reshape({', '.join(map(str, (-1, *shape[1:])))})" if shape else "{0}.reshape(())")


def _window(op: Op) -> dict[str, Any]:
    return {"stride": _single_number(ints(op.attrs, "stride")), "ceil_mode": bool(op.attrs["ceil_mode"]) or None}


def _sides(op: Op) -> tuple[int, int, int, int]:
    """Return the left, right, top and bottom padding, in the order of `F.pad`."""
    top, left, bottom, right = ints(op.attrs, "padding")
    return left, right, top, bottom


@codes.register("max_pool")
def _max_pool(op: Op, shapes: list[Shape]) -> OperatorCode:
    left, right, top, bottom = _sides(op)
    settings = {**_window(op), "dilation": None if ints(op.attrs, "dilation") == (1, 1) else _single_number(ints(op.attrs, "dilation"))}
    if (top, left) == (bottom, right):
        return _function_rule(
            "F.max_pool2d", _single_number(ints(op.attrs, "kernel")), **settings, padding=_single_number((top, left)) or None
        )
    padded = f"F.pad({{0}}, {literal(_sides(op))}, value={literal(-inf)})"
    return _cut(op, _function_rule("F.max_pool2d", _single_number(ints(op.attrs, "kernel")), **settings).expression.replace("{0}", padded))


@codes.register("avg_pool")
def _avg_pool(op: Op, shapes: list[Shape]) -> OperatorCode:
    left, right, top, bottom = _sides(op)
    counted = bool(op.attrs["count_include_pad"])
    if (top, left) == (bottom, right):
        settings = {**_window(op), "padding": _single_number((top, left)) or None, "count_include_pad": None if counted else False}
        return _function_rule("F.avg_pool2d", _single_number(ints(op.attrs, "kernel")), **settings)
    total = _function_rule("F.avg_pool2d", _single_number(ints(op.attrs, "kernel")), **_window(op), divisor_override=1).expression
    sides = literal(_sides(op))
    ones = "torch.ones_like({0}[:1, :1])"
    count = total.replace("{0}", f"F.pad({ones}, {sides}, value={float(counted)})")
    return _cut(op, f"({total.replace('{0}', f'F.pad({{0}}, {sides})')} / {count})")


def _cut(op: Op, pooled: str) -> OperatorCode:
    """Cut off the windows that torch adds because explicit padding counts as image."""
    return OperatorCode(f"{pooled}[..., : {op.shape[2]}, : {op.shape[3]}]")


@codes.register("subsample")
def _subsample(op: Op, shapes: list[Shape]) -> OperatorCode:
    ranges = zip(*(ints(op.attrs, key) for key in ("start", "stop", "step")), strict=True)
    return OperatorCode(f"{{0}}[:, :, {', '.join(':'.join(map(str, bounds)) for bounds in ranges)}]")


@codes.register("rearrange")
def _rearrange(op: Op, shapes: list[Shape]) -> OperatorCode:
    split, order, pixels = (ints(op.attrs, key) for key in ("split", "order", "pixels"))
    restore = f".flatten(2).unflatten(2, {literal(pixels)})"
    if order == tuple(range(len(order))):
        return OperatorCode(f"{{0}}{restore}")
    axes = ", ".join(map(str, (0, 1, *(axis + 2 for axis in order))))
    return OperatorCode(f"{{0}}.flatten(2).unflatten(2, {literal(split)}).permute({axes}){restore}")


@codes.register("conv")
def _conv(op: Op, shapes: list[Shape]) -> OperatorCode:
    a = op.attrs
    top, left, bottom, right = ints(a, "padding")
    even = (top, left) == (bottom, right)
    stated = {
        "stride": (_single_number(ints(a, "stride")), 1),
        "padding": (_single_number((top, left)) if even else 0, 0),
        "dilation": (_single_number(ints(a, "dilation")), 1),
        "groups": (integer(a, "groups"), 1),
        "bias": (bool(a["bias"]), True),
    }
    settings = {"kernel_size": _single_number(ints(a, "kernel"))} | {key: value for key, (value, usual) in stated.items() if value != usual}
    channels = shapes[0][1], integer(a, "out_channels")
    if even:
        return OperatorCode(_APPLY_TEMPLATE, call("nn.Conv2d", *channels, **settings))
    return OperatorCode(
        _APPLY_TEMPLATE, call("PaddedConv2d", *channels, **settings, pads=(top, left, bottom, right)), helpers=(PaddedConv2d,)
    )


@codes.register("batch_norm")
def _batch_norm(op: Op, shapes: list[Shape]) -> OperatorCode:
    a = op.attrs
    usual = {"eps": (number(a, "eps"), 1e-5), "momentum": (number(a, "momentum"), 0.1), "affine": (bool(a["affine"]), True)}
    settings = {key: value for key, (value, default) in usual.items() if value != default}
    return OperatorCode(_APPLY_TEMPLATE, call("nn.BatchNorm1d" if len(shapes[0]) == 2 else "nn.BatchNorm2d", shapes[0][1], **settings))


@codes.register("attention")
def _attention(op: Op, shapes: list[Shape]) -> OperatorCode:
    a = op.attrs
    added = {key: ints(a, key) for key in ADDED if key in a}
    construction = call("Attention", integer(a, "heads"), integer(a, "keys"), number(a, "scale"), **added)
    return OperatorCode(f"{ATTRIBUTE_PLACEHOLDER}({{0}}, {{1}}, {{2}})", construction, helpers=(Attention,))


def zeros(shape: Shape, dtype: torch.dtype) -> str:
    """Return the code of a tensor's initial value, which the package's file of weights replaces."""
    return f"torch.zeros({tuple(shape)!r})" if dtype == torch.float32 else f"torch.zeros({tuple(shape)!r}, dtype={dtype})"


@codes.register("opaque")
def _opaque(op: Op, shapes: list[Shape]) -> OperatorCode:
    """Return the last call with earlier calls inserted; a call with several readers gets a name at its first use."""
    calls = calls_of(op.attrs)
    tensors = {f"constant_{i}": (spec.learned, zeros(spec.shape, type_of(spec.dtype))) for i, spec in enumerate(calls.constants)}
    read = Counter(call.get("call", -1) for step in calls.calls for call in _references((*step.arguments, *step.options.values())))
    expressions = _Expressions(read, [step.result for step in calls.calls])
    for step in calls.calls:
        # the name is a checked function of torch
        expressions.several.append(len(find_operator(step.operator)._schema.returns) > 1)
        if strange := [name for name in step.options if not name.isidentifier()]:
            raise StretchError(f"`{strange[0]}` is no argument of a function")
        argument_texts = [_argument(value, expressions) for value in step.arguments]
        argument_texts += [f"{key}={_argument(value, expressions)}" for key, value in step.options.items()]
        expressions.texts.append(f"torch.ops.aten.{step.operator}({', '.join(argument_texts)})")
    return OperatorCode(expressions.of(len(calls.calls) - 1, calls.calls[-1].result), tensors=tensors)


@dataclass
class _Expressions:
    """Calls as code."""

    read: Counter[int]  # Number of readers of each call.
    results: Sequence[int]  # Index of each call's default result.
    texts: list[str] = field(default_factory=list)  # Code of each call, or the name that it has.
    several: list[bool] = field(default_factory=list)  # Whether each call returns several results.

    def of(self, number: int, result: int) -> str:
        """Return the code of a call's result."""
        text = self.texts[number]
        if self.read[number] > 1 and "(" in text:
            self.texts[number] = f"parts{number}"
            text = f"(parts{number} := {text})"
        return f"{text}[{result}]" if self.several[number] else text


def _references(values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the references to tensors in arguments, at any depth."""
    for value in values:
        if isinstance(value, dict):
            yield value
        elif isinstance(value, list | tuple):
            yield from _references(value)


def _argument(value: Any, expressions: _Expressions) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_argument(element, expressions) for element in value)}]"
    if not isinstance(value, dict):
        return literal(value)
    (key, content), *_ = (item for item in value.items() if item[0] != "result")
    if key == "read":
        return f"{{{int(content)}}}"
    if key == "constant":
        return f"{ATTRIBUTE_PLACEHOLDER}_constant_{int(content)}"
    if key == "call":
        return expressions.of(int(content), int(value.get("result", expressions.results[content])))
    return f"torch.{str(type_of(content)).removeprefix('torch.')}" if key == "dtype" else f'float("{float(content)}")'
