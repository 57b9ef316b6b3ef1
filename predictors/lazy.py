"""Names of a package that are imported when somebody asks for them, so that the package itself is quick to import."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """What a package calls ``__getattr__`` and ``__dir__`` (PEP 562).

    Args:
        package: The package's ``__name__``.

    Returns:
        A function that imports one name, and keeps it in the package; and one that lists all names there are.
    """
    namespace = vars(sys.modules[package])
    home = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        namespace[name] = value = getattr(importlib.import_module(home[name]), name)
        return value

    return find, lambda: sorted({*namespace, *home})
