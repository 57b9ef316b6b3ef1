"""Kinds of processors, as the delegates that drive them tell: none is named here but the CPU, which is the host."""

from collections.abc import Iterable
from functools import cache

from predictors.host import HOST, is_host, kind_of
from scheduler.bundle.manifest import Manifest
from scheduler.delegates import Delegate, delegates, load_plugins
from scheduler.placement.place import Dispatch


def drivers(kind: str) -> list[tuple[str, type[Delegate]]]:
    """Name and class of the delegates that drive a kind of processor by themselves, those of other packages included, sorted by name."""
    _load_plugins_once()
    return [(name, delegates.get(name)) for name in delegates if kind in delegates.get(name).drives]


def first_driver(able: Iterable[str]) -> str | None:
    """Of delegates that are available, by name, the one that drives a processor: the first preferred one, else the first.

    Those behind a preferred one are not looked at, so `able` may find out one by one.
    """
    first = None
    for name in able:
        if delegates.get(name).preferred():
            return name
        first = first or name
    return first


@cache
def _load_plugins_once() -> None:
    """Those that cannot be loaded are passed over; `stretch list delegates` tells of them."""
    load_plugins()


def is_integer_only(processor: str) -> bool:
    """Whether it has no floating point: every delegate that drives it runs int8 alone."""
    able = [set(delegate.precisions) for _, delegate in drivers(kind_of(processor))]
    return bool(able) and all(precisions == {"int8"} for precisions in able)


def device_dispatch(processor: str) -> Dispatch:
    """How work reaches it on its device (paper 003, section 6.2): a CPU runs it on the calling thread, others as their delegate does."""
    if is_host(processor):
        return "inline"
    return "async" if any(delegate.asynchronous for _, delegate in drivers(kind_of(processor))) else "blocking"


def host_of(manifest: Manifest) -> str:
    """The processor that joins branches and computes in floating point."""
    return manifest.joins[0].processor if manifest.joins else HOST
