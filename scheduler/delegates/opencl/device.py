"""The OpenCL device of subgraphs: its choice, the traits that kernels depend on, the cores of a CPU device, and its built kernels."""

import atexit
import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import tempfile
import threading
import time
import tomllib
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from predictors import system
from predictors.errors import MissingBackendError, StretchError, UnknownNameError, first_line, install_line
from predictors.files import cache_folder, write_whole
from scheduler.cores import available_cores, cpu_flags
from scheduler.delegates.base import UnableError
from scheduler.delegates.opencl.launch import Arenas, Blocking, Defines

#: PoCL's LLVM uses this name for a processor that it does not know. Clang then refuses the name, so no kernel compiles (pocl/pocl#1049).
UNKNOWN = "generic"


def is_unknown(device: Any) -> bool:
    """Return whether a `pyopencl.Device` is PoCL's device for a processor that PoCL's compiler does not know."""
    return bool(device.platform.name == "Portable Computing Language" and device.version.split()[-1].endswith(f"-{UNKNOWN}"))


INSTALL = install_line("opencl")

#: Part of the name of the device or platform to use, or the device's number from 0, GPUs first; the first device if not set.
DEVICE_VARIABLE = "NN_STRETCH_OPENCL_DEVICE"

#: A driver's OpenCL library, used in place of the loader that finds drivers, because that loader does not find Android's.
LIBRARY_VARIABLE = "NN_STRETCH_OPENCL_LIBRARY"

#: Environment variable for PoCL's number of threads.
UNITS_VARIABLE = "POCL_MAX_PTHREAD_COUNT"

#: Environment variable for PoCL's folder of compiled kernels.
CACHE_VARIABLE = "POCL_CACHE_DIR"

#: CPU instruction sets that compute in half precision: x86's and ARM's.
HALF_FLAGS = frozenset({"avx512_fp16", "asimdhp"})

_LOCK = threading.Lock()


@dataclass(frozen=True)
class Traits:
    """Facts of a device that the kernels depend on; see devices.toml."""

    id: str  # Name of the kind of device.
    lanes: int  # Channels per block.
    blocks_inside: bool  # Whether the blocks of a pixel are adjacent in memory.
    registers: int  # Vectors of `lanes` floats that a work-item can hold.
    cpu: bool  # Whether the device is a CPU, where a work-group is one work-item and built-in functions cost calls.
    local: tuple[int, int, int]  # Work-group of tiled kernels.
    max_local: int = 1  # Maximum number of work-items per work-group.
    max_sizes: tuple[int, ...] = (1, 1, 1)  # Maximum number of work-items in each dimension of a work-group.
    alignment: int = 128  # Alignment of a sub-buffer, in bytes.
    fp16: bool = False  # Whether the device reports `cl_khr_fp16`, and so computes in half precision.
    #: Maximum width and height of an image of weights and maximum texels of an image of inputs, if convolutions read images on this
    #: device; else zeros.
    images: tuple[int, int, int] = (0, 0, 0)

    def blocking(self, half: bool) -> Blocking:
        """Return the memory layout of blocked tensors."""
        return Blocking(self.lanes, self.blocks_inside, half)


@dataclass(frozen=True)
class OpenDevice:
    """A device with a context and an in-order queue that records the times of its commands."""

    context: Any  # The `pyopencl.Context`.
    queue: Any  # The `pyopencl.CommandQueue`.
    traits: Traits  # Facts that the kernels depend on.
    name: str  # Name of the device.
    driver: str  # Platform, version and driver, which decide whether tuned schedules apply.
    arenas: Arenas  # Memory that the subgraphs of the queue use in turn.
    #: Held while the commands of one run are put into the queue, because runs use the same memory one after the other.
    lock: Any = field(default_factory=threading.Lock, compare=False)


def unavailable_reason() -> str | None:
    """Return the reason why no OpenCL device can be used, or None."""
    if importlib.util.find_spec("pyopencl") is None:
        return f"pyopencl is not installed ({INSTALL})"
    try:
        find_device()
    except StretchError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return None


@cache
def find_device() -> Any:
    """Return the `pyopencl.Device` to use.

    Raises:
        MissingBackendError: If pyopencl or every OpenCL driver is missing.
        UnknownNameError: If the environment variable names an unknown device.
    """
    cl = _pyopencl()
    with _LOCK:
        # PoCL wakes all its threads after each kernel, which costs 10 µs: no thread is created for the scheduler's core.
        os.environ.setdefault(UNITS_VARIABLE, str(max(1, len(available_cores()) - 1)))
        before = _threads()
        devices = _devices(cl)
        _POCL_THREADS.extend(thread for thread in _threads() if thread not in before)
    if not devices:
        raise _no_device(cl)
    return choose_device(sorted(devices, key=lambda device: not device.type & cl.device_type.GPU), os.environ.get(DEVICE_VARIABLE, ""))


def choose_device(devices: Sequence[Any], name_or_number: str) -> Any:
    """Return the device with this number, or the first whose name contains the text; an empty text matches all."""
    if name_or_number.isdecimal():
        matching = list(devices[int(name_or_number) : int(name_or_number) + 1])
    else:
        matching = [device for device in devices if name_or_number.lower() in f"{device.platform.name} {device.name}".lower()]
    if not matching:
        listed = ", ".join(f"{number} is {device.name.strip()}" for number, device in enumerate(devices))
        raise UnknownNameError(
            f"{DEVICE_VARIABLE} names `{name_or_number}`, and no OpenCL device has that number or name", f"here: {listed}"
        )
    return matching[0]


def _devices(cl: Any) -> list[Any]:
    """Return the devices of all drivers; a failing driver does not hide the devices of others."""
    devices: list[Any] = []
    failure: Exception | None = None
    try:
        for platform in cl.get_platforms():
            try:
                devices += [device for device in platform.get_devices() if not is_unknown(device)]
            except cl.Error as error:
                failure = error
    except cl.Error as error:
        failure = error
    if failure is not None and not devices:
        raise MissingBackendError(f"no OpenCL driver answers: {first_line(failure)}", f"PoCL runs on any CPU: {INSTALL}") from failure
    return devices


def _no_device(cl: Any) -> MissingBackendError:
    """Return an error with the reason why no device is left."""
    unknown = [device.name.strip() for platform in cl.get_platforms() for device in platform.get_devices() if is_unknown(device)]
    if unknown:
        return MissingBackendError(
            f"PoCL's compiler does not know this processor, `{unknown[0]}`, and compiles nothing for it",
            "install another OpenCL driver for it, such as your distribution's newer PoCL",
        )
    return MissingBackendError("there is no OpenCL device on this machine", f"PoCL runs on any CPU: {INSTALL}")


def open_device(cores: tuple[int, ...]) -> OpenDevice:
    """Return the device to use, opened with a context and a queue.

    A CPU device computes on one pinned thread per core; it is partitioned
    to one unit per core, each with one driver thread.

    Args:
        cores: Cores for a CPU device; empty for the last one that this process
            may use, which leaves the first to the scheduler's thread.
    """
    if not device_traits(find_device()).cpu:
        return _open(())
    return _open(cores or available_cores()[-1:])


@cache
def _open(cores: tuple[int, ...]) -> OpenDevice:
    cl = _pyopencl()
    device = find_device()
    traits = device_traits(device)
    try:
        if cores:
            device = _sub_device(cl, device, cores)
        context = cl.Context([device])
        queue = cl.CommandQueue(context, device, properties=cl.command_queue_properties.PROFILING_ENABLE)
    except cl.Error as error:
        raise StretchError(f"the OpenCL device `{device.name.strip()}` cannot be opened: {first_line(error)}") from error
    root_device = find_device()
    driver = f"{root_device.platform.name} {root_device.version} {root_device.driver_version}"
    return OpenDevice(context, queue, traits, device.name.strip(), driver, Arenas(context))


def device_traits(device: Any) -> Traits:
    """Return the entry of devices.toml that fits a device, with the limits that the device reports."""
    description = f"{device.name} {device.version}"
    extensions = device.extensions.split()
    for entry in _entries():
        if _matches_entry(entry, device):
            fields = {key: value for key, value in entry.items() if key not in ("platform", "device", "flag", "local", "images")}
            limit = device.max_work_group_size
            local = tuple(entry["local"])
            while local[0] * local[1] * local[2] > limit:
                local = tuple(max(1, size // 2) for size in local)
            return Traits(
                **fields,
                local=local,
                max_local=limit,
                max_sizes=tuple(device.max_work_item_sizes),
                alignment=max(128, device.mem_base_addr_align // 8),
                images=_image_limits(device) if entry.get("images") else (0, 0, 0),
                # A CPU's driver reports the extension even where every operation is computed in floats.
                fp16="cl_khr_fp16" in extensions and (not entry["cpu"] or bool(cpu_flags() & HALF_FLAGS)),
            )
    raise StretchError(f"devices.toml has no entry for the OpenCL device `{description}`")


def _image_limits(device: Any) -> tuple[int, int, int]:
    """Return `Traits.images` of a device that reads images."""
    if not device.image_support:
        return 0, 0, 0
    return device.image2d_max_width, device.image2d_max_height, device.image_max_buffer_size


def _matches_entry(entry: dict[str, Any], device: Any) -> bool:
    """Return whether an entry of devices.toml fits a device: by names, and for a CPU without a telling name by instruction set."""
    patterns = ((entry["platform"], device.platform.name), (entry["device"], f"{device.name} {device.version}"))
    if not all(re.search(pattern, text, re.IGNORECASE) for pattern, text in patterns):
        return False
    return "flag" not in entry or (bool(device.type & _pyopencl().device_type.CPU) and (not entry["flag"] or entry["flag"] in cpu_flags()))


@cache
def _entries() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("devices.toml").read_text())["device"]
    return entries


#: Threads created by PoCL, one per unit of its CPU device, in the order of the units.
_POCL_THREADS: list[int] = []
#: First unit assigned to each set of cores.
_FIRST_UNITS: dict[tuple[int, ...], int] = {}


def _sub_device(cl: Any, device: Any, cores: tuple[int, ...]) -> Any:
    """Return one unit of a CPU device per core, with their threads pinned to the cores; no unit is assigned twice."""
    units = device.max_compute_units
    first = sum(len(name) for name in _FIRST_UNITS)
    if first + len(cores) > units:
        raise StretchError(
            f"the OpenCL device `{device.name.strip()}` has {units} units, {first} are in use and {len(cores)} more are requested",
            f"set {UNITS_VARIABLE} to the number of cores that OpenCL may use",
        )
    if len(_POCL_THREADS) == units:
        for worker, core in zip(_POCL_THREADS[first : first + len(cores)], cores, strict=True):
            system.set_affinity({core}, worker)
    _FIRST_UNITS[cores] = first
    if len(cores) == units:
        return device
    counts = [count for count in (first, len(cores), units - first - len(cores)) if count]
    parts = device.create_sub_devices([cl.device_partition_property.BY_COUNTS, *counts, 0])
    return parts[1 if first else 0]


def _threads() -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir("/proc/self/task"))
    except OSError:
        return []


# Copies from ordinary memory go through memory that the driver has pinned; buffers in pinned memory are copied directly.

#: Bytes of each copy that compares pinned with ordinary memory, and number of copies of each kind.
_COPY_BYTES, _COPY_ROUNDS = 1 << 20, 7


def pinned_bytes(device: OpenDevice, size: int) -> NDArray[np.uint8]:
    """Return zeros in memory that the driver has pinned, mapped as long as the array lives.

    Raises:
        MemoryError: If the driver has no pinned memory left.
    """
    cl = _pyopencl()
    flags, modes = cl.mem_flags.ALLOC_HOST_PTR | cl.mem_flags.READ_WRITE, cl.map_flags.READ | cl.map_flags.WRITE
    try:
        array, _ = cl.enqueue_map_buffer(device.queue, cl.Buffer(device.context, flags, size), modes, 0, (size,), np.uint8)
    except cl.Error as error:
        raise MemoryError(f"{device.name}: {first_line(error)}") from error
    array.fill(0)
    return cast(NDArray[np.uint8], array)


@cache
def pinned_is_faster(device: OpenDevice) -> bool:
    """Return whether copies of pinned memory are faster than copies of ordinary memory, measured once."""
    cl = _pyopencl()
    if device.traits.cpu:
        return False
    try:
        buffer = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, _COPY_BYTES)
        arrays = pinned_bytes(device, _COPY_BYTES), np.zeros(_COPY_BYTES, np.uint8)
    except (cl.Error, MemoryError):
        return False
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_COPY_ROUNDS):
        for array, durations in zip(arrays, seconds, strict=True):
            start = time.perf_counter()
            cl.enqueue_copy(device.queue, buffer, array)
            cl.enqueue_copy(device.queue, array, buffer)
            durations.append(time.perf_counter() - start)
    return median(seconds[0]) < median(seconds[1])


# Kernels are queued through the OpenCL library itself, because pyopencl creates an event for each, which costs several times the launch.


@cache
def native_enqueue() -> Callable[..., int]:
    """Return ``clEnqueueNDRangeKernel`` of pyopencl's library, called with the interpreter's lock held because it returns at once."""
    function: Any = ctypes.PyDLL(_pyopencl()._cl.__file__).clEnqueueNDRangeKernel
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    function.argtypes = [pointer, pointer, number, pointer, pointer, pointer, number, pointer, pointer]
    return cast(Callable[..., int], function)


def native_launch(kernel: Any, grid: Sequence[int], local: Sequence[int] | None) -> tuple[Any, int, Any, Any]:
    """Return kernel, dimensions and sizes in the form that `native_enqueue` expects."""
    sizes = ctypes.c_size_t * len(grid)
    return kernel.int_ptr, len(grid), sizes(*grid), sizes(*local) if local else None


def _name_caches() -> None:
    """Tell PoCL and pyopencl about their caches: without a writable folder, one has no device and the other does not load."""
    base = cache_folder("opencl").parents[1]
    try:
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=base) as probe:
            # PoCL aborts the process if the disk is full
            probe.write(bytes(1 << 20))
            probe.flush()
            os.environ.setdefault(CACHE_VARIABLE, str(base / "pocl" / "kcache"))
            return
    except OSError:
        os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
        if CACHE_VARIABLE not in os.environ:
            os.environ[CACHE_VARIABLE] = folder = tempfile.mkdtemp(prefix="nn-stretch-pocl-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


@cache
def _pyopencl() -> Any:
    _name_caches()
    if library := os.environ.get(LIBRARY_VARIABLE):
        try:
            # the linker resolves functions, and a library of this name, from libraries loaded before pyopencl
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise MissingBackendError(f"{LIBRARY_VARIABLE} names a library that does not load: {first_line(error)}") from error
    try:
        import pyopencl
    except ImportError as error:
        raise MissingBackendError("the `opencl` delegate needs pyopencl, which is not installed or does not load", INSTALL) from error
    return pyopencl


#: Maximum number of cached files; the least recently used ones are deleted.
MAX_FILES = 500

_DIGEST = hashlib.sha256().digest_size


def binary_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/nn-stretch/opencl``, by default in ``~/.cache``."""
    return cache_folder("opencl")


def binary_file(*parts: str) -> Path:
    """Return the path of the binary of a kernel, derived from all `parts` that identify it."""
    return binary_folder() / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.bin"


def read_binary(path: Path) -> bytes | None:
    """Return a binary as it was written, or None if it is missing or damaged, which drivers need not notice."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, binary = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(binary).digest() != digest:
        return None
    with suppress(OSError):
        os.utime(path)
    return binary


def write_binary(path: Path, binary: bytes) -> None:
    """Keep a binary in the cache, complete or not at all, and delete the least recently used ones; do nothing if that fails."""
    with suppress(OSError, StretchError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, hashlib.sha256(binary).digest() + binary, "kernel")
        files = sorted(path.parent.glob("*.bin"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
        for old in files[MAX_FILES:]:
            old.unlink()


FOLDER = Path(__file__).with_name("kernels")

#: Folders with kernels, in search order.
FOLDERS = [FOLDER]


@cache
def source(kernel: str) -> str:
    """Return the source of one kernel, preceded by the header shared by all kernels."""
    paths = [path for folder in FOLDERS if (path := folder / f"{kernel}.cl").is_file()]
    if not paths:
        raise StretchError(f"the kernel `{kernel}` has no file {kernel}.cl in {', '.join(map(str, FOLDERS))}")
    return (FOLDER / "common.h").read_text() + paths[0].read_text()


@cache
def source_hash(kernel: str) -> str:
    """Return a hash of a kernel's source; schedules tuned for another source are not used."""
    return hashlib.sha256(source(kernel).encode()).hexdigest()[:16]


class Programs:
    """The kernels of one device; builds each combination of macros once."""

    def __init__(self, device: OpenDevice, half: bool) -> None:
        self._device = device
        self._half = half
        self._built: dict[tuple[str, Defines], Any] = {}
        self._lock = threading.Lock()

    def kernel(self, name: str, defines: Defines) -> Any:
        """Return a new `pyopencl.Kernel`, which no other caller shares, so that its arguments stay set."""
        import pyopencl

        with self._lock:
            program = self._built.get((name, defines))
            if program is None:
                program = self._built[name, defines] = self._build(name, defines)
        return pyopencl.Kernel(program, name)

    def _build(self, name: str, defines: Defines) -> Any:
        import pyopencl

        device, traits = self._device, self._device.traits
        macros = [("L", str(traits.lanes)), ("HALF", str(int(self._half))), ("CPU", str(int(traits.cpu))), *defines]
        options = ["-cl-mad-enable", "-cl-finite-math-only", *(f"-D{key}={value}" for key, value in macros)]
        cached_path = binary_file(device.name, device.driver, " ".join(options), source(name))
        try:
            with warnings.catch_warnings():
                # Warnings of a driver about a kernel that it compiled.
                warnings.simplefilter("ignore", pyopencl.CompilerWarning)
                if (binary := read_binary(cached_path)) is not None:
                    # A driver may refuse a program that it compiled itself, for instance for another device with the same name.
                    with suppress(pyopencl.Error):
                        return pyopencl.Program(device.context, device.context.devices, [binary]).build()
                program = pyopencl.Program(device.context, source(name)).build(options)
            write_binary(cached_path, program.get_info(pyopencl.program_info.BINARIES)[0])
        except (pyopencl.Error, RuntimeError) as error:
            log = _write_log(name, options, str(error))
            raise UnableError(
                f"the OpenCL driver of `{self._device.name}` does not compile the kernel `{name}`; its log is in {log}",
                "report the log, and run these subgraphs elsewhere with --map gpu=cpu",
            ) from error
        return program


@cache
def programs_of(device: OpenDevice, half: bool) -> Programs:
    """Return the programs of a device and storage type, shared by all subgraphs."""
    return Programs(device, half)


def _write_log(name: str, options: list[str], text: str) -> Path:
    handle, path = tempfile.mkstemp(prefix=f"nn-stretch-{name}-", suffix=".log")
    with os.fdopen(handle, "w") as stream:
        stream.write(f"options: {' '.join(options)}\n\n{text}\n")
    return Path(path)
