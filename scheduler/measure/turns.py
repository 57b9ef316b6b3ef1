"""Whose turn it is: what disturbs a machine for a while disturbs all contestants, and none is always the first."""

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def play_round(contestants: Mapping[str, Callable[[], T]], number: int) -> dict[str, T]:
    """Run every contestant once, in an order that rotates."""
    order = list(contestants)
    first = number % len(order) if order else 0
    return {name: contestants[name]() for name in order[first:] + order[:first]}
