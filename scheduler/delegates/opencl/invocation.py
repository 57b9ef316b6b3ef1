"""One run of a compiled subgraph from and into the caller's memory, enqueued without a thread."""

import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from predictors.errors import StretchError
from scheduler.delegates.base import Array, AsyncInvocation, UnableError
from scheduler.delegates.opencl.device import OpenDevice
from scheduler.delegates.opencl.launch import Launch, Size


class DeviceError(UnableError):
    """A device fails or refuses what it is asked: it has no memory left, say, or was lost."""

    def __init__(self, name: str, what: str, error: Exception) -> None:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        super().__init__(f"the OpenCL device `{name}` {what}: {reason}", "run these subgraphs elsewhere with --map gpu=cpu")


@dataclass(frozen=True)
class Command:
    """A kernel whose arguments are set."""

    launch: Launch  # What it computes.
    kernel: Any  # The `pyopencl.Kernel`.
    grid: Size  # Its global size.
    local: Size | None  # Its work-group size, or None.
    regions: Mapping[str, Any]  # Memory of the intermediate tensors; kernels do not keep their arguments.


@dataclass(frozen=True)
class CommandSpan:
    """When a command passed each stage, in nanoseconds on the device's clock."""

    name: str  # Node that a kernel computes, or what else the command did.
    queued: int  # Put into the queue by the host.
    submitted: int  # Handed to the device.
    started: int  # Begun.
    ended: int  # Done.

    @property
    def ms(self) -> float:
        """Milliseconds between start and end."""
        return (self.ended - self.started) / 1e6


class OpenCLInvocation(AsyncInvocation):
    """Kernels in an in-order queue between the hand-over of the caller's memory and its return.

    On a device that shares the host's memory the caller's arrays are the
    kernels' buffers: unmapped while the device works, mapped before the caller
    reads them. Elsewhere they are copied.

    Args:
        inputs: The caller's arrays by name.
        outputs: The caller's arrays by name.
    """

    def __init__(
        self,
        device: OpenDevice,
        commands_of: Callable[[Mapping[str, Any]], list[Command]],
        inputs: dict[str, Array],
        outputs: dict[str, Array],
    ) -> None:
        import pyopencl as cl

        self._cl = cl
        self._device = device
        self._queue = device.queue
        self._shared = bool(device.traits.cpu)
        # Kernels do not keep their arguments: weights and intermediates live as long as what makes the commands.
        self._owner = commands_of
        flags = cl.mem_flags.READ_WRITE
        self._inputs = [(array, self._memory(flags, array)) for array in inputs.values()]
        self._outputs = [(array, self._memory(flags, array)) for array in outputs.values()]
        buffers = [memory for _, memory in (*self._inputs, *self._outputs)]
        self._commands = commands_of(dict(zip((*inputs, *outputs), buffers, strict=True)))
        self._plain = [(command.kernel, command.grid, command.local) for command in self._commands]
        self._events: list[Any] = []
        self._before: list[Any] = []
        self._after: list[Any] = []
        self._mapped: list[Any] = []
        self._enqueued_ns = 0
        self._pending = False
        if self._shared:
            self._map()
            self._wait(self._after)
            # The driver must have let go of the caller's arrays before they are freed.
            weakref.finalize(self, _release, self._queue, self._mapped, (self._inputs, self._outputs))

    def enqueue(self) -> None:
        """Hand over the buffers, launch every kernel, ask for the buffers back; returns at once."""
        with self._device.lock:
            self._enqueue()

    def _enqueue(self) -> None:
        launch, queue = self._cl.enqueue_nd_range_kernel, self._queue
        self._enqueued_ns = time.perf_counter_ns()
        try:
            if self._shared:
                self._before = [mapped.base.release(queue) for mapped in self._mapped]
                self._mapped.clear()
            else:
                self._before = [self._cl.enqueue_copy(queue, memory, array, is_blocking=False) for array, memory in self._inputs]
            self._events = [launch(queue, kernel, grid, local) for kernel, grid, local in self._plain]
            if self._shared:
                self._map()
            else:
                self._after = [self._cl.enqueue_copy(queue, array, memory, is_blocking=False) for array, memory in self._outputs]
            self._pending = True
            queue.flush()
        except self._cl.Error as error:
            raise self._failure(error) from error

    def wait(self) -> None:
        """Return when the outputs may be read."""
        if self._pending:
            self._pending = False
            self._wait(self._after or self._events)

    def times(self) -> tuple[int, int] | None:
        """When the device took up what was enqueued last and when its outputs were ready, on the clock of `perf_counter_ns`."""
        first, last = (self._before or self._events)[:1], (self._after or self._events)[-1:]
        if not first or not last or first[0] is None:
            return None
        with suppress(self._cl.Error):
            queued, ended = first[0].profile.queued, last[0].profile.end
            # The first command was put into the queue just after the host's own clock was read.
            return self._enqueued_ns, ended - queued + self._enqueued_ns
        return None

    def spans(self) -> list[CommandSpan]:
        """Each launch of the last run, in order."""
        return [_span(command.launch.node, event) for command, event in zip(self._commands, self._events, strict=True)]

    def commands(self) -> list[CommandSpan]:
        """All commands of the last run: hand-over of the buffers, launches, return of the buffers."""
        with suppress(self._cl.Error):
            return [*(_span("map", e) for e in self._before if e is not None), *self.spans(), *(_span("unmap", e) for e in self._after)]
        return []

    def communication_ms(self) -> float:
        """Time of the last run in which no kernel ran: from the queued hand-over to the first start, from the last end to the return (paper 003, section 5)."""
        spans, all_commands = self.spans(), self.commands()
        if not spans or not all_commands:
            return 0.0
        return (spans[0].started - all_commands[0].queued + all_commands[-1].ended - spans[-1].ended) / 1e6

    def _memory(self, flags: int, array: Array) -> Any:
        if self._shared:
            return self._cl.Buffer(self._device.context, flags | self._cl.mem_flags.USE_HOST_PTR, hostbuf=array)
        return self._cl.Buffer(self._device.context, flags, array.nbytes)

    def _map(self) -> None:
        """Ask for every buffer back; the caller may touch its arrays when the last of these commands is done."""
        flags = self._cl.map_flags
        self._after = []
        for buffers, mode in ((self._inputs, flags.WRITE), (self._outputs, flags.READ)):
            for array, memory in buffers:
                mapped, event = self._cl.enqueue_map_buffer(self._queue, memory, mode, 0, array.shape, array.dtype, is_blocking=False)
                self._mapped.append(mapped)
                self._after.append(event)

    def _wait(self, events: list[Any]) -> None:
        try:
            if events:
                events[-1].wait()
        except self._cl.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> StretchError:
        return DeviceError(self._device.name, "failed", error)


def _span(name: str, event: Any) -> CommandSpan:
    times = event.profile
    return CommandSpan(name, times.queued, times.submit, times.start, times.end)


def _release(queue: Any, mapped: list[Any], kept: object) -> None:
    """Hand the buffers over for good; `kept` is what must outlive that."""
    for array in mapped:
        array.base.release(queue)
    queue.finish()
    mapped.clear()
    del kept
