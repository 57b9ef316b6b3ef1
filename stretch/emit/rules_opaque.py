"""Python code of operators that no family describes: the calls of torch that compute them."""

from typing import Any

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.shapes import Shape
from stretch.emit.code import OWN, Code, codes, literal
from stretch.emit.rules_layers import zeros
from stretch.opaque.calls import calls_of, find_operator, type_of


@codes.register("opaque")
def _opaque(op: Op, shapes: list[Shape]) -> Code:
    """The last call, with those that it reads inside of it."""
    calls = calls_of(op.attrs)
    tensors = {f"constant_{i}": (spec.learned, zeros(spec.shape, type_of(spec.dtype))) for i, spec in enumerate(calls.constants)}
    made: list[str] = []
    for each in calls.calls:
        # it names a function of torch that was checked, and nothing else
        several = len(find_operator(each.operator)._schema.returns) > 1
        given = [_argument(value, made) for value in each.arguments]
        given += [f"{_word(key)}={_argument(value, made)}" for key, value in each.options.items()]
        made.append(f"torch.ops.aten.{each.operator}({', '.join(given)})" + (f"[{int(each.result)}]" if several else ""))
    return Code(made[-1], tensors=tensors)


def _word(name: str) -> str:
    if not name.isidentifier():
        raise StretchError(f"`{name}` is no argument of a function")
    return name


def _argument(value: Any, made: list[str]) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_argument(each, made) for each in value)}]"
    if not isinstance(value, dict):
        return literal(value)
    ((key, what),) = value.items()
    if key == "read":
        return f"{{{int(what)}}}"
    if key == "constant":
        return f"{OWN}_constant_{int(what)}"
    if key == "call":
        return made[what]
    return f"torch.{str(type_of(what)).removeprefix('torch.')}" if key == "dtype" else f'float("{float(what)}")'
