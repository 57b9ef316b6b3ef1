"""A subgraph whose kernels are built and whose weights and intermediate tensors are in device memory."""

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from predictors.errors import StretchError, first_line
from scheduler.delegates.base import Array, AsyncInvocation, Compiled, UnableError, pieces_of, warm_up
from scheduler.delegates.opencl.device import OpenDevice, native_enqueue, native_launch, pinned_is_faster, programs_of
from scheduler.delegates.opencl.graph import KernelGraph
from scheduler.delegates.opencl.launch import (
    TEXEL,
    Argument,
    Launch,
    Size,
    TensorArgument,
    Weights,
    Zeros,
    intermediates,
)
from scheduler.memory import Lifetimes, MemoryPlan, Planner
from scheduler.memory.plan import plan_offset


def device_error(name: str, problem: str, error: Exception) -> UnableError:
    """Return an error for a device that fails or refuses a request, such as a device that was lost or has no memory left."""
    return UnableError(f"the OpenCL device `{name}` {problem}: {first_line(error)}", "run these subgraphs elsewhere with --map gpu=cpu")


@dataclass(frozen=True)
class Command:
    """A kernel whose arguments are set."""

    launch: Launch  # Kernel and its arguments.
    kernel: Any  # The `pyopencl.Kernel`.
    grid: Size  # Its global size.
    local: Size | None  # Its work-group size, or None.
    memory: Sequence[Any]  # Memory of intermediate tensors, held here because kernels do not keep their arguments alive.


class OpenCLInvocation(AsyncInvocation):
    """Kernels in an in-order queue, run between handing over the caller's memory and mapping it again.

    On a device that shares the host's memory the caller's arrays are the
    kernels' buffers: unmapped while the device works, and mapped before the
    caller reads them. Other devices copy the arrays.

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
        # Kernels do not keep their arguments: the owner of weights and intermediates must live as long as the commands.
        self._owner = commands_of
        flags = cl.mem_flags.READ_WRITE
        self._inputs = [(array, self._memory(flags, array)) for array in inputs.values()]
        self._outputs = [(array, self._memory(flags, array)) for array in outputs.values()]
        # a device that shares the host's memory copies nothing
        self._copies_in, self._copies_out = (
            [] if self._shared else [self._copy(memory, array, to_device) for array, memory in buffers]
            for buffers, to_device in ((self._inputs, True), (self._outputs, False))
        )
        buffers = [memory for _, memory in (*self._inputs, *self._outputs)]
        self._commands = commands_of(dict(zip((*inputs, *outputs), buffers, strict=True)))
        self._launches = [native_launch(command.kernel, command.grid, command.local) for command in self._commands]
        self._before: list[Any] = []
        self._after: list[Any] = []
        self._mapped: list[Any] = []
        self._enqueued_ns = 0
        self._pending = False
        if self._shared:
            self._map()
            self._wait(self._after)
            # The driver must release the caller's arrays before they are freed.
            weakref.finalize(self, _release, self._queue, self._mapped, (self._inputs, self._outputs))

    def enqueue(self) -> None:
        """Hand over the buffers, launch every kernel and queue the mapping of the buffers; return at once."""
        with self._device.lock:
            self._enqueue(self._launch)

    def _launch(self) -> None:
        """Launch every kernel without an event, which costs several times the launch, and without releasing the interpreter's lock."""
        self._launch_natively(self._launches)

    def _launch_natively(self, launches: Sequence[Any]) -> None:
        launch, queue = native_enqueue(), self._queue.int_ptr
        for kernel, dimensions, grid, local in launches:
            if status := launch(queue, kernel, dimensions, None, grid, local, 0, None, None):
                codes = self._cl.status_code
                name = next((name for name in dir(codes) if getattr(codes, name) == status), status)
                raise self._failure(RuntimeError(f"clEnqueueNDRangeKernel failed: {name}"))

    def _enqueue(self, launch: Callable[[], None]) -> None:
        queue = self._queue
        self._enqueued_ns = time.perf_counter_ns()
        try:
            if self._shared:
                self._before = [mapped.base.release(queue) for mapped in self._mapped]
                self._mapped.clear()
            else:
                self._before = [copy() for copy in self._copies_in]
            launch()
            if self._shared:
                self._map()
            else:
                self._after = [copy() for copy in self._copies_out]
            self._pending = True
            queue.flush()
        except self._cl.Error as error:
            raise self._failure(error) from error

    def wait(self) -> None:
        """Wait until the outputs may be read."""
        if self._pending:
            self._pending = False
            self._wait(self._after)

    def times(self) -> tuple[int, int] | None:
        """Return start of the last enqueued work and end of its last output in ns, on the clock of `perf_counter_ns`; None if unknown."""
        first, last = self._before[:1], self._after[-1:]
        if not first or not last or first[0] is None:
            return None
        with suppress(self._cl.Error):
            queued, ended = first[0].profile.queued, last[0].profile.end
            # The first command was queued just after the host's clock was read.
            return self._enqueued_ns, ended - queued + self._enqueued_ns
        return None

    def launch_ms(self) -> list[float]:
        """Run with an event for each launch, and return the time of each launch on the device's clock, ms, in order."""
        events: list[Any] = []

        def launch() -> None:
            events.extend(
                self._cl.enqueue_nd_range_kernel(self._queue, command.kernel, command.grid, command.local) for command in self._commands
            )

        with self._device.lock:
            self._enqueue(launch)
        self.wait()
        return [(event.profile.end - event.profile.start) / 1e6 for event in events]

    def fed_ms(self) -> float:
        """Run as `enqueue` does, and return the ms from the start of the first kernel to the end of the last.

        Only the first and the last launch have events, so the device waits for its thread as in any other run.
        """
        events: list[Any] = []

        def launch() -> None:
            first, *between, last = self._commands
            events.append(self._cl.enqueue_nd_range_kernel(self._queue, first.kernel, first.grid, first.local))
            self._launch_natively(self._launches[1 : 1 + len(between)])
            events.append(self._cl.enqueue_nd_range_kernel(self._queue, last.kernel, last.grid, last.local))

        with self._device.lock:
            self._enqueue(launch)
        self.wait()
        return float(events[-1].profile.end - events[0].profile.start) / 1e6

    def _copy(self, memory: Any, array: Array, to_device: bool) -> Callable[[], Any]:
        """Return a function that copies between a buffer and the caller's array, which may consist of several pieces."""
        count, length, distance = pieces_of(array) or (1, array.nbytes, array.nbytes)
        pieces: dict[str, tuple[int, ...]] = {}
        if count > 1:
            # the driver takes one piece of memory, and the positions of the array's pieces in it
            array = as_strided(array, ((distance * (count - 1) + length) // array.itemsize,), (array.itemsize,))
            pieces = {"region": (length, count, 1), "buffer_pitches": (length,), "host_pitches": (distance,)}
            pieces |= dict.fromkeys(("buffer_origin", "host_origin"), (0, 0, 0))
        ends = (memory, array) if to_device else (array, memory)
        return partial(self._cl.enqueue_copy, self._queue, *ends, is_blocking=False, **pieces)

    def _memory(self, flags: int, array: Array) -> Any:
        if self._shared:
            return self._cl.Buffer(self._device.context, flags | self._cl.mem_flags.USE_HOST_PTR, hostbuf=array)
        return self._cl.Buffer(self._device.context, flags, array.nbytes)

    def _map(self) -> None:
        """Queue the mapping of every buffer; the caller may use its arrays when the last of these commands is done."""
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
        return device_error(self._device.name, "failed", error)


def _release(queue: Any, mapped: list[Any], keep_alive: object) -> None:
    """Hand the buffers over for good; `keep_alive` holds the objects that must outlive the release."""
    for array in mapped:
        array.base.release(queue)
    queue.finish()
    mapped.clear()
    del keep_alive


#: A launch, and its time from start to end on the device, or until the next launch is handed over if that takes longer, ms.
LaunchTime = tuple[Launch, float]


def raised(times: Sequence[float], total: float) -> list[float]:
    """Raise the times to the one floor at which they sum to `total`; return them unchanged if their sum is larger.

    After each kernel shorter than a launch, a device waits for the thread that feeds it, so such a kernel takes as long as a launch.
    """
    ordered = sorted(times)
    for count, bound in enumerate([*ordered[1:], float("inf")], start=1):
        floor = (total - sum(ordered[count:])) / count
        if floor <= bound:
            break
    return [max(time, floor) for time in times]


class OpenCLCompiled(Compiled):
    """Launches with all their arguments except for the caller's memory.

    Args:
        graph: Graph with the subgraph's inputs and outputs.
        launches: Launches in the order in which they run.
        half: Whether blocked tensors and weights are stored in half precision.
    """

    def __init__(
        self,
        device: OpenDevice,
        graph: KernelGraph,
        launches: Sequence[Launch],
        *,
        half: bool = False,
        planner: Planner = plan_offset,
    ) -> None:
        import pyopencl as cl

        super().__init__(*({name: graph.shapes[name] for name in names} for names in (graph.inputs, graph.outputs)))
        self.takes_slices = pinned_is_faster(device)
        self._cl, self.device = cl, device
        self._programs = programs_of(device, half)
        self._half = half
        self._item_bytes = device.traits.blocking(half).item_bytes
        self._constants: dict[int, Any] = {}
        try:
            self.intermediates: Lifetimes = intermediates(launches)
            self.allocation: MemoryPlan = planner(self.intermediates, self.device.traits.alignment)
            self.launches = tuple(self._readable(launch) for launch in launches)
            device.arenas.allocate(self.allocation.sizes)
            self._zeros = self._buffer(
                np.zeros(max([4, *(a.elements for s in self.launches for a in s.arguments if isinstance(a, Zeros))]), np.float32)
            )
            for launch in self.launches:
                for argument in launch.arguments:
                    self._upload(argument)
        except (MemoryError, cl.Error) as error:
            device.arenas.clear()
            raise device_error(device.name, "has no memory for the subgraph", error) from error
        # Drivers finish compiling at a kernel's first launch, which is made here: not in the first inference, and errors can be reported.
        try:
            self.run([np.zeros(s, np.float32) for s in self.inputs.values()], [np.zeros(s, np.float32) for s in self.outputs.values()])
        except UnableError as error:
            device.arenas.clear()
            if "MEM_OBJECT_ALLOCATION_FAILURE" in error.message:
                raise device_error(device.name, "has no memory for the subgraph", error) from error
            raise

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> OpenCLInvocation:
        """Set every kernel's arguments, with the caller's memory for inputs and outputs."""
        self.check(inputs, outputs)
        for name, array in (*zip(self.inputs, inputs, strict=True), *zip(self.outputs, outputs, strict=True)):
            if array.dtype != np.float32:
                raise StretchError(f"the buffer of `{name}` has type {array.dtype}, the opencl delegate takes float32")
        try:
            return OpenCLInvocation(
                self.device, self.commands, dict(zip(self.inputs, inputs, strict=True)), dict(zip(self.outputs, outputs, strict=True))
            )
        except self._cl.Error as error:
            raise device_error(self.device.name, "does not take the subgraph's buffers and kernels", error) from error

    def profile(self, runs: int = 3, fed: bool = False) -> list[LaunchTime]:
        """Return the shortest time of each launch in `runs` runs on zeros, by the device's clock.

        Args:
            fed: Measure as in a run without events that follows other runs: the device is warm, and a launch takes at least as long as
                its thread needs to hand over the next launch.
        """
        arrays = [[np.zeros(shape, np.float32) for shape in shapes.values()] for shapes in (self.inputs, self.outputs)]
        invocation = self.bind(*arrays)
        if fed:
            warm_up(invocation.run)
        best = [float("inf")] * len(self.launches)
        for _ in range(runs):
            best = [min(pair) for pair in zip(best, invocation.launch_ms(), strict=True)]
        if fed and len(best) > 1:
            best = raised(best, median(invocation.fed_ms() for _ in range(2 * runs + 1)))
        return list(zip(self.launches, best, strict=True))

    def commands(self, external: Mapping[str, Any]) -> list[Command]:
        """Return every launch with its arguments set.

        Args:
            external: Buffers of the inputs and outputs by name; kernels do not keep these buffers alive.
        """
        commands = []
        arenas = self.device.arenas.allocate(self.allocation.sizes)
        images: dict[int, Any] = {}
        for launch in self.launches:
            kernel = self._programs.kernel(launch.kernel, launch.defines)
            arguments: list[Any] = []
            for argument in launch.arguments:
                arguments += self._values(argument, external, arenas, images)
            kernel.set_args(*arguments)
            # A kernel that needs many registers allows fewer work-items than its device.
            limit = kernel.get_work_group_info(self._cl.kernel_work_group_info.WORK_GROUP_SIZE, self.device.queue.device)
            legal = launch.with_legal_local(limit, self.device.traits.max_sizes)
            commands.append(Command(launch, kernel, legal.global_size, legal.local, (*arenas, *images.values())))
        return commands

    def _values(self, argument: Argument, external: Mapping[str, Any], arenas: Sequence[Any], images: dict[int, Any]) -> list[Any]:
        match argument:
            case TensorArgument(view):
                offset, strides = np.int32(view.offset), np.array(view.strides, np.int32)
                if view.owner == "device":
                    # An offset in the arena, not a sub-buffer: NVIDIA's drivers crash when the second of two equal sub-buffers is freed.
                    arena, item_bytes = self.allocation.arenas[view.buffer], 4 if view.is_row_major else self._item_bytes
                    offset = np.int32(self.allocation.offsets[view.buffer] // item_bytes + view.offset)
                    if argument.image and arena not in images:
                        images[arena] = self._row_image(arenas[arena], self.allocation.sizes[arena])
                    memory = images[arena] if argument.image else arenas[arena]
                else:
                    memory = self._constants[id(argument)] if view.owner == "constant" else external[view.buffer]
                return [memory, offset] if argument.without_strides else [memory, offset, strides]
            case Weights():
                return [self._constants[id(argument)]]
            case Zeros():
                return [self._zeros]
            case tuple(values):
                return [np.int32(values[0]) if len(values) == 1 else np.array(values, np.int32)]
            case float(value):
                return [np.float32(value)]

    def _upload(self, argument: Argument) -> None:
        if isinstance(argument, Weights):
            types = {"store": np.float16 if self._half else np.float32, "float": np.float32, "int": np.int32}
            values = argument.values.astype(types[argument.kind], copy=False)
            self._constants[id(argument)] = self._weight_image(values, argument.image) if argument.image else self._buffer(values)
        elif isinstance(argument, TensorArgument) and argument.values is not None:
            self._constants[id(argument)] = self._buffer(argument.values.astype(np.float16 if self._half else np.float32, copy=False))

    def _weight_image(self, values: Array, power: int) -> Any:
        """Return the weights as an image, filled row by row."""
        width = 1 << power
        texels = np.zeros((-(-values.size // (TEXEL * width)), width, TEXEL), values.dtype)
        texels.reshape(-1)[: values.size] = values.reshape(-1)
        flags = self._cl.mem_flags.READ_ONLY | self._cl.mem_flags.COPY_HOST_PTR
        return self._cl.create_image(self.device.context, flags, self._texel(), texels.shape[1::-1], hostbuf=texels)

    def _row_image(self, arena: Any, size: int) -> Any:
        """Return an arena as an image of one row."""
        texels = size // (TEXEL * self._item_bytes)
        return self._cl.create_image(self.device.context, self._cl.mem_flags.READ_WRITE, self._texel(), (texels,), buffer=arena)

    def _readable(self, launch: Launch) -> Launch:
        """Return the launch with buffers in place of images that are too large for its device."""
        limit = self.device.traits.images[2] * TEXEL * self._item_bytes
        images = [a.view.buffer for a in launch.arguments if isinstance(a, TensorArgument) and a.image]
        return launch if all(self.allocation.sizes[self.allocation.arenas[name]] <= limit for name in images) else launch.without_images()

    def _texel(self) -> Any:
        return self._cl.ImageFormat(
            self._cl.channel_order.RGBA, self._cl.channel_type.HALF_FLOAT if self._half else self._cl.channel_type.FLOAT
        )

    def _buffer(self, values: Array) -> Any:
        return self._cl.Buffer(
            self.device.context, self._cl.mem_flags.READ_ONLY | self._cl.mem_flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(values)
        )
