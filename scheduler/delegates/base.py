"""Interface of a delegate, and the list of all delegates."""

import contextlib
import importlib.util
import os
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.errors import MissingBackendError, StretchError, UnknownNameError
from predictors.registry import Registry
from scheduler.formats.onnx import open_onnx
from scheduler.progress import Progress

if TYPE_CHECKING:
    from scheduler.bundle.load import Bundle

Array = NDArray[Any]

#: Allocates zeroed memory; its argument is the number of bytes.
Allocate = Callable[[int], NDArray[np.uint8]]

ENTRY_POINT_GROUP = "nn_stretch.delegates"

#: Milliseconds of unmeasured work before a measurement: an idle GPU slows down, caches hold the data of other networks, and
#: threads of the previous network still wait for work.
WARM_MS = 50.0


def warm_up(run: Callable[[], object]) -> None:
    """Call `run` repeatedly until `WARM_MS` have passed, at least once."""
    end = perf_counter() + WARM_MS / 1e3
    run()
    while perf_counter() < end:
        run()


class UnableError(StretchError):
    """A delegate cannot run a subgraph, or lost its device; another placement may run it."""


class Invocation(ABC):
    """A compiled subgraph tied to its buffers, so that running it allocates nothing."""

    @abstractmethod
    def run(self) -> None:
        """Read the input buffers, compute and write the output buffers; return when they are written."""

    def conversions(self) -> Sequence[tuple[str, int, int]]:
        """Return the changes of layout or precision at the border that were separate steps in the last run.

        Returns:
            Kind of each conversion, with its start and end on the clock of
            `time.perf_counter_ns`; empty if nothing is converted,
            or if kernels of the subgraph convert.
        """
        return ()


class AsyncInvocation(Invocation):
    """An invocation on a processor with its own command queue."""

    @abstractmethod
    def enqueue(self) -> None:
        """Put map, conversions, kernels and unmap into the processor's queue; return at once."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the last enqueued work is done and the output buffers may be read."""

    def times(self) -> tuple[int, int] | None:
        """Return the times at which the processor began and ended the last enqueued work, on the clock of `time.perf_counter_ns`.

        None where the processor does not report it: then the time from `enqueue` to the end of `wait` replaces it.
        """
        return None

    def run(self) -> None:
        """Run by `enqueue`, then `wait`."""
        self.enqueue()
        self.wait()


@dataclass(frozen=True)
class NodePlacement:
    """The placement of one operator of a subgraph."""

    name: str  # Name of the ONNX node.
    op: str  # Its operator type.
    reason: str  # Reason in words why the operator runs there or was replaced.
    ms: float | None = None  # Measured time of one run, or None where the delegate cannot report it.


def pieces_of(array: Array) -> tuple[int, int, int] | None:
    """Return number, length and distance, in bytes, of the equally spaced pieces of memory of an array; None if it has no such pieces."""
    length, axes = array.itemsize, [axis for axis in zip(array.shape, array.strides, strict=True) if axis[0] != 1]
    while axes and axes[-1][1] == length:
        length *= axes.pop()[0]
    count, distance = axes.pop() if axes else (1, length)
    while axes and axes[-1][1] == count * distance:
        count *= axes.pop()[0]
    return None if axes else (count, length, distance)


class Compiled(ABC):
    """A subgraph made ready for one processor.

    Args:
        inputs: Name and shape of each input, in order.
        outputs: Name and shape of each output, in order.
    """

    #: Whether `bind` takes arrays of several pieces of memory at equal distances.
    takes_slices = False

    def __init__(self, inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[int, ...]]) -> None:
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)

    @abstractmethod
    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Invocation:
        """Tie the subgraph to buffers that live as long as the invocation.

        Args:
            inputs: C-contiguous arrays of the subgraph's input shapes, in order; with `takes_slices` also slices of such arrays.
            outputs: Arrays of the output shapes, under the same rules; each run overwrites them.

        Raises:
            StretchError: If number, shape or memory layout of a buffer is wrong.
        """

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run once, from `inputs` into `outputs`."""
        self.bind(inputs, outputs).run()

    def check(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Raise StretchError unless the buffers fit this subgraph."""
        for side, shapes, arrays in (("input", self.inputs, inputs), ("output", self.outputs, outputs)):
            if len(shapes) != len(arrays):
                raise StretchError(f"the subgraph has {len(shapes)} {side}s, {len(arrays)} buffers were given")
            for (name, shape), array in zip(shapes.items(), arrays, strict=True):
                if array.shape != shape:
                    raise StretchError(f"{side} `{name}` has shape {list(shape)}, its buffer {list(array.shape)}")
                if not (array.flags.c_contiguous or (self.takes_slices and pieces_of(array))):
                    raise StretchError(f"the buffer of {side} `{name}` is not contiguous")


class TunedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel of a subgraph before and after it was tuned; the fields are the keys of `stretch profile tune --json`."""

    name: str  # Operator of the graph that the kernel computes.
    subgraph: str  # Subgraph that the kernel is part of.
    kernel: str  # Name of the kernel's program.
    shape: str  # Shapes of the kernel's tensors, in words.
    macs: int  # Multiply-accumulates.
    bytes: int  # Bytes read and written.
    precision: str  # Precision of the kernel's arithmetic.
    before_ms: float | None  # Time before tuning; None for a kernel that tuning added.
    after_ms: float | None  # Time after tuning; None for a kernel that tuning removed.
    choice: dict[str, Any] | None  # Parameters chosen for the kernel in this run, or None.


class Tuning(ABC):
    """The kernels of a subgraph before they are tuned.

    Args:
        steps: Number of times that `tune` calls its `step`.
    """

    def __init__(self, device: str, steps: int) -> None:
        self.device = device
        self.steps = steps

    @abstractmethod
    def tune(self, budget_s: float, progress: Progress) -> dict[tuple[str, str], Any]:
        """Measure other forms of the kernels, and keep the faster ones for this device and later runs.

        Args:
            budget_s: Seconds after which no further kernel is begun.
        """

    @abstractmethod
    def rows(self, choices: Mapping[tuple[str, str], Any]) -> list[TunedKernel]:
        """Return each kernel with its time before and after.

        Args:
            choices: Results of `tune`, for this subgraph and those that share its kernels.
        """


class Delegate(ABC):
    """Code that compiles and runs subgraphs on one kind of processor.

    Register a class with ``@delegates.register("name")``, or from another
    package through the entry point group ``nn_stretch.delegates``.
    """

    #: Description in a few words, for `stretch list delegates`.
    summary: ClassVar[str] = ""
    #: Files that the delegate compiles: each subgraph's ONNX file, or its signature in the bundle's TFLite file.
    form: ClassVar[Literal["onnx", "tflite"]] = "onnx"
    #: Whether its invocations are instances of `AsyncInvocation`.
    asynchronous: ClassVar[bool] = False
    #: Precisions of the subgraphs it runs.
    precisions: ClassVar[tuple[str, ...]] = ("fp32",)
    #: Whether invocations of one compiled subgraph may run at the same time, on any thread.
    reentrant: ClassVar[bool] = False
    #: Whether the outputs are the subgraph's results.
    computes: ClassVar[bool] = True
    #: Kinds of processors that the delegate drives without a mapping, such as ``gpu``; other kinds run on it if they are mapped to it.
    drives: ClassVar[tuple[str, ...]] = ()
    #: Fusion rules (`predictors/fusion_rules`) by which `stretch profile` measures its processors; empty if it reports no times of kernels.
    fuses: ClassVar[str] = ""
    #: Distribution of its runtime, whose version a profile states.
    package: ClassVar[str] = ""
    #: Delegate that runs subgraphs for which this one raises `UnableError`; None: such a subgraph is a failure.
    falls_back_on: str | None = None
    #: Tuning modes and the candidates of each, the default first; a delegate with modes defines `tuning_from`.
    tunes: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def unavailable(cls) -> str | None:
        """Return why the delegate cannot run on this machine, or None if it can."""
        return None

    @classmethod
    def simulated(cls) -> bool:
        """Return whether the delegate runs on a simulator here, whose results are valid and whose times are not."""
        return False

    @classmethod
    def needs_core(cls) -> bool:
        """Return whether the delegate's processor computes on a core of this machine's CPU."""
        return False

    @classmethod
    def preferred(cls) -> bool:
        """Return whether an available delegate is preferred over others for the same kind of processor."""
        return False

    @classmethod
    def create(cls, cores: tuple[int, ...]) -> Self:
        """Return a delegate with default options on `cores`; the calling thread is pinned to the first core."""
        return cls()

    @classmethod
    def create_untuned(cls, cores: tuple[int, ...]) -> Self:
        """Return a delegate as `create` does, with untuned kernels: their times depend on their shapes alone, not on which were tuned."""
        return cls.create(cores)

    @abstractmethod
    def compile(self, model: Path) -> Compiled:
        """Make the subgraph in the file `model` ready to run.

        Raises:
            StretchError: If the file is unreadable or has an operator that
                this delegate does not run; an `UnableError` if another delegate may run it.
            MissingBackendError: If a library this delegate needs is missing.
        """

    def abort(self, reason: str) -> bool:
        """Stop the call that is running, from another thread, because it hangs.

        Args:
            reason: Message of the call's error, as the end of a sentence.

        Returns:
            Whether the call returns now and the delegate may be used again; most delegates cannot abort a call.
        """
        del reason
        return False

    @property
    def restarting(self) -> bool:
        """Whether a call is slow because its runtime is being restarted, which does not count as hanging."""
        return False

    def allocator(self) -> Allocate | None:
        """Return an allocator of memory that this delegate reads and writes faster than ordinary memory, or None."""
        return None

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what outlives a call, such as a process; called once, when no compiled subgraph is in use."""

    def compile_from(self, bundle: "Bundle", name: str) -> Compiled:
        """Make a subgraph of a bundle ready to run, from the file format of this delegate.

        Raises:
            StretchError: As `compile`.
            MissingBackendError: As `compile`.
        """
        return self.compile(bundle.file(bundle.subgraph(name).file))

    def node_placements_from(self, bundle: "Bundle", name: str) -> list[NodePlacement]:
        """Return the placement of each operator of a bundle's subgraph, with the time of its kernel if it can be measured.

        Every delegate reports the times of its kernels here, however it measures them; `stretch explain` prints them.
        A delegate that reports operators runs the subgraph here, on random inputs.

        Returns:
            Each operator of the subgraph, then kernels that the delegate added. An operator without a time is computed
            in another one's kernel, as its reason says, or by a delegate that reports no times.
        """
        return self.node_placements(bundle.file(bundle.subgraph(name).file))

    def tuning_from(self, bundle: "Bundle", name: str, mode: str) -> Tuning:
        """Prepare the kernels of a bundle's subgraph for tuning by `stretch profile tune`.

        Args:
            mode: A key of `tunes`.

        Raises:
            StretchError: If this delegate has nothing to tune.
        """
        raise StretchError(
            f"{type(self).__name__} has nothing to tune in subgraph `{name}`", "`stretch list delegates` lists the tunable ones"
        )

    def node_placements(self, model: Path) -> list[NodePlacement]:
        """Return the placements as `node_placements_from` does, for the ONNX file `model`."""
        return [NodePlacement(name, op, "runs as it stands") for name, op in open_onnx(model).named_nodes]


class CoreDelegate(Delegate):
    """A delegate that computes on CPU cores, one thread on each."""

    #: Command that installs `package`; empty if the package is always installed.
    install: ClassVar[str] = ""

    def __init__(self, cores: tuple[int, ...] = ()) -> None:
        self._cores = cores

    @classmethod
    def create(cls, cores: tuple[int, ...]) -> Self:
        """Return a delegate with one thread on each of `cores`."""
        return cls(cores)

    @classmethod
    def unavailable(cls) -> str | None:
        """Return the reason if its package is missing, else None."""
        missing = cls.install and importlib.util.find_spec(cls.package) is None
        return f"{cls.package} is not installed ({cls.install})" if missing else None


def load_package(name: str, hint: str) -> ModuleType:
    """Import the package of a delegate's runtime where it is first needed, and return it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingBackendError(f"{name} is not installed", hint) from error


delegates: Registry[type[Delegate]] = Registry("delegate")

_entry_points: dict[str, EntryPoint] = {}


def load_plugins() -> dict[str, str]:
    """Register the delegates of other installed packages; repeated calls are allowed.

    Returns:
        Entry points that could not be loaded, with the reason of each; a broken
        package does not prevent the others from loading.
    """
    broken: dict[str, str] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        source = f" ({_origin(point)})"
        try:
            loaded = point.load()
        except (Exception, SystemExit) as error:
            broken[point.name] = f"{type(error).__name__}: {error}{source}"
            continue
        if not (isinstance(loaded, type) and issubclass(loaded, Delegate)):
            broken[point.name] = f"`{point.value}` is not a Delegate{source}"
        elif isabstract(loaded):
            broken[point.name] = f"`{point.value}` lacks `{min(loaded.__abstractmethods__)}`{source}"
        elif point.name in delegates and delegates.get(point.name) is not loaded:
            broken[point.name] = f"the name is taken by {delegates.get(point.name).__module__}{source}"
        else:
            _entry_points[point.name] = point
            delegates.register(point.name)(loaded)
    return broken


def origin(name: str) -> str | None:
    """Return the package and the entry point of a delegate, in words; None for a delegate of nn-stretch."""
    return _origin(_entry_points[name]) if name in _entry_points else None


def _origin(point: EntryPoint) -> str:
    package = f"package {point.dist.name}, " if point.dist is not None else ""
    return f"{package}entry point {point.value}"


def get_delegate(name: str) -> type[Delegate]:
    """Return the delegate called `name`, from this package or a plug-in.

    Raises:
        UnknownNameError: If no delegate has this name; the hint has the closest name.
        StretchError: If a plug-in of this name cannot be loaded.
    """
    if name not in delegates:
        broken = load_plugins()
        if name in broken:
            raise StretchError(f"delegate `{name}` cannot be loaded: {broken[name]}", "repair or uninstall its package")
    if name not in delegates:
        raise UnknownNameError.among("delegate", name, delegates)
    return delegates.get(name)


_STDERR = threading.Lock()


@contextlib.contextmanager
def redirect_output(file: IO[Any], descriptor: int = 2) -> Iterator[None]:
    """Redirect the process's standard error to a file, native code included; the file is rewound afterwards.

    Args:
        descriptor: 1 to redirect standard output instead.

    Raises:
        OSError: Or ValueError or AttributeError, if the process has no standard error; nothing is changed then.
    """
    (sys.stdout if descriptor == 1 else sys.stderr).flush()
    original = os.dup(descriptor)
    os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        os.dup2(original, descriptor)
        os.close(original)
        file.seek(0)


@contextlib.contextmanager
def filter_stderr(*notes: bytes) -> Iterator[None]:
    """Hold back the output of native code on stderr, and pass on afterwards the lines that begin with none of `notes`.

    Standard error belongs to the whole process, so lines of other threads
    are passed on late, too.
    """
    with _STDERR, tempfile.TemporaryFile() as captured:
        try:
            with contextlib.ExitStack() as stack:
                with contextlib.suppress(OSError, ValueError, AttributeError):  # the process has no standard error
                    stack.enter_context(redirect_output(captured))
                yield
        finally:
            for line in captured:
                if not line.startswith(notes):
                    os.write(2, line)
