"""Flags that tools add to verbs, in the file `flags.py` of a tool's folder in `stretch/tools`."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from stretch.cli.options import OptionsOf, fields
from stretch.plugins import load_tools


class Extension(Protocol):
    """A tool's action that replaces a verb's if its flags request it.

    Its class is a record of its flags. A method with the verb's name does the verb's work.
    """

    def asked(self) -> bool:
        """Return whether its flags request it; refuse inconsistent flags."""


T = TypeVar("T", bound=type[Extension])

_EXTENSIONS: dict[str, list[type[Extension]]] = {}


def extends(*verbs: str) -> Callable[[T], T]:
    """Return a class decorator that registers an extension of these verbs."""

    def register(extension: T) -> T:
        for verb in verbs:
            _EXTENSIONS.setdefault(verb, []).append(extension)
        return extension

    return register


def tools_of(verb: str) -> OptionsOf:
    """Return the flags that tools add to a verb, whose value is the requested tool, or None."""
    load_tools("flags")
    records = {record: fields(record) for record in _EXTENSIONS.get(verb, [])}

    def asked_for(values: dict[str, Any]) -> Extension | None:
        made = [record(**{name: values[name] for name in flags if name in values}) for record, flags in records.items()]
        return next(iter([extension for extension in made if extension.asked()]), None)

    return OptionsOf(lambda: [flag for flags in records.values() for flag in flags.values()], asked_for)
