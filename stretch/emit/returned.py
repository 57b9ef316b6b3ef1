"""What a network returns, as Python code."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from stretch.capture.structure import Result
from stretch.emit.code import literal


def returned_code(template: Any, variables: Mapping[str, str]) -> str:
    """The code of a returned structure; dataclasses, which are classes of others, become dictionaries of their fields."""
    if isinstance(template, Result):
        return variables[template.name]
    if isinstance(template, dict):
        parts = [f"{literal(key)}: {returned_code(value, variables)}" for key, value in template.items()]
        return f"{{{', '.join(parts)}}}"
    if isinstance(template, tuple | list):
        inside = ", ".join(returned_code(value, variables) for value in template)
        if isinstance(template, list):
            return f"[{inside}]"
        return f"({inside},)" if len(template) == 1 else f"({inside})"
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        return returned_code({field.name: getattr(template, field.name) for field in dataclasses.fields(template)}, variables)
    return literal(template)


def kind_of_returned(template: Any) -> str:
    """The annotation of a function that returns it."""
    if isinstance(template, Result):
        return "torch.Tensor"
    return "list" if isinstance(template, list) else "tuple" if isinstance(template, tuple) else "dict"
