"""Files and folders that a recipe names, made absolute."""

from pathlib import Path
from typing import Any

from stretch.models.load import is_file

#: Keys of a recipe whose values are files or folders.
KEYS = ("model", "weights", "trained", "design", "data.path", "supernet.designs", "plan.accuracy")


def root_paths(raw: dict[str, Any], folder: Path) -> None:
    """Make what the keys of a recipe name absolute."""
    for key in KEYS:
        *parents, last = key.split(".")
        at: Any = raw
        for name in parents:
            at = at.get(name) if isinstance(at, dict) else None
        if isinstance(at, dict) and last in at:
            at[last] = rooted(key, at[last], folder)


def rooted(key: str, value: Any, folder: Path) -> Any:
    """The value of one key, absolute if it names a file or folder; any other as it is."""
    if key not in KEYS or value in ("", None):
        return value
    if isinstance(value, list):
        return [rooted(key, each, folder) for each in value]
    if not isinstance(value, str) or (key == "weights" and value in ("default", "none")):
        return value
    if key == "model" and not is_file(value) and not value.endswith(".py"):
        return value
    file, colon, factory = value.rpartition(":")
    if key != "model" or not file.endswith(".py"):
        file, colon, factory = value, "", ""
    return f"{folder.absolute() / Path(file).expanduser()}{colon}{factory}"
