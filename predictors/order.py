"""Topological orders that stay close to a given order."""

from collections.abc import Collection, Hashable, Mapping
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def stable_order(waits: Mapping[T, Collection[T]]) -> list[T]:
    """Return the keys in their order, each moved after the keys that it waits for.

    Raises:
        CycleError: If keys wait for each other or for themselves (`graphlib`).
    """
    sorter = TopologicalSorter(waits)
    sorter.prepare()
    names = list(waits)
    position = {name: number for number, name in enumerate(names)}
    ready: list[int] = []
    order: list[T] = []
    while sorter:
        for name in sorter.get_ready():
            heappush(ready, position[name])
        order.append(names[heappop(ready)])
        sorter.done(order[-1])
    return order
