"""First stage: a model by name, or as a module, and its computations as data."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from predictors.errors import StretchError, UsageError, WholeNumbersError
from predictors.graph import OpGraph
from predictors.shapes import InputShapes
from stretch.network.models.load import LoadedModel, is_file, load_model
from stretch.plugins import load_tools

if TYPE_CHECKING:
    from torch import nn

    from stretch.network.capture import Captured

#: Context manager of a named phase, which reports and times it.
Phase = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class CapturedNetwork:
    """The original network."""

    loaded: LoadedModel  # As a module, with the source of its weights.
    captured: "Captured"  # As data, with its weights.

    @property
    def graph(self) -> OpGraph:
        """The network's operators."""
        return self.captured.graph

    @property
    def portable(self) -> "CapturedNetwork":
        """Return the network, named by its file without the folder if it was read from one."""
        if not is_file(self.loaded.name):
            return self
        graph = replace(self.graph, name=self.loaded.name.rpartition("/")[2])
        return replace(self, captured=replace(self.captured, graph=graph))


def read_network(
    model: str | Callable[[], LoadedModel],
    shape: "InputShapes | Callable[[LoadedModel], Sequence[int]] | None" = None,
    *,
    weights: str = "default",
    seed: int = 0,
    trust_code: bool = False,
    fit_statistics: bool = True,
    phase: Phase = lambda name: nullcontext(),
) -> CapturedNetwork:
    """Load a model and capture it.

    Args:
        shape: Of the input, batch first, or of several inputs, or a function of the loaded model; the model's usual one if None.
        weights: ``default``, ``none`` or a file.
        fit_statistics: As of `load_model`; where only the graph is read, it may be left out.
    """
    from stretch.network.capture import capture

    with phase("load"):
        if isinstance(model, str):
            size = None if callable(shape) else shape
            loaded = load_model(model, weights=weights, seed=seed, trust_code=trust_code, input_shape=size, fit_statistics=fit_statistics)
        else:
            loaded = model()
    check_numbers(loaded.module, loaded.name)
    traced_shape = shape(loaded) if callable(shape) else _requested_shape(model, shape)
    with phase("capture"):
        captured = capture(loaded.module, loaded.input_shape if traced_shape is None else traced_shape, loaded.name)
    return CapturedNetwork(loaded, captured)


def _requested_shape(model: object, shape: InputShapes | None) -> InputShapes | None:
    """Return the shapes that are asked for; None of a file, which has been loaded with them and has names of its own for its inputs."""
    return None if isinstance(model, str) and is_file(model) else shape


def check_numbers(module: "nn.Module", name: str) -> None:
    """Refuse weights and statistics that are not finite: whatever is computed with them is nothing."""
    from torch.nn.parameter import is_lazy

    for kind, tensors in (("weight", module.named_parameters()), ("statistic or constant", module.named_buffers())):
        for key, tensor in tensors:
            if is_lazy(tensor):
                raise StretchError(f"the {kind} `{key}` of `{name}` has no size yet", "call the network once on an input before it is read")
            if not tensor.is_floating_point() or tensor.is_meta:
                continue
            # masks of attention are infinite on purpose
            bad = int((~tensor.isfinite() if kind == "weight" else tensor.isnan()).sum())
            if bad:
                raise StretchError(
                    f"the {kind} `{key}` of `{name}` has {bad} of {tensor.numel()} numbers that are not finite",
                    "use a checkpoint from before its training diverged",
                )


@dataclass(frozen=True)
class ReadGraph:
    """Parts of a network that a prediction needs."""

    name: str  # By which it was read.
    graph: OpGraph  # Its operators; some may be opaque.
    refusal: str | None = None  # Why tracing refused it, or `stretch branch` does; None where it was traced.
    instead: str = ""  # Reader that read it then.
    warnings: tuple[str, ...] = ()  # Warnings about the file.


#: Readers of other files for predictions, by the suffix of their names; a tool adds its own in its file ``reader.py``.
READERS: dict[str, Callable[[str, InputShapes | None], OpGraph]] = {}

#: Readers of networks that `stretch branch` does not read.
BY_EXPORT, BY_SHAPES = "torch.export", "the shapes that ONNX infers"


def read_graph(model: str, shape: InputShapes | None = None, *, weights: str = "none", trust_code: bool = False) -> ReadGraph:
    """Read a network as `stretch branch` reads it; one that it refuses, or an ONNX file without torch, is read for a prediction alone.

    Args:
        model: A name of `stretch list models`, Python code, or a file: an ONNX file of any exporter, or one that a tool reads.
        shape: Of the input, batch first, or of several inputs, images as N×C×H×W; the model's usual one if None.

    Raises:
        UsageError: If an input has no size, or cannot have the requested one.
        StretchError: If nothing reads the network.
    """
    load_tools("reader")
    if reader := READERS.get(Path(model).suffix):
        return ReadGraph(model, reader(model, shape))
    if not model.endswith(".onnx"):
        return _read_graph(model, shape, weights, trust_code)
    from predictors.formats.onnx import read_onnx

    if find_spec("torch") is None:
        return ReadGraph(model, read_onnx(model, shape), "torch is not installed", BY_SHAPES)
    try:
        return _read_graph(model, shape, weights, trust_code)
    except StretchError as error:
        if isinstance(error, UsageError) and not isinstance(error, WholeNumbersError):
            raise
        refused = error
    try:
        return ReadGraph(model, read_onnx(model, shape), refused.message, BY_SHAPES)
    except StretchError:
        raise refused from None


def _read_graph(model: str, shape: InputShapes | None, weights: str, trust_code: bool) -> ReadGraph:
    """Load a model and capture it; where only `torch.export` takes it, its graph alone."""
    # the content of a file is not read, and trained weights need not be fetched
    weights = weights if weights not in ("default", "none") else "default" if is_file(model) else "none"
    loaded = load_model(model, weights=weights, trust_code=trust_code, input_shape=shape, fit_statistics=False)
    from stretch.network.capture import capture

    requested, warnings = _requested_shape(model, shape), tuple(loaded.warnings)
    input_shape = loaded.input_shape if requested is None else requested
    try:
        captured = capture(loaded.module, input_shape, loaded.name)
        return ReadGraph(model, captured.graph, captured.refusal or None, BY_EXPORT, warnings)
    except UsageError:
        raise
    except StretchError as error:
        # torch's exporter is slow to import
        from stretch.network.capture.exported import capture_exported

        return ReadGraph(model, capture_exported(loaded.module, input_shape, loaded.name), error.message, BY_EXPORT, warnings)
