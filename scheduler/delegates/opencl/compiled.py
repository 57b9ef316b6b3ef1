"""A subgraph whose kernels are built and whose weights and intermediate tensors are in device memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictors.errors import StretchError
from scheduler.delegates.base import Array, Compiled
from scheduler.delegates.opencl.device import OpenDevice
from scheduler.delegates.opencl.invocation import Command, OpenCLInvocation
from scheduler.delegates.opencl.launch import Argument, Float, Ints, Launch, Tensor, Weights, Zeros
from scheduler.delegates.opencl.memory import intermediates
from scheduler.delegates.opencl.programs import Programs
from scheduler.memory import Lifetimes, MemoryPlan, Planner
from scheduler.memory.offset import plan_offset


@dataclass(frozen=True)
class KernelTime:
    """How long one launch takes.

    Args:
        launch: The launch.
        ms: Milliseconds between its start and its end on the device.
    """

    launch: Launch
    ms: float


class OpenCLCompiled(Compiled):
    """Launches with everything they need but the caller's memory.

    Args:
        device: Where they run.
        programs: Builds the kernels.
        launches: In the order in which they run.
        inputs: Name and shape of each input.
        outputs: Name and shape of each output.
        half: Whether blocked tensors and weights are stored in half precision.
        planner: Gives intermediate tensors their memory.

    Raises:
        BuildError: If the driver does not compile a kernel.
        StretchError: If the device's memory does not suffice.
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
        self.launches = tuple(launches)
        self._programs = programs
        self._half = half
        self._constants: dict[int, Any] = {}
        self._kept: list[Array] = []
        try:
            self.intermediates: Lifetimes = intermediates(self.launches)
            self.allocation: MemoryPlan = planner(self.intermediates, self.device.traits.alignment)
            self._regions()
            self._zeros = self._buffer(
                np.zeros(max([4, *(a.elements for s in launches for a in s.arguments if isinstance(a, Zeros))]), np.float32)
            )
            for launch in self.launches:
                for argument in launch.arguments:
                    self._upload(argument)
        except (MemoryError, _error_type()) as error:
            raise StretchError(f"the OpenCL device `{device.name}` has no memory for the subgraph: {error}") from error
        if device.traits.cpu:
            # PoCL compiles a kernel for its work-group size when it is launched first: not in the first inference.
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
        return OpenCLInvocation(
            self.device, self.commands, dict(zip(self.inputs, inputs, strict=True)), dict(zip(self.outputs, outputs, strict=True))
        )

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
        commands = []
        regions = self._regions()
        for launch in self.launches:
            kernel = self._programs.kernel(launch.kernel, launch.defines)
            arguments: list[Any] = []
            for argument in launch.arguments:
                arguments += self._values(argument, external, regions)
            kernel.set_args(*arguments)
            commands.append(Command(launch, kernel, launch.global_size, launch.local, regions))
        return commands

    def _values(self, argument: Argument, external: Mapping[str, Any], regions: Mapping[str, Any]) -> list[Any]:
        match argument:
            case Tensor(view):
                if view.where == "device":
                    memory = regions[view.buffer]
                else:
                    memory = self._constants[id(argument)] if view.where == "constant" else external[view.buffer]
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
            self._constants[id(argument)] = self._buffer(argument.values.astype(types[argument.kind], copy=False))
        elif isinstance(argument, Tensor) and argument.values is not None:
            self._constants[id(argument)] = self._buffer(argument.values.astype(np.float16 if self._half else np.float32, copy=False))

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
