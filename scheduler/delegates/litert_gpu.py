"""The delegate `litert:GPU`: LiteRT's compiled models on a GPU (WebGPU on Linux and Windows, Metal on macOS), in a process of its own.

Their Python interface holds the interpreter's lock while it computes, and two of their WebGPU sessions in one process crash.
"""

import glob
import importlib.util
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from predictors.errors import StretchError, first_line
from predictors.install import install_line
from scheduler.delegates.base import Array, Compiled, Invocation, NodePlace, UnableError, delegates
from scheduler.delegates.litert import LiteRtDelegate, nchw_shape, quiet, to_nchw, to_nhwc
from scheduler.delegates.process.delegate import ChildProcess, ProcessCompiled
from scheduler.shared import can_share

if TYPE_CHECKING:
    from scheduler.bundle.load import Bundle

#: Name of this delegate, by which its child process finds it.
NAME = "litert:GPU"

_Shapes = Mapping[str, tuple[int, ...]]


class AcceleratedInvocation(Invocation):
    """A compiled model with buffers of its accelerator; converts at the border."""

    def __init__(self, model: Any, ends: tuple[_Shapes, _Shapes], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._model = model
        self._buffers = model.create_input_buffers(0), model.create_output_buffers(0)
        self._reads = list(zip(self._buffers[0], inputs, [np.empty(shape, np.float32) for shape in ends[0].values()], strict=True))
        self._writes = list(zip(self._buffers[1], outputs, ends[1].values(), strict=True))

    def run(self) -> None:
        """Write the inputs, channels last, compute, read the outputs, channels first."""
        try:
            for buffer, array, turned in self._reads:
                to_nhwc(array, turned)
                buffer.write(turned)
            self._model.run_by_index(0, *self._buffers)
            for buffer, array, shape in self._writes:
                to_nchw(buffer.read(prod(shape), np.float32).reshape(shape), array)
        except RuntimeError as error:
            raise UnableError(f"LiteRT's accelerator ended with an error, its device may be lost: {first_line(error)}") from error


class AcceleratedCompiled(Compiled):
    """A TFLite file of one signature on an accelerator; inputs and outputs are NCHW, as everywhere outside of it."""

    def __init__(self, model: Any, ends: tuple[_Shapes, _Shapes]) -> None:
        super().__init__(*({name: nchw_shape(shape) for name, shape in shapes.items()} for shapes in ends))
        self._model, self._ends = model, ends

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> AcceleratedInvocation:
        """Tie the model to `inputs` and `outputs`, with buffers of the accelerator for each binding."""
        self.check(inputs, outputs)
        return AcceleratedInvocation(self._model, self._ends, inputs, outputs)


@delegates.register(NAME)
class LiteRtGpuDelegate(LiteRtDelegate):
    """Runs signatures of the bundle's TFLite file on a GPU, whole or not at all.

    A bundle's signature is compiled by a child process, which has this delegate too and calls `compile`.
    """

    summary = "LiteRT on a GPU through WebGPU or Metal, in a process of its own (never ran on one yet)"
    precisions = ("fp32", "fp16")
    asynchronous = shares = True
    #: What compiles the model: a name of LiteRT's `HardwareAccelerator`.
    accelerator: ClassVar[str] = "GPU"
    #: Where Linux lists the devices that it needs one of.
    devices: ClassVar[str] = "/dev/dri/renderD*"

    def __init__(self, cores: tuple[int, ...] = ()) -> None:
        super().__init__(cores)
        self._line: ChildProcess | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def create(cls, cores: tuple[int, ...]) -> Self:
        """A delegate whose child is pinned to `cores`."""
        return cls(cores)

    @classmethod
    def unavailable(cls) -> str | None:
        """Whether LiteRT's compiled models are missing, or a GPU."""
        if importlib.util.find_spec("ai_edge_litert.compiled_model") is None:
            return f"ai_edge_litert with compiled models is not installed ({install_line('litert')})"
        if not can_share():
            return "this system has no anonymous memory that processes share"
        return "this machine has no GPU that Linux drives" if sys.platform == "linux" and not glob.glob(cls.devices) else None

    def compile(self, model: Path) -> AcceleratedCompiled:  # type: ignore[override] # a compiled subgraph of another kind
        """Compile a TFLite file of one signature in this process."""
        from ai_edge_litert.compiled_model import CompiledModel, GpuOptions, HardwareAccelerator, Options

        # halves only where the file has them is more than LiteRT offers: all is computed in fp32
        options = Options(hardware_accelerators=HardwareAccelerator[self.accelerator], gpu_options=GpuOptions(enforce_f32=True))
        try:
            with quiet():
                compiled = CompiledModel.from_file(str(model), options=options)
        except RuntimeError as error:
            raise UnableError(f"LiteRT cannot compile {model.name} for the {self.accelerator}: {first_line(error)}") from error
        if not compiled.is_fully_accelerated():
            raise UnableError(f"{model.name} has an operator that LiteRT's {self.accelerator} does not take")
        (signature,) = compiled.get_signature_list()
        details = compiled.get_input_tensor_details(signature), compiled.get_output_tensor_details(signature)
        ends = tuple({name: tuple(tensor["shape"]) for name, tensor in tensors.items()} for tensors in details)
        return AcceleratedCompiled(compiled, (ends[0], ends[1]))

    def compile_from(self, bundle: "Bundle", name: str) -> ProcessCompiled:  # type: ignore[override] # as above
        """Compile the signature called `name`, a subgraph or a join, in the child process."""
        file = self._file(bundle)
        if self._line is None:
            self._line, self._folder = ChildProcess(NAME, self._cores), tempfile.TemporaryDirectory(prefix="nn-stretch-")
        assert self._folder is not None
        path = Path(self._folder.name) / f"{name}.tflite"
        path.write_bytes(file.alone(name))
        key, reply = self._line.make(do="compile", model=str(path))
        there = [{tensor: tuple(shape) for tensor, shape in reply[what]} for what in ("inputs", "outputs")]
        for shapes, known in zip(there, file.ends(name), strict=True):
            if list(shapes.items()) != [(tensor, nchw_shape(shape)) for tensor, shape in known.items()]:
                raise StretchError(f"LiteRT gives the tensors of signature `{name}` other shapes than the plan of {file.path}")
        return ProcessCompiled(self._line, key, there[0], there[1])

    def places_from(self, bundle: "Bundle", name: str) -> list[NodePlace]:
        """Each operator, without times: the accelerator tells none."""
        return [NodePlace(writes, code, f"LiteRT's {self.accelerator}") for writes, code in self._file(bundle).operators(name)]

    def close(self) -> None:
        """End the child, at once."""
        if self._line is not None and self._folder is not None:
            self._line.end()
            self._folder.cleanup()

    def abort(self, why: str) -> bool:
        """End the child where it hangs: the call comes back with `why`, and the next one finds a new child."""
        if self._line is not None:
            self._line.abort(why)
        return self._line is not None

    @property
    def restarting(self) -> bool:
        """Whether a new child is being made ready."""
        return self._line is not None and self._line.reviving
