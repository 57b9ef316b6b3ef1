"""Structs of plain data that the command line prints."""

from collections.abc import Mapping
from typing import Any

import msgspec


def to_builtins(struct: msgspec.Struct | Mapping[str, Any]) -> dict[str, Any]:
    """Return a struct, or a dictionary of structs, as dictionaries, lists and numbers."""
    data: dict[str, Any] = msgspec.to_builtins(struct, enc_hook=lambda value: value.item())
    return data


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Plain data that the command line prints."""

    def to_json(self) -> dict[str, Any]:
        """Return the struct as a JSON object of the command line."""
        return to_builtins(self)
