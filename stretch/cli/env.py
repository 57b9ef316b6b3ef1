"""`stretch env`: what a bug report needs."""

import ctypes.util
import os
import platform
import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

#: Our import packages: names that other distributions use too.
OURS = ("stretch", "scheduler", "predictors")

#: Distributions whose versions explain most differences between machines.
OTHERS = ("numpy", "onnx", "onnxruntime", "torch", "torchvision", "timm", "pyopencl", "ai-edge-litert", "onnxruntime-qnn", "msgspec", "typer", "rich")


@verb
def env(out: Output) -> None:
    """Print versions, processors and where our packages come from, to paste into a report."""
    from stretch import __version__

    data: dict[str, Any] = {
        "nn_stretch": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": _cores(),
        "opencl": _opencl(),
        "packages": {name: _version(name) for name in OTHERS},
        "imported_from": {name: str(_folder(name)) for name in OURS},
    }
    for name in OURS:
        if stranger := _other_owner(name):
            out.warn(f"the package `{name}` also belongs to the distribution `{stranger}`, whose files may replace ours: pip uninstall {stranger}, then reinstall nn-stretch")
        if _folder(name).parent != _folder("stretch").parent:
            out.warn(f"`{name}` is imported from {_folder(name)}, not from beside `stretch`")
    data["warnings"] = out.warnings
    data["items"] = [{"name": key, "value": value} for key, value in _lines(data)]

    def human(console: "Console") -> None:
        for key, value in _lines(data):
            console.print(f"{key:<16} {value}", soft_wrap=True)

    out.emit(data, human)


def _lines(data: dict[str, Any]) -> list[tuple[str, str]]:
    """The report as names and values, in reading order."""
    lines = [(key.replace("_", "-"), str(data[key])) for key in ("nn_stretch", "python", "system", "processor")]
    lines += [("cores", ", ".join(map(str, data["cores"]))), ("opencl", data["opencl"] or "none")]
    lines += [(name, version or "not installed") for name, version in data["packages"].items()]
    lines += [(f"{name} from", folder) for name, folder in data["imported_from"].items()]
    return lines


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _folder(package: str) -> Path:
    """Where a package of ours is imported from."""
    return Path(import_module(package).__file__ or "").resolve().parent


def _other_owner(package: str) -> str | None:
    """Another distribution that says it installs a package of this name."""
    owners = metadata.packages_distributions().get(package, [])
    return next((owner for owner in owners if owner != "nn-stretch"), None)


def _processor() -> str:
    """Name of the processor as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware"):
                return value.strip()
    return platform.processor() or platform.machine()


def _cores() -> list[int]:
    """Numbers of the cores this process may use."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _opencl() -> str | None:
    """OpenCL devices if pyopencl is there, else the loader library, else None."""
    if _version("pyopencl") is None:
        return ctypes.util.find_library("OpenCL")
    import pyopencl

    try:
        devices = [device for one in pyopencl.get_platforms() for device in one.get_devices()]
    except pyopencl.Error:
        return None
    return "; ".join(f"{device.name.strip()} ({device.version.strip()})" for device in devices) or None
