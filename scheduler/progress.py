"""How whoever waits is told what is going on."""

from collections.abc import Callable

#: Called with a few words for what comes next, or has just been done.
Progress = Callable[[str], None]


def silent(what: str) -> None:
    """Progress that nobody follows."""
