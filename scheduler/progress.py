"""Progress reports of long operations."""

from collections.abc import Callable

#: Called with a few words for what comes next, or has just been done.
Progress = Callable[[str], None]


def silent(message: str) -> None:
    """Discard progress reports."""
