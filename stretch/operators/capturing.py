"""Tables of the torch modules, functions and methods that become operators, which every family extends."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from predictors.shapes import Attr, Shape
from stretch.operators.settings import Refusal

Own = dict[str, torch.Tensor]
#: (suffix of the operator's name, kind, attributes, weights)
Lowered = tuple[str, str, dict[str, Attr], Own]
#: A module and the shape of what it reads to a chain of operators.
ModuleRule = Callable[[Any, Shape], list[Lowered]]


@dataclass(frozen=True)
class TracedCall:
    """A call of a function or method in a traced network."""

    shapes: Mapping[fx.Node, Shape]  # Of the tensors that it reads, N×C×H×W or N×C.
    out: Shape  # Shape of its result.


#: (nodes that are read, kind, attributes[, weights]); a list of them is a chain, each but the first reads the one before.
Chain = tuple[Any, ...] | list[tuple[Any, ...]]
#: A `TracedCall` and the arguments as they are written to a chain of operators.
FunctionRule = Callable[..., Chain]

#: By class name, looked up along a module's bases: timm and torchvision need not be imported.
MODULES: dict[str, ModuleRule] = {}
#: Those of classes that torch defines on channels that lie last, for a feature map whose channels do.
LAST_MODULES: dict[str, ModuleRule] = {}
FUNCTIONS: dict[Any, FunctionRule] = {}
METHODS: dict[str, FunctionRule] = {}
#: Names of functions that are defined on channels that lie last.
LAST_FUNCTIONS: set[str] = set()

#: Packages whose classes the tables speak of; a user's `Conv2d` is no torch `Conv2d`.
_PACKAGES = ("torch.nn.", "torchvision.", "timm.", "stretch.operators.")


def modules(*names: str, last: ModuleRule | None = None) -> Callable[[ModuleRule], ModuleRule]:
    """Decorator for the rule of classes of modules.

    Args:
        last: The rule for a feature map whose channels lie last, where torch defines the module on those.
    """

    def add(rule: ModuleRule) -> ModuleRule:
        MODULES.update(dict.fromkeys(names, rule))
        if last is not None:
            LAST_MODULES.update(dict.fromkeys(names, last))
        return rule

    return add


def functions(*targets: Any, methods: tuple[str, ...] = (), last: bool = False) -> Callable[[FunctionRule], FunctionRule]:
    """Decorator for the rule of functions and tensor methods.

    Args:
        last: Whether they are defined on channels that lie last.
    """

    def add(rule: FunctionRule) -> FunctionRule:
        FUNCTIONS.update(dict.fromkeys(targets, rule))
        METHODS.update(dict.fromkeys(methods, rule))
        if last:
            LAST_FUNCTIONS.update(target.__name__ for target in targets)
        return rule

    return add


def plain_module(kind: str) -> ModuleRule:
    """The rule of a module that is one operator without attributes."""
    return lambda m, shape: [("", kind, {}, {})]


def plain_function(kind: str) -> FunctionRule:
    """The rule of a function of one tensor that is one operator without attributes."""

    def rule(call: TracedCall, x: Any, inplace: bool = False) -> Chain:
        return [x], kind, {}

    return rule


def constant(value: Any, what: str) -> torch.Tensor:
    """A parameter that a function reads."""
    if not isinstance(value, torch.Tensor):
        raise Refusal(f"its {what} depends on the input")
    return value


def _class_name(module: nn.Module) -> str | None:
    """Name of the class whose rule a module follows."""
    for base in type(module).__mro__:
        if base.__name__ in MODULES and base.__module__.startswith(_PACKAGES):
            return base.__name__
        if "forward" in vars(base):
            # A forward we know nothing of may compute anything: it is traced through.
            return None
    return None


def lowers(module: nn.Module) -> bool:
    """Whether this module becomes operators without being traced through."""
    return _class_name(module) is not None


def defined_on_last(module: nn.Module) -> bool:
    """Whether torch defines this module on channels that lie last."""
    return _class_name(module) in LAST_MODULES


def lower_module(module: nn.Module, shape: Shape, channels_last: bool = False) -> list[Lowered]:
    """Operators of one module that reads a tensor of this shape, in a chain.

    Args:
        shape: N×C×H×W or N×C.
        channels_last: Whether the module sees the tensor as N×H×W×C.
    """
    name = _class_name(module)
    if name is None:
        raise Refusal(f"the module `{type(module).__name__}` is not supported")
    rule = LAST_MODULES.get(name, MODULES[name]) if channels_last else MODULES[name]
    return rule(module, shape)
