"""Registries filled by the modules of a folder, and names that are imported on first use."""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Generic, TypeVar

from predictors.errors import StretchError, UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names to objects of one kind.

    Args:
        noun: Kind of the registered objects, for error messages ("delegate").
    """

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers its object under `name`."""

        def add(item: T) -> T:
            if self._items.get(name, item) is not item:
                raise StretchError(f"{self.noun} `{name}` is registered twice", "rename one of the two")
            self._items[name] = item
            return item

        return add

    def get(self, name: str) -> T:
        """Return the object registered as `name`."""
        if name not in self._items:
            raise UnknownNameError.among(self.noun, name, self._items)
        return self._items[name]

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._items)

    def __contains__(self, name: object) -> bool:
        """Return whether an object is registered under `name`."""
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        """Yield the names, sorted."""
        return iter(self.names())


class RuleTable(dict[str, T]):
    """A table of rules by name, filled by the modules of a package."""

    def add(self, *names: str) -> Callable[[T], T]:
        """Return a decorator that adds a rule under these names."""

        def register(rule: T) -> T:
            self.update(dict.fromkeys(names, rule))
            return rule

        return register


def import_modules(package: str, path: Iterable[str]) -> list[ModuleType]:
    """Import every module in the folder of a package, so that its entries are registered; return the modules by name.

    Subpackages import their own modules.

    Args:
        package: Name of the package, `__name__` in its ``__init__.py``.
        path: Folders of the package, `__path__` in its ``__init__.py``.
    """
    return [import_module(f"{package}.{module.name}") for module in iter_modules(path)]


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__`` (PEP 562).

    Args:
        package: The package's ``__name__``.

    Returns:
        A function that imports one name and keeps it in the package, and one that lists all names.
    """
    namespace = vars(sys.modules[package])
    home = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        namespace[name] = value = getattr(importlib.import_module(home[name]), name)
        return value

    return find, lambda: sorted({*namespace, *home})
