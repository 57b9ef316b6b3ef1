"""Progress reports of long operations."""

from collections.abc import Callable

#: Called with a few words for the next step, or the last one.
Progress = Callable[[str], None]


def silent(message: str) -> None:
    """Discard progress reports."""
