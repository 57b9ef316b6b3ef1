"""Finding and loading the package `onnxruntime-qnn` and Qualcomm's libraries in it, once a process."""

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from predictors.errors import MissingBackendError, StretchError, first_line, install_line

INSTALL = install_line("qnn")

#: Name under which the plug-in is registered with ONNX Runtime.
PROVIDER = "QNNExecutionProvider"

_LOCK = threading.Lock()


@dataclass(frozen=True)
class QnnLibrary:
    """The loaded provider."""

    devices: tuple[Any, ...]  # ONNX Runtime's devices of this provider.
    backend: str  # Path of the HTP library.
    versions: str  # What a compiled subgraph depends on beside its file.


def missing() -> str | None:
    """What keeps the provider from being loaded, or None if all files are there."""
    package = _package()
    if package is None:
        return "onnxruntime-qnn is not installed"
    for what, file in (("provider", package.get_library_path()), ("HTP", package.get_qnn_htp_path())):
        if not Path(file).is_file():
            return f"onnxruntime-qnn has no {what} library ({Path(file).name} is missing)"
    return None


def load_library() -> QnnLibrary:
    """Load the libraries and register the provider with ONNX Runtime."""
    problem = missing()
    if problem:
        raise MissingBackendError(f"the `dsp` delegate cannot run: {problem}", INSTALL)
    with _LOCK:
        return _load()


def session_options(library: QnnLibrary, settings: Mapping[str, str], provider: Mapping[str, str] | None = None) -> Any:
    """Options of an ONNX Runtime session on this provider, one thread.

    Args:
        settings: Entries of the session's configuration.
        provider: Options of the provider beside its backend, such as the chip.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # Failures come as exceptions; ONNX Runtime would print them as well.
    options.log_severity_level = 4
    for key, value in settings.items():
        options.add_session_config_entry(key, value)
    options.add_provider_for_devices(library.devices, {"backend_path": library.backend, **(provider or {})})
    return options


def _package() -> ModuleType | None:
    try:
        import onnxruntime_qnn
    except ImportError:
        return None
    module: ModuleType = onnxruntime_qnn
    return module


@cache
def _load() -> QnnLibrary:
    import onnxruntime

    package = _package()
    assert package is not None
    backend = str(package.get_qnn_htp_path())
    # Loaded here first: the provider keeps the linker's reason to itself.
    try:
        _open_quietly(backend)
    except OSError as error:
        raise MissingBackendError(f"the `dsp` delegate cannot load {Path(backend).name}: {error}", INSTALL) from error
    try:
        if not _devices(onnxruntime):
            onnxruntime.register_execution_provider_library(PROVIDER, str(package.get_library_path()))
    # ONNX Runtime's exceptions share no base class of their own.
    except Exception as error:
        raise MissingBackendError(f"the `dsp` delegate cannot load the QNN provider: {first_line(error)}", INSTALL) from error
    devices = _devices(onnxruntime)
    if not devices:
        raise StretchError("the QNN provider finds no device on this machine", "choose another delegate with --map dsp=cpu")
    return QnnLibrary(devices, backend, f"onnxruntime {onnxruntime.__version__}, onnxruntime-qnn {_version()}, {platform.machine()}")


def _devices(onnxruntime: ModuleType) -> tuple[Any, ...]:
    return tuple(device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER)


def _version() -> str:
    try:
        return version("onnxruntime-qnn")
    except PackageNotFoundError:
        return "unknown"


def _open_quietly(path: str) -> None:
    """Load a library that prints a line on stdout while it loads, where programs expect data."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        ctypes.CDLL(path)
        # What it printed lies in the C library's buffer until then.
        ctypes.CDLL(None).fflush(None)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
