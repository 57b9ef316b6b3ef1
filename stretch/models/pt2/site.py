"""Calls of an exported network on their way into a torch network: what a rule reads, and how it writes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload

from predictors.errors import StretchError
from predictors.registry import RuleTable
from stretch.models.builder import Builder
from stretch.models.pt2.file import Stored
from stretch.models.pt2.program import ExportedCall, Tagged
from stretch.models.pt2.weights import HALF, TYPES

#: What a call reads or gives: a tensor of the running network, a stored one, numbers, or several.
Value = Any

#: Arguments that say where and how tensors lie, not what they are.
PLACES = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "implicit"})


@dataclass(frozen=True)
class Pt2Site:
    """One call with what it reads."""

    operator: OpOverload  # Of torch's.
    arguments: Mapping[str, Value]  # Its arguments by name, those that are left out with their defaults.
    module: str  # Path of the module that it was called in, if that is torch's own; empty otherwise.
    builder: Builder  # What its rule writes into.

    @property
    def name(self) -> str:
        """Name of the operator without its overload."""
        return str(self.operator._overloadpacket.__name__)

    @property
    def x(self) -> fx.Node:
        """Its first argument as a tensor of the network."""
        return self.tensor(next(iter(self.arguments)))

    def tensor(self, name: str) -> fx.Node:
        """An argument as a tensor of the network, a stored one among its parameters."""
        written = self.written(self.arguments.get(name))
        if not isinstance(written, fx.Node):
            raise StretchError(f"its argument `{name}` is no tensor")
        return written

    def stored(self, name: str) -> Stored | None:
        """An argument that the archive stores; None where it is left out or computed."""
        value = self.arguments.get(name)
        return value if isinstance(value, Stored) else None

    def written(self, value: Value) -> Any:
        """An argument as it stands in a call: stored tensors become parameters."""
        if isinstance(value, Stored):
            return self.builder.tensor(value.value, value.name)
        if isinstance(value, list | tuple):
            return [self.written(item) for item in value]
        return value

    def called(self, module: nn.Module, name: str = "", x: str = "") -> fx.Node:
        """A module on one of its arguments, the first by default, under a name of its own or that of where it was called."""
        read = self.tensor(x) if x else self.x
        return self.builder.module(module, read, name or self.module or self.name)


#: Writes what a call computes; None where the call is not one that the rule knows, and stays as it is.
Rule = Callable[[Pt2Site], Value]

#: Rules by the name of the operator; every file of this package adds its own.
RULES: RuleTable[Rule] = RuleTable()

#: Decorator for the rule of operators of these names.
rule = RULES.add


def bound(operator: OpOverload, node: ExportedCall, value: Callable[[Tagged], Value]) -> dict[str, Value]:
    """Arguments of a call by name, in the order of torch's own, with the defaults of those that are left out."""
    schema = operator._schema
    stated = {item.name: value(item.arg) for item in node.inputs}
    first = schema.arguments[0].name
    # What is changed in place has another name than what a function reads.
    if "self" in stated and first not in stated:
        stated[first] = stated.pop("self")
    unknown = stated.keys() - {argument.name for argument in schema.arguments}
    if unknown or len(stated) != len(node.inputs):
        raise StretchError(f"`{operator}` has no argument `{next(iter(unknown), '')[:40]}`")
    arguments = {}
    for argument in schema.arguments:
        if argument.name not in stated and not argument.has_default_value():
            raise StretchError(f"its argument `{argument.name}` is missing")
        arguments[argument.name] = stated.get(argument.name, argument.default_value)
    return arguments


def plain_value(arg: Tagged) -> Value:
    """An argument that is no tensor: a number, a word, a type, or a list of those."""
    ((kind, value),) = arg.items() if len(arg) == 1 else (("", None),)
    if kind == "as_none" or kind in ("as_device", "as_layout", "as_memory_format"):
        return None
    if kind == "as_scalar_type":
        dtype = TYPES.get(value)
        if dtype is None:
            raise StretchError(f"it computes in element type {value}, which no network does")
        return torch.float32 if dtype in HALF else dtype
    if kind == "as_float":
        return _real(value)
    if kind == "as_floats" and isinstance(value, list):
        return [_real(item) for item in value]
    allowed = {"as_int": int, "as_bool": bool, "as_string": str}
    single = next((t for key, t in allowed.items() if kind in (key, f"{key}s")), None)
    item = value if kind.endswith("s") else [value]
    if single is None or not isinstance(item, list) or not all(isinstance(one, single) for one in item):
        raise StretchError(f"it has an argument of the kind `{kind[:40]}`, which no network of tensors has")
    return value


def _real(value: Any) -> float:
    """A number; those that JSON lacks are words."""
    words = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
    if isinstance(value, str) and value in words:
        return words[value]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise StretchError(f"it has {str(value)[:40]} where a number is needed")
    return float(value)
