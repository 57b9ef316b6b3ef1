"""The `dsp` delegate: ONNX Runtime's QNN provider, a Hexagon DSP on a device and its simulator on x86-64.

`onnxruntime-qnn` is a plug-in of the ordinary `onnxruntime` package: it brings a library
that registers one more execution provider, and Qualcomm's libraries.
The CPU takes over no node: a subgraph with a node that the DSP cannot run is refused.
"""

import ctypes
import hashlib
import importlib
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from predictors.errors import MissingBackendError, StretchError, UnknownNameError, first_line, install_line
from predictors.files import cache_folder
from scheduler.bundle.load import Bundle
from scheduler.delegates.base import Array, Delegate, NodePlacement, delegates, redirect_output
from scheduler.delegates.ort_session import SessionCompiled
from scheduler.formats.onnx import open_onnx

INSTALL = install_line("qnn")

#: Name under which the plug-in is registered with ONNX Runtime.
PROVIDER = "QNNExecutionProvider"

_LOADING = threading.Lock()


@dataclass(frozen=True)
class QnnLibrary:
    """The loaded provider."""

    devices: tuple[Any, ...]  # ONNX Runtime's devices with this provider.
    backend: str  # Path of the HTP library.
    versions: str  # Versions that a compiled subgraph depends on, in addition to its file.


def missing() -> str | None:
    """Return the reason why the provider cannot be loaded, or None if all files exist."""
    package = _package()
    if package is None:
        return "onnxruntime-qnn is not installed"
    for library, file in (("provider", package.get_library_path()), ("HTP", package.get_qnn_htp_path())):
        if not Path(file).is_file():
            return f"onnxruntime-qnn has no {library} library ({Path(file).name} is missing)"
    return None


def load_library() -> QnnLibrary:
    """Load the libraries and register the provider with ONNX Runtime."""
    problem = missing()
    if problem:
        raise MissingBackendError(f"the `dsp` delegate cannot run: {problem}", INSTALL)
    with _LOADING:
        return _load()


def session_options(library: QnnLibrary, settings: Mapping[str, str], provider: Mapping[str, str] | None = None) -> Any:
    """Return the options of a single-threaded ONNX Runtime session on this provider.

    Args:
        settings: Entries of the session's configuration.
        provider: Options of the provider in addition to its backend, such as the chip.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # ONNX Runtime raises its failures as exceptions; it would print them as well.
    options.log_severity_level = 4
    for key, value in settings.items():
        options.add_session_config_entry(key, value)
    options.add_provider_for_devices(library.devices, {"backend_path": library.backend, **(provider or {})})
    return options


def _package() -> ModuleType | None:
    try:
        return importlib.import_module("onnxruntime_qnn")
    except ImportError:
        return None


@cache
def _load() -> QnnLibrary:
    import onnxruntime

    package = _package()
    assert package is not None
    backend = str(package.get_qnn_htp_path())
    # The library is loaded here first, because the provider hides the linker's error message.
    try:
        # loading prints a line, at first into the C library's buffer, where programs expect data
        with Path(os.devnull).open("w+b") as nowhere, redirect_output(nowhere, 1):
            ctypes.CDLL(backend)
            ctypes.CDLL(None).fflush(None)
    except OSError as error:
        raise MissingBackendError(f"the `dsp` delegate cannot load {Path(backend).name}: {error}", INSTALL) from error
    try:
        if not _devices(onnxruntime):
            onnxruntime.register_execution_provider_library(PROVIDER, str(package.get_library_path()))
    # ONNX Runtime's exceptions have no common base class.
    except Exception as error:
        raise MissingBackendError(f"the `dsp` delegate cannot load the QNN provider: {first_line(error)}", INSTALL) from error
    try:
        installed = version("onnxruntime-qnn")
    except PackageNotFoundError:
        installed = "unknown"
    devices = _devices(onnxruntime)
    if not devices:
        raise StretchError("the QNN provider finds no device on this machine", "choose another delegate with --map dsp=cpu")
    return QnnLibrary(devices, backend, f"onnxruntime {onnxruntime.__version__}, onnxruntime-qnn {installed}, {platform.machine()}")


def _devices(onnxruntime: ModuleType) -> tuple[Any, ...]:
    return tuple(device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER)


#: Compiler in a separate process: QNN's offline compiler keeps the chip of its first call for the life of its process,
#: so a new process compiles each file; then the same file always gives the same code.
_START = "import sys; from scheduler.delegates.dsp import compile_and_run; compile_and_run(*sys.argv[1:])"

#: Time limit for compiling and running a subgraph once, s.
LIMIT = 900


@dataclass(frozen=True)
class Chip:
    """A chip in QNN's numbering."""

    name: str  # Its commercial name.
    soc_model: int  # Number of the chip in QNN.
    htp_arch: int  # Version of the chip's Hexagon tensor processor.


#: Chips that code can be compiled for (Qualcomm's QNN documentation, list of SoCs).
CHIPS = {
    "sm8350": Chip("Snapdragon 888", 30, 68),
    "sm8450": Chip("Snapdragon 8 Gen 1", 36, 69),
    "sm8550": Chip("Snapdragon 8 Gen 2", 43, 73),
}


def find_chip(name: str) -> Chip:
    """Return the chip called `name`."""
    if name not in CHIPS:
        raise UnknownNameError.among("chip", name, list(CHIPS))
    return CHIPS[name]


def compile_context(model: Path, chip: str, out: Path, x: Array) -> Array:
    """Compile a subgraph for a chip and run the code once on the simulator of this machine.

    Args:
        model: Int8 ONNX file with embedded weights.
        chip: A key of `CHIPS`.
        out: ONNX file to write; its one node holds the code (EPContext).
    """
    find_chip(chip)
    load_library()
    inputs_file, outputs_file = out.with_suffix(".in.npy"), out.with_suffix(".out.npy")
    np.save(inputs_file, x)
    command = [sys.executable, "-c", _START, str(model), chip, str(out), str(inputs_file), str(outputs_file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        if done.returncode or not outputs_file.is_file():
            reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            raise StretchError(f"QNN cannot compile {model.name} for {chip}: {reason}")
        outputs: Array = np.load(outputs_file, allow_pickle=False)
    except subprocess.TimeoutExpired as error:
        raise StretchError(f"QNN did not compile {model.name} for {chip} within {LIMIT} s") from error
    finally:
        inputs_file.unlink(missing_ok=True)
        outputs_file.unlink(missing_ok=True)
    return outputs


def open_context(file: Path, chip: str) -> Any:
    """Return an ONNX Runtime session of code compiled for a chip, without fallback on the CPU."""
    return _chip_session(file, find_chip(chip), {})


def _chip_session(file: Path, chip: Chip, settings: dict[str, str]) -> Any:
    import onnxruntime

    provider = {"soc_model": str(chip.soc_model), "htp_arch": str(chip.htp_arch)}
    options = session_options(load_library(), {"session.disable_cpu_ep_fallback": "1", **settings}, provider)
    try:
        return onnxruntime.InferenceSession(str(file), options)
    # ONNX Runtime's exceptions have no common base class.
    except Exception as error:
        reason = first_line(error)
        raise StretchError(f"the QNN provider cannot load {file.name} for {chip.name}: {reason}") from error


def compile_and_run(model: str, chip: str, out: str, inputs_file: str, outputs_file: str) -> None:
    """Run as the child process of `compile_context`; exit with a sentence on failure."""
    settings = {"ep.context_enable": "1", "ep.context_file_path": out, "ep.context_embed_mode": "1"}
    try:
        _chip_session(Path(model), find_chip(chip), settings)
        session = open_context(Path(out), chip)
    except StretchError as error:
        sys.exit(error.message)
    (y,) = session.run(None, {session.get_inputs()[0].name: np.load(inputs_file, allow_pickle=False)})
    np.save(outputs_file, y)


#: Function that opens a session from a file and session settings.
Open = Callable[[Path, dict[str, str]], Any]


def cached_context(folder: Path | None, model: Path, versions: str, open_session: Open) -> Any:
    """Return a session from the cache, or compile `model` and cache the result.

    The cache key is the SHA-256 of the model and the versions, so a cached
    file always fits. A file that cannot be read is compiled again. If the
    folder cannot be written, nothing is cached.
    """
    folder = folder or cache_folder("qnn")
    key = hashlib.sha256(versions.encode() + b"\0" + model.read_bytes()).hexdigest()
    cached = folder / f"{key}.onnx"
    if cached.is_file():
        try:
            return open_session(cached, {})
        except Exception:
            # Whatever is wrong with a cached file, its model still exists.
            cached.unlink(missing_ok=True)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            compiled = Path(draft) / "context.onnx"
            settings = {"ep.context_enable": "1", "ep.context_file_path": str(compiled), "ep.context_embed_mode": "1"}
            session = open_session(model, settings)
            if compiled.is_file():
                compiled.replace(cached)
            return session
    except OSError:
        return open_session(model, {})


#: Operators with a scale; nodes between two of these operators compute in integers.
QUANTISERS = ("QuantizeLinear", "DequantizeLinear")

_LOCK = threading.Lock()


@delegates.register("dsp")
class DspDelegate(Delegate):
    """Runs int8 subgraphs on the Hexagon tensor processor (HTP) through QNN.

    A run blocks its thread and releases the GIL. The compiled form of a
    subgraph is kept in the user's cache, keyed by the file's hash and the
    versions that made it.

    Args:
        cache: Folder of compiled subgraphs; the user's cache folder if None.
        chip: Run the code that a bundle brings for this chip (a key of
            `scheduler.delegates.dsp.CHIPS`) instead of compiling its
            subgraphs: a user who sets a chip trusts the author of the bundle.
    """

    summary = "int8 on a Hexagon DSP, or its simulator on x86-64 (QNN)"
    precisions = ("int8",)
    drives = ("dsp",)

    def __init__(self, cache: Path | None = None, chip: str | None = None) -> None:
        self._cache = cache
        self._chip = chip
        if chip is not None:
            find_chip(chip)

    @classmethod
    def unavailable(cls) -> str | None:
        """Return the missing package or library, or None."""
        problem = missing()
        return f"{problem} ({INSTALL})" if problem else None

    @classmethod
    def simulated(cls) -> bool:
        """Return whether the DSP of this machine is the HTP simulator."""
        return is_simulated()

    def compile(self, model: Path) -> SessionCompiled:
        """Compile an int8 subgraph for the DSP, or load it from the cache."""
        library = load_library()
        opened = open_onnx(model)
        name = next((entry.value for entry in opened.proto.metadata_props if entry.key == "stretch.subgraph"), model.stem)
        check_int8(opened.proto, name)
        inputs, outputs = opened.ends
        if opened.external:
            session = _session(library, str(model), name)
        else:
            session = cached_context(
                self._cache, model, library.versions, lambda path, options: _session(library, str(path), name, options)
            )
        return SessionCompiled(session, inputs, outputs)

    def compile_from(self, bundle: Bundle, name: str) -> SessionCompiled:
        """Compile a bundle's subgraph, or load the bundle's code for the chip."""
        subgraph = bundle.subgraph(name)
        if self._chip is None:
            return self.compile(bundle.file(subgraph.file))
        file = bundle.manifest.contexts.get(self._chip, {}).get(name)
        if file is None:
            raise StretchError(
                f"{bundle.path} has no code of subgraph `{name}` for {self._chip}",
                f"write it with `stretch export BUNDLE --format qnn --chips {self._chip} --out NEW_BUNDLE`",
            )
        inputs, outputs = open_onnx(bundle.file(file)).ends
        return SessionCompiled(open_context(bundle.file(file), self._chip), inputs, outputs)

    def node_placements(self, model: Path) -> list[NodePlacement]:
        """Return each operator without a time: the DSP runs all of them as one graph."""
        self.compile(model)
        target = "the Hexagon simulator" if is_simulated() else "the DSP"
        placements = []
        for name, op in open_onnx(model).named_nodes:
            reason = f"a scale of the integers in {target}'s graph" if op in QUANTISERS else f"in int8, part of {target}'s graph"
            placements.append(NodePlacement(name, op, reason))
        return placements


def is_simulated() -> bool:
    """Return whether the DSP of this machine is the simulator: its results are valid, its times are not."""
    return platform.machine() in ("x86_64", "AMD64")


def check_int8(proto: Any, name: str) -> None:
    """Refuse a subgraph with a float operator, or with an operator that QNN miscomputes.

    An operator is int8 if a `DequantizeLinear` writes every tensor it reads,
    except for small constants of shape and axes.
    """
    import onnx

    real = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
    constants = {tensor.name: tensor.data_type in real and len(tensor.dims) > 0 for tensor in proto.graph.initializer}
    integers = {out for node in proto.graph.node if node.op_type == "DequantizeLinear" for out in node.output}
    for node in proto.graph.node:
        if node.op_type == "EPContext":
            raise StretchError(
                f"subgraph `{name}` was compiled elsewhere, and such code is not run", "export its bundle again with `stretch export`"
            )
        if node.op_type in QUANTISERS:
            continue
        if _miscomputed(node):
            raise StretchError(
                f"subgraph `{name}`: QNN computes its operator `{node.name or node.op_type}` wrongly (average pooling over windows that overhang)",
                "run this subgraph elsewhere with --map dsp=cpu",
            )
        for tensor in node.input:
            if tensor and tensor not in integers and constants.get(tensor, True):
                raise StretchError(
                    f"subgraph `{name}` is float (operator `{node.name or node.op_type}`), the dsp delegate runs int8 alone",
                    "make it int8 with `stretch export BUNDLE --precision dsp=int8 --images DIR --out NEW_BUNDLE`, or choose another delegate with --map",
                )


def _miscomputed(node: Any) -> bool:
    """Return whether QNN 2.51 accepts an operator and computes other numbers than ONNX defines, as its conformance test shows.

    QNN divides by the wrong count in average pools whose last window overhangs
    (``ceil_mode``), and in pools of even windows that count their padding.
    """
    if node.op_type != "AveragePool":
        return False
    attributes = {a.name: a.i if not a.ints else tuple(a.ints) for a in node.attribute}
    counts_padding = attributes.get("count_include_pad") == 1 and any(attributes.get("pads", ()))
    return attributes.get("ceil_mode") == 1 or (counts_padding and any(size % 2 == 0 for size in attributes["kernel_shape"]))


def _session(library: Any, file: str, name: str, more: dict[str, str] | None = None) -> Any:
    """Return a session with every operator on the DSP."""
    import onnxruntime

    options = session_options(library, {"session.disable_cpu_ep_fallback": "1", **(more or {})})
    try:
        with _LOCK:  # the provider's set-up of its backend is global
            return onnxruntime.InferenceSession(file, options)
    # ONNX Runtime's exceptions have no common base class.
    except Exception as error:
        left = _left_to_the_cpu(library, file)
        if left:
            raise StretchError(
                f"subgraph `{name}`: the DSP does not run its operator `{left[0]}`"
                + (f" and {len(left) - 1} more" if len(left) > 1 else ""),
                "run this subgraph elsewhere with --map dsp=cpu",
            ) from error
        raise StretchError(f"the QNN provider cannot compile subgraph `{name}`: {first_line(error)}") from error


def _left_to_the_cpu(library: Any, file: str) -> list[str]:
    """Return the operators that the provider refused, from a session that is never run."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(file, session_options(library, {"session.record_ep_graph_assignment_info": "1"}))
    except Exception:
        return []
    return [
        node.name or node.op_type
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name != PROVIDER
        for node in part.get_nodes()
        if node.op_type not in QUANTISERS
    ]
