"""Absolute paths of files and folders in a recipe."""

from pathlib import Path
from typing import Any

from stretch.models.load import is_file

#: Keys of a recipe whose values are files or folders.
KEYS = ("model", "weights", "trained", "design", "data.path", "supernet.designs", "plan.accuracy")


def root_paths(raw: dict[str, Any], folder: Path) -> None:
    """Make the paths of a recipe absolute."""
    for key in KEYS:
        *parents, last = key.split(".")
        at: Any = raw
        for name in parents:
            at = at.get(name) if isinstance(at, dict) else None
        if isinstance(at, dict) and last in at:
            at[last] = rooted(key, at[last], folder)


def rooted(key: str, value: Any, folder: Path) -> Any:
    """The value of a key, absolute if it is a path."""
    if key not in KEYS or value in ("", None):
        return value
    if isinstance(value, list):
        return [rooted(key, element, folder) for element in value]
    if not isinstance(value, str) or (key == "weights" and value in ("default", "none")):
        return value
    if key == "model" and not is_file(value) and not value.endswith(".py"):
        return value
    file, colon, factory = value.rpartition(":")
    if key != "model" or not file.endswith(".py"):
        file, colon, factory = value, "", ""
    return f"{folder.absolute() / Path(file).expanduser()}{colon}{factory}"
