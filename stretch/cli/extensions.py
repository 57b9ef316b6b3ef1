"""Flags that tools add to verbs, in a file `flags.py` of a folder of `stretch/tools`."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from stretch.plugins import load_tools


class Extension(Protocol):
    """What a tool does in place of a verb, if its flags ask for it.

    Its class is called with the values of its flags, which are its annotated parameters. What does the verb's work is a
    method of the verb's name.
    """

    def asked(self) -> bool:
        """Whether its flags ask for it; flags that do not fit are refused."""


T = TypeVar("T", bound=Callable[..., Extension])

_EXTENSIONS: dict[str, list[Callable[..., Any]]] = {}


def extends(*verbs: str) -> Callable[[T], T]:
    """Decorator for a class of extensions of these verbs."""

    def register(extension: T) -> T:
        for verb in verbs:
            _EXTENSIONS.setdefault(verb, []).append(extension)
        return extension

    return register


def extensions_of(verb: str) -> list[Callable[..., Any]]:
    """The classes of a verb's extensions."""
    load_tools("flags")
    return _EXTENSIONS.get(verb, [])


def asked_for(extensions: Iterable[Callable[[], Any]]) -> Any:
    """The extension that flags ask for; None for none."""
    made = [extension() for extension in extensions]
    return next(iter([extension for extension in made if extension.asked()]), None)
