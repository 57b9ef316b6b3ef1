"""Installed packages and properties of this machine, for bug reports and records of measurements."""

import ctypes.util
import platform
from importlib import import_module, metadata
from pathlib import Path

#: The project's import packages, whose names other distributions use too.
OURS = ("stretch", "scheduler", "predictors")

#: Distributions whose versions explain most differences between machines.
OTHERS = (
    "numpy",
    "onnx",
    "onnxruntime",
    "torch",
    "torchvision",
    "timm",
    "pyopencl",
    "pocl-binary-distribution",
    "ai-edge-litert",
    "openvino",
    "ncnn",
    "onnxruntime-qnn",
    "scipy",
    "msgspec",
    "typer",
    "rich",
)


def version(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def folder(package: str) -> Path:
    """Return the folder from which a package is imported."""
    return Path(import_module(package).__file__ or "").resolve().parent


def other_owner(package: str) -> str | None:
    """Return another distribution that states that it installs a package of this name; None without one."""
    owners = metadata.packages_distributions().get(package, [])
    return next((owner for owner in owners if owner != "nn-stretch"), None)


def processor_name() -> str:
    """Return the name of the processor as the system reports it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware"):
                return value.strip()
    return platform.processor() or platform.machine()


def opencl_devices() -> str | None:
    """Return the OpenCL devices if pyopencl is installed, else the loader library; None without either."""
    if version("pyopencl") is None:
        return ctypes.util.find_library("OpenCL")
    from scheduler.delegates import get_delegate

    # ask the delegate first: it may load a driver's library in place of pyopencl's
    if get_delegate("opencl").unavailable():
        return None
    import pyopencl

    try:
        devices = [device for platform in pyopencl.get_platforms() for device in platform.get_devices()]
    except pyopencl.Error:
        return None
    return "; ".join(f"{device.name.strip()} ({device.version.strip()})" for device in devices) or None
