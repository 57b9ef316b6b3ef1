"""A subgraph whose kernels are built and whose weights and intermediate tensors are in device memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictors.errors import StretchError
from scheduler.delegates.base import Array, Compiled
from scheduler.delegates.opencl.device import OpenDevice
from scheduler.delegates.opencl.invocation import Command, DeviceError, OpenCLInvocation
from scheduler.delegates.opencl.launch import Argument, Float, Ints, Launch, Tensor, Weights, Zeros
from scheduler.delegates.opencl.memory import intermediates
from scheduler.delegates.opencl.programs import Programs
from scheduler.delegates.opencl.tensors import TEXEL, View
from scheduler.memory import Lifetimes, MemoryPlan, Planner
from scheduler.memory.offset import plan_offset


@dataclass(frozen=True)
class KernelTime:
    """How long one launch takes."""

    launch: Launch  # The launch.
    ms: float  # Milliseconds between its start and its end on the device.


class OpenCLCompiled(Compiled):
    """Launches with everything they need but the caller's memory.

    Args:
        launches: In the order in which they run.
        inputs: Name and shape of each input.
        outputs: Name and shape of each output.
        half: Whether blocked tensors and weights are stored in half precision.
    """

    def __init__(
        self,
        device: OpenDevice,
        programs: Programs,
        launches: Sequence[Launch],
        inputs: Mapping[str, tuple[int, ...]],
        outputs: Mapping[str, tuple[int, ...]],
        *,
        half: bool = False,
        planner: Planner = plan_offset,
    ) -> None:
        super().__init__(inputs, outputs)
        self.device = device
        self._programs = programs
        self._half = half
        self._item_bytes = device.traits.blocking(half).item_bytes
        self._constants: dict[int, Any] = {}
        try:
            self.intermediates: Lifetimes = intermediates(launches)
            self.allocation: MemoryPlan = planner(self.intermediates, self.device.traits.alignment)
            self.launches = tuple(self._readable(launch) for launch in launches)
            self._regions()
            self._zeros = self._buffer(
                np.zeros(max([4, *(a.elements for s in self.launches for a in s.arguments if isinstance(a, Zeros))]), np.float32)
            )
            for launch in self.launches:
                for argument in launch.arguments:
                    self._upload(argument)
        except (MemoryError, _error_type()) as error:
            raise DeviceError(device.name, "has no memory for the subgraph", error) from error
        # Drivers finish compiling when a kernel is launched first: not in the first inference, and with an error that compiling can report.
        self.run([np.zeros(s, np.float32) for s in self.inputs.values()], [np.zeros(s, np.float32) for s in self.outputs.values()])

    @property
    def arena_bytes(self) -> int:
        """Memory of all intermediate tensors."""
        return self.allocation.total_bytes

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> OpenCLInvocation:
        """Set every kernel's arguments, with the caller's memory as inputs and outputs."""
        self.check(inputs, outputs)
        for name, array in (*zip(self.inputs, inputs, strict=True), *zip(self.outputs, outputs, strict=True)):
            if array.dtype != np.float32:
                raise StretchError(f"the buffer of `{name}` has type {array.dtype}, the opencl delegate takes float32")
        try:
            return OpenCLInvocation(
                self.device, self.commands, dict(zip(self.inputs, inputs, strict=True)), dict(zip(self.outputs, outputs, strict=True))
            )
        except _error_type() as error:
            raise DeviceError(self.device.name, "does not take the subgraph's buffers and kernels", error) from error

    def profile(self, runs: int = 3) -> list[KernelTime]:
        """The least time of each launch in `runs` runs on zeros, by the device's clock."""
        arrays = [[np.zeros(shape, np.float32) for shape in shapes.values()] for shapes in (self.inputs, self.outputs)]
        invocation = self.bind(*arrays)
        best = [float("inf")] * len(self.launches)
        for _ in range(runs):
            invocation.run()
            best = [min(a, span.ms) for a, span in zip(best, invocation.spans(), strict=True)]
        return [KernelTime(launch, ms) for launch, ms in zip(self.launches, best, strict=True)]

    def commands(self, external: Mapping[str, Any]) -> list[Command]:
        """Every launch with its arguments set.

        Args:
            external: Buffers of the inputs and outputs by name; kernels do not keep them alive.
        """
        import pyopencl as cl

        commands = []
        regions = self._regions()
        for launch in self.launches:
            kernel = self._programs.kernel(launch.kernel, launch.defines)
            arguments: list[Any] = []
            for argument in launch.arguments:
                arguments += self._values(argument, external, regions)
            kernel.set_args(*arguments)
            # A kernel that needs many registers allows fewer work-items than its device.
            limit = kernel.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, self.device.queue.device)
            legal = launch.within(limit, self.device.traits.max_sizes)
            commands.append(Command(launch, kernel, legal.global_size, legal.local, regions))
        return commands

    def _values(self, argument: Argument, external: Mapping[str, Any], regions: dict[str, Any]) -> list[Any]:
        match argument:
            case Tensor(view):
                if view.where == "device":
                    memory = regions[view.buffer]
                else:
                    memory = self._constants[id(argument)] if view.where == "constant" else external[view.buffer]
                if argument.image:
                    return [self._row_image(view, regions), np.int32(self._offset(view)), np.array(view.strides, np.int32)]
                return [memory] if argument.bare else [memory, np.int32(view.offset), np.array(view.strides, np.int32)]
            case Weights():
                return [self._constants[id(argument)]]
            case Zeros():
                return [self._zeros]
            case Ints(values):
                return [np.int32(values[0]) if len(values) == 1 else np.array(values, np.int32)]
            case Float(value):
                return [np.float32(value)]

    def _upload(self, argument: Argument) -> None:
        if isinstance(argument, Weights):
            types = {"store": np.float16 if self._half else np.float32, "float": np.float32, "int": np.int32}
            values = argument.values.astype(types[argument.kind], copy=False)
            self._constants[id(argument)] = self._weight_image(values, argument.image) if argument.image else self._buffer(values)
        elif isinstance(argument, Tensor) and argument.values is not None:
            self._constants[id(argument)] = self._buffer(argument.values.astype(np.float16 if self._half else np.float32, copy=False))

    def _weight_image(self, values: Array, power: int) -> Any:
        """Weights as an image whose rows are filled one after the other."""
        import pyopencl as cl

        width = 1 << power
        texels = np.zeros((-(-values.size // (TEXEL * width)), width, TEXEL), values.dtype)
        texels.reshape(-1)[: values.size] = values.reshape(-1)
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        return cl.create_image(self.device.context, flags, self._texel(), texels.shape[1::-1], hostbuf=texels)

    def _row_image(self, view: View, regions: dict[str, Any]) -> Any:
        """The arena of a tensor as an image of one row, which is kept with the regions; drivers refuse one of a part of a buffer."""
        import pyopencl as cl

        arena = self.allocation.arenas[view.buffer]
        name = f"image {arena}"
        if name not in regions:
            sizes = self.allocation.sizes
            regions[name] = cl.create_image(
                self.device.context,
                cl.mem_flags.READ_WRITE,
                self._texel(),
                (sizes[arena] // (TEXEL * self._item_bytes),),
                buffer=self.device.arenas.take(sizes)[arena],
            )
        return regions[name]

    def _offset(self, view: View) -> int:
        """First element of a tensor in its arena."""
        return self.allocation.offsets[view.buffer] // self._item_bytes + view.offset

    def _readable(self, launch: Launch) -> Launch:
        """The launch with buffers in place of images that its device cannot make so large."""
        limit = self.device.traits.images[2] * TEXEL * self._item_bytes
        images = [a.view.buffer for a in launch.arguments if isinstance(a, Tensor) and a.image]
        return launch if all(self.allocation.sizes[self.allocation.arenas[name]] <= limit for name in images) else launch.in_buffers()

    def _texel(self) -> Any:
        import pyopencl as cl

        return cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.HALF_FLOAT if self._half else cl.channel_type.FLOAT)

    def _buffer(self, values: Array) -> Any:
        import pyopencl as cl

        return cl.Buffer(self.device.context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(values))

    def _regions(self) -> dict[str, Any]:
        """A region of the queue's arenas for each intermediate tensor."""
        arenas = self.device.arenas.take(self.allocation.sizes)
        return {
            tensor.name: arenas[self.allocation.arenas[tensor.name]].get_sub_region(self.allocation.offsets[tensor.name], tensor.bytes)
            for tensor in self.intermediates.tensors
        }


def _error_type() -> type[Exception]:
    import pyopencl

    error: type[Exception] = pyopencl.Error
    return error
