"""The host: the processor that runs the scheduler, waits for the other processors and joins their branches.

The host is the CPU (paper 003, algorithm 1), with any core set.
"""

from collections.abc import Iterable

#: The kind of processor that is the host.
HOST = "cpu"


def kind_of(processor: str) -> str:
    """Return the kind of a processor, such as ``gpu`` for ``gpu[1]``."""
    return processor.partition("[")[0]


def is_host(processor: str) -> bool:
    """Return whether a processor is the host: CPU cores."""
    return kind_of(processor) == HOST


def host_among(processors: Iterable[str]) -> str | None:
    """Return the first processor that is the host, or None."""
    return next((name for name in processors if is_host(name)), None)
