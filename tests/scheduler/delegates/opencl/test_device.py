import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyopencl as cl
import pytest

from predictors.errors import StretchError, UnknownNameError
from scheduler.cores import available_cores
from scheduler.delegates.base import UnableError
from scheduler.delegates.opencl import device as opencl_device
from tests.scheduler import bundles
from tests.scheduler.delegates.opencl import networks

#: Only PoCL shows which threads compute.
POCL = opencl_device.unavailable_reason() is None and opencl_device.device_traits(opencl_device.find_device()).id.startswith("pocl")


class Named:
    """A device with only the attributes that `device_traits` reads."""

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
    assert opencl_device.device_traits(Named(platform, name, version)).id == id
    # the compiler does not know a `generic` processor
    assert opencl_device.is_unknown(Named(platform, name, version.replace("znver3", "generic"))) == ("znver3" in version)


def test_adreno_reads_images_within_its_limits_and_a_mali_buffers():
    for name, support, limits in (("Adreno", True, (16384, 8192, 1 << 27)), ("Adreno", False, (0, 0, 0)), ("Mali-G78", True, (0, 0, 0))):
        named = Named("ARM" if name.startswith("Mali") else "QUALCOMM", name)
        named.image_support, named.image2d_max_width, named.image2d_max_height = support, 16384, 8192
        named.image_max_buffer_size = 1 << 27
        assert opencl_device.device_traits(named).images == limits


@pytest.mark.parametrize(
    ("wanted", "number"), [("", 0), ("0", 0), ("1", 1), ("2", 2), ("nvidia", 0), ("portable", 2), ("3", None), ("amd", None)]
)
def test_device_is_chosen_by_its_number_or_a_part_of_its_name(wanted, number):
    devices = [Named("NVIDIA CUDA", "NVIDIA H200"), Named("NVIDIA CUDA", "NVIDIA H200"), Named("Portable Computing Language", "cpu")]
    if number is None:
        with pytest.raises(UnknownNameError) as caught:
            opencl_device.choose_device(devices, wanted)
        assert "1 is NVIDIA H200" in caught.value.hint
    else:
        assert opencl_device.choose_device(devices, wanted) is devices[number]


PINNED = """
import os, sys
from scheduler.delegates.opencl.device import open_device
devices = [open_device((int(core),)) for core in sys.argv[1:]]
print([d.queue.device.max_compute_units for d in devices])
print(sorted(sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task") if int(t) != os.getpid()))
"""


def opened(*cores, **environment):
    """Finished process that opened the device once for each of these cores."""
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
    assert "1 units, 1 are in use" in opened(first, second, POCL_MAX_PTHREAD_COUNT="1").stderr


@pytest.mark.linux
def test_device_is_found_and_compiles_without_a_writable_home_and_leaves_no_folder(tmp_path):
    if not POCL:
        pytest.skip("the device is not PoCL's")
    environment = {name: value for name, value in os.environ.items() if name != "POCL_CACHE_DIR"}
    environment |= {"HOME": "/proc", "XDG_CACHE_HOME": "/proc/none", "TMPDIR": str(tmp_path)}
    code = "from scheduler.delegates.opencl.device import open_device; d = open_device(()); import pyopencl as cl; "
    code += "cl.Program(d.context, 'kernel void f(global float* x) { x[0] = 1; }').build().f; print('built')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.returncode) == ("built\n", 0), done.stderr
    assert not list(tmp_path.iterdir())


def report(setup, **environment):
    """Output of a new process that runs `code` and prints why the delegate is unavailable."""
    query = "from scheduler.delegates import get_delegate; print(get_delegate('opencl').unavailable())"
    return subprocess.run([sys.executable, "-c", f"{setup}\n{query}"], capture_output=True, text=True, env=os.environ | environment).stdout


#: Debian's Oclgrind: a driver that is a complete OpenCL library, like the drivers of phones.
DRIVER = Path("/usr/lib/oclgrind/liboclgrind-rt.so")


@pytest.mark.skipif(not DRIVER.exists(), reason="needs Debian's oclgrind")
def test_bundle_runs_on_a_driver_that_no_loader_finds(tmp_path):
    code = (
        f"import numpy as np\nfrom scheduler.runtime.session import Session\nx = np.ones((1, 3, 8, 8), np.float32)\n"
        f"for place in ('opencl', 'cpu'):\n"
        f"    with Session({str(bundles.two_branches(tmp_path / 'bundle'))!r}, {{'gpu': place}}) as session: print(float(session(x).sum()))\n"
        f"from scheduler.delegates.opencl.device import find_device\nassert find_device().platform.name == 'Oclgrind'"
    )
    oclgrind_sum, cpu_sum, problem = report(code, NN_STRETCH_OPENCL_LIBRARY=str(DRIVER)).split()
    assert (float(oclgrind_sum), problem) == (pytest.approx(float(cpu_sum), rel=1e-5), "None")


def test_failing_driver_does_not_hide_others_and_a_library_that_does_not_load_is_reported(tmp_path):
    broken = "import pyopencl as cl\nclass Broken:\n    def get_devices(self): raise cl.RuntimeError('clGetDeviceIDs failed: OUT_OF_HOST_MEMORY')\n"
    assert report(f"{broken}all = cl.get_platforms()\ncl.get_platforms = lambda: [Broken(), *all]").strip() == "None"
    assert "clGetDeviceIDs failed: OUT_OF_HOST_MEMORY" in report(f"{broken}cl.get_platforms = lambda: [Broken()]")
    assert "library that does not load" in report("", NN_STRETCH_OPENCL_LIBRARY=str(tmp_path / "no.so"))


def test_failed_build_names_a_file_with_the_drivers_log():
    with pytest.raises(UnableError, match="its log is in") as caught:
        opencl_device.Programs(opencl_device.open_device(()), False).kernel("softmax", (("LOGARITHM", "nonsense("),))
    log = Path(caught.value.message.rsplit(" ", 1)[-1])
    text = log.read_text()
    log.unlink()
    assert "error" in text.partition("-DLOGARITHM=nonsense(")[2]
    assert caught.value.hint is not None


def test_binary_that_the_driver_refuses_is_compiled_again(monkeypatch):
    if opencl_device.open_device(()).traits.id == "mesa":
        pytest.skip("Mesa 22.3 ends the process")
    write, written = opencl_device.write_binary, []
    monkeypatch.setattr(opencl_device, "write_binary", lambda path, binary: (written.append(path), write(path, binary)))

    def compilations():
        """Number of compilations by which a new `Programs` object gets the kernel."""
        written.clear()
        assert opencl_device.Programs(opencl_device.open_device(()), False).kernel("softmax", (("LOGARITHM", "1"),)).num_args == 5
        return len(written)

    compilations()
    (kept,) = opencl_device.binary_folder().iterdir()
    write(kept, b"of another compiler")
    assert [compilations(), compilations()] == [1, 0]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "nn-stretch" / "opencl"


def test_damaged_binary_is_not_read_and_an_unwritable_folder_keeps_nothing(folder):
    path = opencl_device.binary_file("d")
    for damage in (lambda kept: kept[:-1], lambda kept: kept[:10], lambda kept: kept + b"x", lambda kept: b""):
        opencl_device.write_binary(path, b"code of a kernel")
        path.write_bytes(damage(path.read_bytes()))
        assert opencl_device.read_binary(path) is None
    shutil.rmtree(folder)
    folder.write_text("a file where the folder should be")
    opencl_device.write_binary(path, b"code")
    assert opencl_device.read_binary(path) is None
    assert folder.is_file()


def test_kernel_without_a_file_is_an_error_with_the_expected_path(tmp_path, added_template):
    added_template("Cos", networks.cosine("cosine_of_nowhere"), tmp_path)
    path = networks.save(tmp_path / "m.onnx", [("Cos", ["x"], "y", {})], {"x": (1, 4, 2, 2)}, ["y"], {})
    with pytest.raises(StretchError, match=r"the kernel `cosine_of_nowhere` has no file cosine_of_nowhere\.cl in .*" + tmp_path.name):
        networks.error(path)
