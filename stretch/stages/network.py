"""First step: load a model by name or as a module, and capture its operators."""

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

#: Returns a context manager that reports and times a named phase.
Phase = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class CapturedNetwork:
    """The original network."""

    loaded: LoadedModel  # The network as a module, with the source of its weights.
    captured: "Captured"  # The network as an operator graph with its weights.

    @property
    def graph(self) -> OpGraph:
        """Operators of the network."""
        return self.captured.graph

    @property
    def portable(self) -> "CapturedNetwork":
        """The network, named after its file without the folder if it was read from one."""
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
        shape: Shape of the input, batch first, or of several inputs, or a function of the loaded model; the model's default if None.
        weights: ``default``, ``none`` or a file.
        fit_statistics: As in `load_model`; may be off if only the graph is needed.
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
    """Return the requested shapes; None for a file, which was loaded with them and has its own input names."""
    return None if isinstance(model, str) and is_file(model) else shape


def check_numbers(module: "nn.Module", name: str) -> None:
    """Refuse weights and statistics that are not finite, because they make all results meaningless."""
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
    """A network's graph for a prediction."""

    name: str  # Name or path of the model.
    graph: OpGraph  # Operators; some may be opaque.
    refusal: str | None = None  # Reason why it was not traced, or why `stretch branch` refuses it; None if it was traced.
    instead: str = ""  # Reader used in place of tracing.
    warnings: tuple[str, ...] = ()  # Warnings about the file.


#: Readers of other files for predictions, by file suffix; a tool adds its reader in its file ``reader.py``.
READERS: dict[str, Callable[[str, InputShapes | None], OpGraph]] = {}

#: Names of readers for networks that tracing refuses.
BY_EXPORT, BY_SHAPES = "torch.export", "the shapes that ONNX infers"


def read_graph(model: str, shape: InputShapes | None = None, *, weights: str = "none", trust_code: bool = False) -> ReadGraph:
    """Read a network's graph for a prediction, also of networks that `stretch branch` refuses and of ONNX files without torch.

    Args:
        model: A name of `stretch list models`, Python code, or a file: an ONNX file of any exporter, or a file that a tool reads.
        shape: Shape of the input, batch first, or of several inputs, images as N×C×H×W; the model's default if None.

    Raises:
        UsageError: If an input has no size, or cannot have the requested size.
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
    """Load a model and capture its graph, by `torch.export` if tracing fails."""
    # values of weights do not matter, so trained weights need no download
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
