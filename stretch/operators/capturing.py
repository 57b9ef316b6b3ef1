"""Tables of the torch modules, functions, methods and ATen operators that become operators, and their attributes; families add entries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from predictors.shapes import Attr, Shape


class UnsupportedNode(Exception):
    """Reason why a node cannot be captured, as the end of a sentence."""


def require_supported(holds: bool, problem: str) -> None:
    """Refuse with `problem` unless it `holds`."""
    if not holds:
        raise UnsupportedNode(problem)


def pair(value: Any) -> tuple[int, int]:
    """Return `value` for height and width as a pair."""
    a, b = (value, value) if isinstance(value, int) else (value if len(value) == 2 else (value[0], value[0]))
    return (int(a), int(b))


def window_padding(value: Any) -> tuple[int, int, int, int]:
    """Convert torch's symmetric padding to (top, left, bottom, right)."""
    h, w = pair(value)
    return (h, w, h, w)


def pooling_window(shape: Shape, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, dilation: Any = 1) -> dict[str, Attr]:
    """Return the attributes of a pooling window from torch's settings.

    With `ceil_mode`, torch allows one window that is larger than its padded input. ONNX refuses it, so it is cut to the covered part.

    Args:
        stride: Stride; None or empty for the kernel's size.
    """
    kernel, steps, pads = pair(kernel_size), pair(dilation), window_padding(padding)
    rooms = [size + 2 * pad - 1 for size, pad in zip(shape[-2:], pads[:2], strict=True)]
    covered = tuple(min(k, room // d + 1) if ceil_mode else k for k, d, room in zip(kernel, steps, rooms, strict=True))
    if any(c < k and room % d for c, k, d, room in zip(covered, kernel, steps, rooms, strict=True)):
        raise UnsupportedNode("a dilated pooling window that is larger than its input is not supported")
    # torch takes an absent or empty stride to mean the kernel's size
    return {"kernel": covered, "stride": pair(stride) if stride else kernel, "padding": pads, "ceil_mode": bool(ceil_mode)}


Own = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Step:
    """One operator of a chain."""

    kind: str  # Kind of the operator.
    attrs: Mapping[str, Attr] = field(default_factory=dict)  # Attributes of the kind.
    reads: tuple[Any, ...] = ()  # Tensors that it reads; each operator after the first also reads the one before, as its first input.
    #: Weights by name; None if no operator of the kind computes the call, so that the step only has its cost.
    weights: Mapping[str, torch.Tensor] | None = field(default_factory=dict, compare=False, repr=False)
    suffix: str = ""  # Suffix of the operator's name in a chain; its number if empty.


Chain = Step | list[Step]
#: Function from a module and the shape of its input to a chain of operators.
ModuleRule = Callable[[Any, Shape], Chain]


@dataclass(frozen=True)
class TracedCall:
    """A call of a function, a method or a module in a captured network."""

    shapes: Mapping[Any, Shape]  # Shapes of the input tensors, N×C×H×W or N×C.
    out: Shape  # Shape of the result; for a module, of its input.


#: Function from a `TracedCall` and the call's arguments to a chain of operators.
FunctionRule = Callable[..., Chain]
Rule = TypeVar("Rule", bound=FunctionRule)

#: Rules by class name, looked up along a module's bases, so that timm and torchvision need not be imported.
MODULES: dict[str, ModuleRule] = {}
FUNCTIONS: dict[Any, FunctionRule] = {}
METHODS: dict[str, FunctionRule] = {}
#: Rules by name of the ATen operator without its overload.
ATEN: dict[str, FunctionRule] = {}
#: Names of functions and classes that torch defines on channels in the last dimension.
ON_LAST: set[str] = set()

#: Packages whose classes the tables describe; a user's `Conv2d` is not torch's `Conv2d`.
_PACKAGES = ("torch.nn.", "torchvision.", "timm.", "stretch.operators.")


def modules(*names: str) -> Callable[[ModuleRule], ModuleRule]:
    """Return a decorator that registers the rule for classes of modules."""

    def add(rule: ModuleRule) -> ModuleRule:
        MODULES.update(dict.fromkeys(names, rule))
        return rule

    return add


def calls(
    *functions: Any,
    methods: tuple[str, ...] = (),
    classes: tuple[str, ...] = (),
    fields: tuple[str, ...] = (),
    aten: tuple[str, ...] = (),
    last: bool = False,
) -> Callable[[Rule], Rule]:
    """Return a decorator that registers one rule for functions, tensor methods, classes of modules and ATen operators.

    Args:
        fields: Attributes of the modules that are arguments with the same names.
        aten: Operators of one tensor whose other arguments have the function's names.
        last: Whether torch defines them on channels in the last dimension.
    """

    def add(rule: Rule) -> Rule:
        FUNCTIONS.update(dict.fromkeys(functions, rule))
        METHODS.update(dict.fromkeys(methods, rule))
        ATEN.update(dict.fromkeys(aten, rule))
        # classes of other packages may lack some of the fields
        MODULES.update(
            dict.fromkeys(
                classes, lambda m, shape: module_chain(rule, shape, **{key: getattr(m, key) for key in fields if hasattr(m, key)})
            )
        )
        if last:
            ON_LAST.update(classes, (function.__name__ for function in functions))
        return rule

    return add


def module_chain(rule: FunctionRule, shape: Shape, **arguments: Any) -> list[Step]:
    """Return the operators of a module that computes the same as a function with these arguments."""
    return as_chain(rule(TracedCall({"input": shape}, shape), "input", **arguments))


def as_chain(result: Chain) -> list[Step]:
    """Return the result of a rule as a list of operators."""
    return result if isinstance(result, list) else [result]


def unary(kind: str) -> FunctionRule:
    """Return the rule for a function of one tensor that becomes one operator without attributes."""

    def rule(call: TracedCall, x: Any, inplace: bool = False) -> Chain:
        return Step(kind, {}, (x,))

    return rule


def constants(**values: Any) -> Own:
    """Return the parameters that a function reads, without those that are None."""
    for name, value in values.items():
        require_supported(value is None or isinstance(value, torch.Tensor), f"its {name} depends on the input")
    return {name: value for name, value in values.items() if value is not None}


def class_name(module: nn.Module) -> str | None:
    """Return the name of the class whose rule a module follows; None if it must be traced through."""
    for base in type(module).__mro__:
        if base.__name__ in MODULES and base.__module__.startswith(_PACKAGES):
            return base.__name__
        if "forward" in vars(base):
            # An unknown forward may compute anything, so it is traced through.
            return None
    return None


def lower_module(module: nn.Module, shape: Shape, channels_last: bool = False) -> list[Step]:
    """Return the operators of one module for an input of this shape, in a chain.

    Args:
        shape: Shape of the input, N×C×H×W or N×C.
        channels_last: Whether the module sees the tensor as N×H×W×C.
    """
    name = class_name(module)
    if name is None:
        raise UnsupportedNode(f"the module `{type(module).__name__}` is not supported")
    if name in ON_LAST and len(shape) > 2 and not channels_last:
        raise UnsupportedNode(f"the module `{name}` over the last dimension of a feature map is not supported, only over channels")
    return as_chain(MODULES[name](module, shape))
