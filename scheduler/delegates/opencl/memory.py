"""Memory of the intermediate tensors of compiled subgraphs, which subgraphs of one queue share."""

from collections.abc import Sequence
from typing import Any

from scheduler.delegates.opencl.launch import Launch, TensorArgument
from scheduler.memory import Lifetime, Lifetimes


def intermediates(launches: Sequence[Launch]) -> Lifetimes:
    """The tensors between launches that run in this order; slices of a tensor share its name."""
    sizes: dict[str, int] = {}
    steps: dict[str, list[int]] = {}
    for i, launch in enumerate(launches):
        for argument in launch.arguments:
            if isinstance(argument, TensorArgument) and argument.view.where == "device":
                view = argument.view
                sizes[view.buffer] = max(view.bytes, sizes.get(view.buffer, 0))
                steps.setdefault(view.buffer, []).append(i)
    return Lifetimes([Lifetime(name, size, tuple(sorted(set(steps[name])))) for name, size in sizes.items()])


class Arenas:
    """Device memory that all subgraphs of one in-order queue take turns in, whatever bundle they belong to.

    What a subgraph leaves there is worthless once the next one starts, and an
    in-order queue never runs two at once.

    Args:
        context: The `pyopencl.Context`.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._buffers: list[Any] = []

    @property
    def bytes(self) -> int:
        """Memory of all arenas."""
        return sum(buffer.size for buffer in self._buffers)

    def take(self, sizes: Sequence[int]) -> list[Any]:
        """Buffers of at least these sizes; one that is too small is replaced, and lives on with those who have it."""
        import pyopencl as cl

        for i, size in enumerate(sizes):
            if i == len(self._buffers):
                self._buffers.append(cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size))
            elif self._buffers[i].size < size:
                self._buffers[i] = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)
        return self._buffers[: len(sizes)]
