"""Delegates: one file or folder per delegate, or an entry point of another package in the group `nn_stretch.delegates`.

Every module of this folder and of `scheduler/tools/delegates`, which holds the delegates of single
vendors, is imported with the package, so that a new file needs no registration elsewhere. A delegate
imports its libraries only when it compiles. The class of a delegate of this folder is also a name of
this package, such as `CpuDelegate`.
"""

from pathlib import Path
from typing import Any

from predictors.registry import import_modules
from scheduler.delegates.base import Compiled, Delegate, Invocation, delegates, get_delegate, load_plugins, origin

__all__ = [
    "Compiled",
    "Delegate",
    "Invocation",
    "delegates",
    "get_delegate",
    "load_plugins",
    "origin",
]

import_modules(__name__, __path__)
import_modules("scheduler.tools.delegates", [str(Path(__file__).parents[1] / "tools" / "delegates")])


def __getattr__(name: str) -> Any:
    """Return the class of a delegate of this folder, such as `CpuDelegate`."""
    for delegate in map(delegates.get, delegates):
        if delegate.__name__ == name and delegate.__module__.startswith(f"{__name__}."):
            return delegate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
