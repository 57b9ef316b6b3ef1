"""Memory of the intermediate tensors of a compiled subgraph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.delegates.opencl.launch import Launch, Tensor


@dataclass(frozen=True)
class Intermediate:
    """A buffer that exists between two launches.

    Args:
        name: Name of the tensor whose memory it is; slices of it share the name.
        bytes: Its size.
        first: Index of the launch that writes it first.
        last: Index of the launch that uses it last.
    """

    name: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Allocation:
    """Where each intermediate lies.

    Args:
        offsets: First byte of each intermediate in the arena of its number.
        arenas: Arena of each intermediate; objects shared by turns are arenas of their own with offset 0.
        sizes: Bytes of each arena.
    """

    offsets: Mapping[str, int]
    arenas: Mapping[str, int]
    sizes: tuple[int, ...]


#: Plans the memory of intermediates; the second argument is the alignment in bytes.
Planner = Callable[[Sequence[Intermediate], int], Allocation]


def intermediates(launches: Sequence[Launch]) -> list[Intermediate]:
    """The intermediate tensors of launches that run in this order, with their sizes and first and last use."""
    found: dict[str, Intermediate] = {}
    for i, launch in enumerate(launches):
        for argument in launch.arguments:
            if isinstance(argument, Tensor) and argument.view.where == "device":
                view = argument.view
                first = found[view.buffer].first if view.buffer in found else i
                size = max(view.bytes, found[view.buffer].bytes if view.buffer in found else 0)
                found[view.buffer] = Intermediate(view.buffer, size, first, i)
    return list(found.values())


def plan_by_size(tensors: Sequence[Intermediate], alignment: int) -> Allocation:
    """One arena, the largest tensor placed first, each at the lowest offset that is free while it lives."""
    placed: list[tuple[Intermediate, int]] = []
    for tensor in sorted(tensors, key=lambda t: (-t.bytes, t.first)):
        at = 0
        for other, start in sorted(placed, key=lambda p: p[1]):
            if other.first <= tensor.last and tensor.first <= other.last and start < at + tensor.bytes:
                at = max(at, -(-(start + other.bytes) // alignment) * alignment)
        placed.append((tensor, at))
    size = max((at + tensor.bytes for tensor, at in placed), default=0)
    return Allocation({t.name: at for t, at in placed}, {t.name: 0 for t, _ in placed}, (size,))
