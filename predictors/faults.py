"""Faults in a file's tables, with their positions: every key by name, which msgspec's messages leave out."""

import difflib
import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

#: A sentence on a value that a schema does not allow, with the keys that lead to it; and the nearest allowed name as a question, or None.
Fault = tuple[str, str | None]


def _fault(where: str, problem: str, hint: str | None = None) -> Fault:
    return f"`{where}` {problem}" if where else f"it {problem}", hint


def find_fault(raw: Any, kind: Any, where: str = "") -> Fault | None:
    """Return the first difference of decoded tables from a schema, or None.

    Args:
        kind: Expected type: a `msgspec.Struct`, a dictionary or tuple of structs, or a plain type.
        where: Keys that lead to `raw`.
    """
    kind = _non_optional(kind)
    if get_origin(kind) is Annotated and isinstance(raw, dict):
        kind = get_args(kind)[0]
    origin = get_origin(kind)
    if isinstance(raw, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _in_struct(raw, kind, where)
    if isinstance(raw, dict) and origin is dict:
        keys, values = get_args(kind)
        return _in_dictionary(raw, keys, values, where)
    if isinstance(raw, list) and origin is tuple and get_args(kind)[-1] is ...:
        return next((fault for i, part in enumerate(raw) if (fault := find_fault(part, get_args(kind)[0], f"{where}[{i}]"))), None)
    return _in_value(raw, kind, where)


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str | None:
    """Return ``did you mean `x`?`` with the nearest known name, or None if no name is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean `{prefix}{close[0]}`?" if close else None


def _in_struct(raw: dict[str, Any], kind: type[msgspec.Struct], where: str) -> Fault | None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key in raw:
        if key not in fields:
            hint = nearest(key, fields) or f"known: {', '.join(sorted(fields))}"
            return _fault(_nested_path(where, key), "is an unknown key", hint)
    for key, value in raw.items():
        if fault := find_fault(value, fields[key].type, _nested_path(where, key)):
            return fault
    lacking = [key for key, field in fields.items() if field.required and key not in raw]
    return _fault(where, f"lacks the key `{lacking[0]}`") if lacking else None


def _in_dictionary(raw: dict[str, Any], keys: Any, values: Any, where: str) -> Fault | None:
    for key, value in raw.items():
        if get_origin(keys) is Literal and key not in get_args(keys):
            names = get_args(keys)
            return _fault(_nested_path(where, key), "is an unknown key", nearest(key, names) or f"known: {', '.join(names)}")
        if fault := find_fault(value, values, _nested_path(where, key)):
            return fault
    return None


def _in_value(raw: Any, kind: Any, where: str) -> Fault | None:
    try:
        msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        problem, _, inner = str(error).partition(" - at ")
        names = [arg for arg in get_args(kind) if isinstance(arg, str)] if get_origin(kind) is Literal else []
        hint = (nearest(raw, names) if isinstance(raw, str) else None) or (f"it is one of {', '.join(names)}" if names else None)
        return _fault(where + inner.strip("`").removeprefix("$"), f"is wrong: {problem[:1].lower()}{problem[1:]}", hint)
    return None


def _non_optional(kind: Any) -> Any:
    """Return the type of an optional value that is not None."""
    if get_origin(kind) in (Union, types.UnionType):
        rest = [arg for arg in get_args(kind) if arg is not type(None)]
        return rest[0] if len(rest) == 1 else kind
    return kind


def _nested_path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
