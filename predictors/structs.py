"""Structs of plain data that are filled from objects with fields of the same names."""

from typing import Any, TypeVar

import msgspec

Struct = TypeVar("Struct", bound=msgspec.Struct)


def to_builtins(struct: msgspec.Struct) -> dict[str, Any]:
    """A struct as dictionaries, lists and numbers."""
    data: dict[str, Any] = msgspec.to_builtins(struct, enc_hook=lambda value: value.item())
    return data


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Plain data that the command line prints."""

    def to_json(self) -> dict[str, Any]:
        """Its object in the command line's JSON."""
        return to_builtins(self)


def filled(kind: type[Struct], /, *sources: object, **values: Any) -> Struct:
    """A struct of a kind: each field is one of the values, else the attribute of that name of the first source that has one."""
    for name in kind.__struct_fields__:
        source = next((source for source in sources if name not in values and hasattr(source, name)), None)
        if source is not None:
            values[name] = getattr(source, name)
    return kind(**values)
