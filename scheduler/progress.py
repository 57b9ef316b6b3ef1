"""Progress reports of long operations."""

from collections.abc import Callable

#: Called with a few words about the step that begins or has ended.
Progress = Callable[[str], None]


def silent(message: str) -> None:
    """Discard progress reports."""
