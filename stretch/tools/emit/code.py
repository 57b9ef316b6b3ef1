"""Python code of single operators."""

import keyword
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.registry import Registry
from predictors.shapes import Shape
from stretch.operators.lowerings import make_module

#: Stands in an expression for the attribute that holds the operator's module or tensors.
OWN = "{own}"


@dataclass(frozen=True)
class OperatorCode:
    """One operator as Python."""

    expression: str = "{0}"  # Its result. ``{0}`` is the first tensor that it reads, ``{own}`` its attribute of the class.
    module: str = ""  # What makes its module, such as ``nn.Linear(3, 4)``; empty if it has none.
    #: What makes its learned and constant tensors where it has them without a module, by the key of the operator's weights: whether it is
    #: learned, and the code of its initial value.
    tensors: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
    helpers: tuple[type[nn.Module], ...] = ()  # Classes of nn-stretch that the module is made of, which go into the package.
    passes: bool = False  # Whether it gives what it reads.


#: Writes an operator that reads tensors of these shapes.
CodeRule = Callable[[Op, list[Shape]], OperatorCode]

#: Rules by the name of the kind; other kinds are what the module of torch that computes them says of itself.
codes: Registry[CodeRule] = Registry("operator kind with Python code")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Words such as modes, and equations of sums: nothing that ends a word of Python or stands for a tensor.
_WORD = re.compile(r"[A-Za-z0-9_ .,:>*-]*")


def code_of(op: Op, shapes: list[Shape]) -> OperatorCode:
    """An operator as Python."""
    if op.kind in codes:
        return codes.get(op.kind)(op, shapes)
    module = make_module(op, shapes)
    name = type(module).__name__
    if getattr(nn, name, None) is not type(module):
        raise StretchError(f"operator `{op.name}` ({op.kind}) cannot be written as plain Python code")
    return OperatorCode(f"{OWN}({{0}})", f"nn.{module!r}")


def literal(value: Any) -> str:
    """A number, truth value, word or tuple of them as Python code; what a file states becomes nothing else."""
    if isinstance(value, bool | int) or value is None or (isinstance(value, str) and _WORD.fullmatch(value)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, tuple | list):
        return sequence_code(value, map(literal, value))
    raise StretchError(f"{value!r} cannot be written as Python code")


def sequence_code(value: tuple[Any, ...] | list[Any], elements: Iterable[str]) -> str:
    """A tuple or list of elements that are code already."""
    inside = ", ".join(elements)
    return f"[{inside}]" if isinstance(value, list) else f"({inside},)" if len(value) == 1 else f"({inside})"


def call(name: str, *arguments: Any, **settings: Any) -> str:
    """A call with literal arguments."""
    texts = [literal(argument) for argument in arguments] + [f"{key}={literal(value)}" for key, value in settings.items()]
    return f"{name}({', '.join(texts)})"


def attribute(name: str) -> str:
    """A name that a module may have as an attribute: letters, digits and underscores, and nothing that Python or torch uses."""
    safe = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
    if not _NAME.fullmatch(safe):
        safe = f"_{safe}"
    return f"{safe}_" if keyword.iskeyword(safe) or keyword.issoftkeyword(safe) or hasattr(nn.Module, safe) or safe == "self" else safe


def class_name(name: str) -> str:
    """A name of a class: words of the name, each with a capital letter."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    name_of_class = "".join(word[0].upper() + word[1:] for word in words) or "Network"
    return name_of_class if name_of_class[0].isalpha() else f"Network{name_of_class}"
