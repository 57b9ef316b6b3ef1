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
    expressions: list[str] = []
    for call in calls.calls:
        # it names a function of torch that was checked, and nothing else
        several = len(find_operator(call.operator)._schema.returns) > 1
        argument_texts = [_argument(value, expressions) for value in call.arguments]
        argument_texts += [f"{_word(key)}={_argument(value, expressions)}" for key, value in call.options.items()]
        expressions.append(f"torch.ops.aten.{call.operator}({', '.join(argument_texts)})" + (f"[{int(call.result)}]" if several else ""))
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
