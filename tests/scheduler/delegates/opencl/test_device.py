import os
import subprocess
import sys
from pathlib import Path

import pyopencl as cl
import pytest

from scheduler.cores import available_cores
from scheduler.delegates.opencl.device import device_traits, find_device, missing
from tests.scheduler import bundles

#: Which threads compute is known of PoCL alone.
POCL = missing() is None and device_traits(find_device()).id.startswith("pocl")


class Named:
    """The little that `device_traits` asks of a device."""

    def __init__(self, platform, name, version="", limit=1024, cpu=False, extensions=""):
        self.platform = type("Platform", (), {"name": platform})
        self.name, self.version, self.max_work_group_size = name, version, limit
        self.max_work_item_sizes, self.mem_base_addr_align = [limit] * 3, 1024
        self.image_support = False
        self.type, self.extensions = cl.device_type.CPU if cpu else cl.device_type.GPU, extensions


@pytest.mark.parametrize(
    ("platform", "name", "version", "id"),
    [
        ("Portable Computing Language", "pthread-AMD EPYC", "PoCL HSTR: pthread-x86_64-unknown-linux-gnu-znver3", "pocl-avx2"),
        ("Portable Computing Language", "pthread-Intel Xeon", "PoCL HSTR: pthread-x86_64-pc-linux-gnu-skylake-avx512", "pocl-avx512"),
        ("Portable Computing Language", "pthread-Cortex-A72", "PoCL HSTR: pthread-aarch64-unknown-linux-gnu-cortex-a72", "pocl"),
        ("NVIDIA CUDA", "NVIDIA H200", "OpenCL 3.0 CUDA", "nvidia"),
        ("ARM Platform", "Mali-G78", "OpenCL 2.0", "mali"),
        ("QUALCOMM Snapdragon(TM)", "QUALCOMM Adreno(TM)", "OpenCL 2.0", "adreno"),
        ("rusticl", "llvmpipe (LLVM 15.0.6, 256 bits)", "OpenCL 3.0", "mesa"),
        ("Another", "GPU", "OpenCL 1.2", "gpu"),
    ],
)
def test_kind_of_device_is_recognised(platform, name, version, id):
    assert device_traits(Named(platform, name, version)).id == id


def test_adreno_reads_images_within_its_limits_and_a_mali_buffers():
    for name, support, limits in (("Adreno", True, (16384, 8192, 1 << 27)), ("Adreno", False, (0, 0, 0)), ("Mali-G78", True, (0, 0, 0))):
        named = Named("ARM" if name.startswith("Mali") else "QUALCOMM", name)
        named.image_support, named.image2d_max_width, named.image2d_max_height = support, 16384, 8192
        named.image_max_buffer_size = 1 << 27
        assert device_traits(named).images == limits


@pytest.mark.parametrize("limit", [1, 2, 16, 100])
def test_work_group_is_within_the_devices_limit(limit):
    x, y, z = device_traits(Named("NVIDIA CUDA", "NVIDIA", limit=limit)).local
    assert x * y * z <= limit


PINNED = """
import os, sys
from scheduler.delegates.opencl.device import open_device
devices = [open_device((int(core),)) for core in sys.argv[1:]]
print([d.queue.device.max_compute_units for d in devices])
print(sorted(sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task") if int(t) != os.getpid()))
"""


def opened(*cores, **environment):
    """What a process of its own prints that opens the device on some cores."""
    command = [sys.executable, "-c", PINNED, *map(str, cores)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


@pytest.mark.linux
def test_two_branches_get_units_of_their_own_and_no_unit_is_given_twice():
    if not POCL or len(available_cores()) < 2:
        pytest.skip("the device is not PoCL's, or there is one core")
    first, second = available_cores()[:2]
    units, threads = opened(first, second, POCL_MAX_PTHREAD_COUNT="2").stdout.splitlines()
    assert units == "[1, 1]"
    assert f"[{first}]" in threads
    assert f"[{second}]" in threads
    assert "1 units, 1 are in use and 1 more are requested" in opened(first, second, POCL_MAX_PTHREAD_COUNT="1").stderr


def told(hide, **environment):
    """What a process says of the delegate in which OpenCL is as `hide` leaves it."""
    code = "from scheduler.delegates import get_delegate; print(get_delegate('opencl').unavailable())"
    return subprocess.run([sys.executable, "-c", f"{hide}\n{code}"], capture_output=True, text=True, env=os.environ | environment).stdout


#: Debian's Oclgrind: a driver that is an OpenCL library of its own, as those of phones are.
DRIVER = Path("/usr/lib/oclgrind/liboclgrind-rt.so")


@pytest.mark.skipif(not DRIVER.exists(), reason="needs Debian's oclgrind")
def test_bundle_runs_on_a_driver_that_no_loader_finds(tmp_path):
    code = (
        f"import numpy as np\nfrom scheduler.runtime.session import Session\nx = np.ones((1, 3, 8, 8), np.float32)\n"
        f"for place in ('opencl', 'cpu'):\n"
        f"    with Session({str(bundles.two_branches(tmp_path / 'bundle'))!r}, {{'gpu': place}}) as session: print(float(session(x).sum()))\n"
        f"from scheduler.delegates.opencl.device import find_device\nassert find_device().platform.name == 'Oclgrind'"
    )
    on_it, on_the_cpu, problem = told(code, NN_STRETCH_OPENCL_LIBRARY=str(DRIVER)).split()
    assert float(on_it) == pytest.approx(float(on_the_cpu), rel=1e-5)
    assert problem == "None"


def test_library_that_does_not_load_is_one_sentence(tmp_path):
    assert "NN_STRETCH_OPENCL_LIBRARY names a library that does not load" in told("", NN_STRETCH_OPENCL_LIBRARY=str(tmp_path / "no.so"))


def test_driver_that_fails_does_not_hide_the_others():
    broken = "import pyopencl as cl\nclass Broken:\n    def get_devices(self): raise cl.RuntimeError('clGetDeviceIDs failed: OUT_OF_HOST_MEMORY')\n"
    assert told(f"{broken}all = cl.get_platforms()\ncl.get_platforms = lambda: [Broken(), *all]").strip() == "None"
    assert "no OpenCL driver answers: clGetDeviceIDs failed: OUT_OF_HOST_MEMORY" in told(f"{broken}cl.get_platforms = lambda: [Broken()]")
