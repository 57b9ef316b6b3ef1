"""The structure that an exported network returns its tensors in, as JSON describes it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from predictors.errors import StretchError

#: Nested deeper, a structure is refused.
_DEEPEST = 32

_LISTS = {"builtins.list": list, "builtins.tuple": tuple}
_TABLES = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")
_NAMED = "collections.namedtuple"

#: What a key of a table may be.
_KEYS = (str, int, float)


def rebuilt(spec: str, fields: Mapping[str, Sequence[str]], values: Sequence[Any]) -> tuple[Any, list[str]]:
    """What a network returns, with these values in it, and the kinds of containers that became something else.

    Lists, tuples and dictionaries are what they were. A class of somebody's is not looked up: what has names, such as a
    named tuple or a dataclass, becomes a dictionary, anything else a tuple.

    Args:
        spec: The structure, as `torch.utils._pytree.treespec_dumps` writes it; empty for one value, or a tuple of several.
    """
    if not spec:
        return (values[0] if len(values) == 1 else tuple(values)), []
    try:
        found = json.loads(spec)
    except (ValueError, RecursionError) as error:
        raise StretchError(f"the structure that it returns is no JSON: {str(error)[:80]}") from error
    if not isinstance(found, list) or len(found) != 2:
        raise StretchError("the structure that it returns is not understood")
    reader = _Reader(fields, iter(values))
    made = reader.made(found[1], 0)
    if next(reader.values, reader) is not reader:
        raise StretchError(f"the structure that it returns holds fewer than its {len(values)} outputs")
    return made, list(dict.fromkeys(reader.other))


class _Reader:
    def __init__(self, fields: Mapping[str, Sequence[str]], values: Iterator[Any]) -> None:
        self._fields, self.values = fields, values
        self.other: list[str] = []

    def made(self, spec: Any, depth: int) -> Any:
        """The part of the structure that this describes."""
        if not isinstance(spec, dict) or depth > _DEEPEST:
            raise StretchError("the structure that it returns is not understood, or nested too deep")
        kind, parts = spec.get("type"), spec.get("children_spec")
        if kind is None:
            if (value := next(self.values, self)) is self:
                raise StretchError("the structure that it returns holds more than its outputs")
            return value
        if not isinstance(kind, str) or not isinstance(parts, list):
            raise StretchError("the structure that it returns is not understood")
        held = [self.made(part, depth + 1) for part in parts]
        if kind in _LISTS:
            return _LISTS[kind](held)
        names = self._names(kind, spec.get("context"), len(held))
        if kind not in _TABLES:
            self.other.append(str(spec.get("context")) if kind == _NAMED else kind)
        elif names is None:
            raise StretchError("a dictionary that it returns has no keys")
        return tuple(held) if names is None else dict(zip(names, held, strict=True))

    def _names(self, kind: str, context: Any, count: int) -> list[Any] | None:
        """What the parts of a container are called; None where they have no names."""
        if kind == _NAMED:
            return _keys(self._fields.get(str(context)), count)
        try:
            stated = json.loads(context) if isinstance(context, str) else None
        except (ValueError, RecursionError):
            return None
        # dataclasses state the names of what is None beside them, others a kind before them
        inner = stated if isinstance(stated, list) else []
        return next((found for each in (stated, *inner) if (found := _keys(each, count)) is not None), None)


def _keys(stated: Any, count: int) -> list[Any] | None:
    """So many different keys, if these are some."""
    fits = isinstance(stated, list | tuple) and len(stated) == count and all(isinstance(each, _KEYS) for each in stated)
    return list(stated) if fits and len(set(stated)) == count else None
