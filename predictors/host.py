"""The host: the processor that runs the scheduler, waits for the other processors and joins their branches.

It is the CPU (paper 003, algorithm 1), in whichever core set.
"""

from collections.abc import Iterable

#: The kind of processor that is the host.
HOST = "cpu"


def kind_of(processor: str) -> str:
    """Return the kind of a processor: ``gpu`` of ``gpu[1]``."""
    return processor.partition("[")[0]


def is_host(processor: str) -> bool:
    """Return whether a processor is the host: cores of a CPU."""
    return kind_of(processor) == HOST


def host_among(processors: Iterable[str]) -> str | None:
    """Return the first of some processors that is the host; None if none is."""
    return next((name for name in processors if is_host(name)), None)
