"""Kernels, how they are built and kept."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from predictors.errors import StretchError
from scheduler.delegates.opencl import device as opencl_device
from scheduler.delegates.opencl import programs
from scheduler.delegates.opencl.device import cpu_flags, find_device, open_device
from scheduler.delegates.opencl.programs import FOLDER, BuildError, Programs, binary_file, binary_folder, read_binary, write_binary
from tests.scheduler.delegates.opencl import networks


def test_failed_build_names_a_file_with_the_drivers_log():
    with pytest.raises(BuildError, match="its log is in") as caught:
        Programs(open_device(()), False).kernel("softmax", (("LOGARITHM", "nonsense("),))
    log = Path(caught.value.message.rsplit(" ", 1)[-1])
    text = log.read_text()
    log.unlink()
    assert "-DLOGARITHM=nonsense(" in text
    assert "error" in text
    assert caught.value.hint is not None


@pytest.fixture
def compilations(tmp_path, monkeypatch):
    """Counts how often a driver compiles the kernel that a new collection is asked for, in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled = []

    def write(path, binary):
        compiled.append(path)
        write_binary(path, binary)

    def count():
        compiled.clear()
        assert Programs(open_device(()), False).kernel("softmax", (("LOGARITHM", "1"),)).num_args == 3
        return len(compiled)

    monkeypatch.setattr(programs, "write_binary", write)
    return count


def test_binary_that_the_driver_refuses_is_compiled_again(compilations):
    if open_device(()).traits.id == "mesa":
        pytest.skip("Mesa 22.3 ends the process")
    compilations()
    (kept,) = binary_folder().iterdir()
    write_binary(kept, b"of another compiler")
    assert [compilations(), compilations()] == [1, 0]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.cl")), ids=lambda path: path.stem)
def test_file_holds_the_kernel_of_its_name_and_says_what_it_does(path):
    text = path.read_text()
    assert f"__kernel void {path.stem}(" in text
    assert text.count("__kernel") == 1
    assert text.startswith("// ")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "nn-stretch" / "opencl"


@pytest.mark.parametrize(
    "other", [("d2", "driver", "o", "s"), ("d", "driver 2", "o", "s"), ("d", "driver", "o2", "s"), ("d", "driver", "o", "s2")]
)
def test_another_device_driver_option_or_source_has_a_file_of_its_own(other):
    assert binary_file(*other) != binary_file("d", "driver", "o", "s")


@pytest.mark.parametrize("damage", [lambda kept: kept[:-1], lambda kept: kept[:10], lambda kept: kept + b"x", lambda kept: b""])
def test_damaged_binary_is_not_read(damage):
    path = binary_file("d")
    write_binary(path, b"code of a kernel")
    path.write_bytes(damage(path.read_bytes()))
    assert read_binary(path) is None


def test_nothing_is_kept_where_nothing_can_be_written(folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where the folder should be")
    write_binary(binary_file("d"), b"code")
    assert read_binary(binary_file("d")) is None
    assert Path(folder).is_file()


HASWELL = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "cx16", "popcnt", "abm"})
SKYLAKE = HASWELL | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (SKYLAKE, "skylake-avx512"),
        (SKYLAKE - {"avx512bw"}, "haswell"),
        (HASWELL, "haswell"),
        (HASWELL - {"fma"}, None),
        (frozenset(), None),
    ],
)
def test_oldest_processor_with_the_instructions_is_compiled_for(flags, name):
    assert opencl_device.target(flags) == name


#: The driver forgets the processor, as on one that it does not know; then it is told. Some builds of
#: the driver take the name from elsewhere: they compile on, and there is nothing to tell them.
FORGETS = """
import sys

import pyopencl as cl
from scheduler.delegates.opencl import device as opencl_device
from scheduler.delegates.opencl.device import cpu_flags, find_device

device = find_device()
known = opencl_device.place_of(device.int_ptr, device.version.split("linux-gnu-")[-1].strip())
place = known or opencl_device.place_of(device.int_ptr, opencl_device.target(cpu_flags()))
if place is None:
    sys.exit("forgets nothing")
opencl_device.point(place, "generic")
source = "kernel void twice(global float8* a) { a[get_global_id(0)] = fma(a[get_global_id(0)], 2.0f, 1.0f); }"

def result():
    import numpy as np

    context = cl.Context([device])
    x = np.arange(64, dtype=np.float32)
    buffer = cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
    queue = cl.CommandQueue(context)
    cl.Program(context, source).build().twice(queue, (8,), None, buffer)
    got = np.empty_like(x)
    cl.enqueue_copy(queue, got, buffer)
    return bool((got == x * 2 + 1).all())

try:
    result()
    sys.exit("forgets nothing")
except cl.RuntimeError as error:
    print("unknown target CPU" in str(error))
print(opencl_device.name_target(device, cpu_flags()))
print(result())
"""


def test_driver_that_does_not_know_the_processor_compiles_for_one_it_knows(tmp_path):
    if platform.machine() != "x86_64" or "Portable" not in find_device().platform.name or opencl_device.target(cpu_flags()) is None:
        pytest.skip("PoCL on x86-64 with AVX2 alone")
    run = subprocess.run(
        [sys.executable, "-c", FORGETS], capture_output=True, text=True, env=os.environ | {"POCL_CACHE_DIR": str(tmp_path)}
    )
    if run.stderr.endswith("forgets nothing\n"):
        pytest.skip("this driver knows its processor in another way")
    assert run.stdout.split() == ["True", opencl_device.target(cpu_flags()), "True"], run.stderr


def test_kernel_without_a_file_is_an_error_that_says_where_it_should_be(tmp_path, added_template):
    added_template("Cos", networks.cosine("cosine_of_nowhere"), tmp_path)
    path = networks.save(tmp_path / "m.onnx", [("Cos", ["x"], "y", {})], {"x": (1, 4, 2, 2)}, ["y"], {})
    with pytest.raises(StretchError, match=r"the kernel `cosine_of_nowhere` has no file cosine_of_nowhere\.cl in .*" + tmp_path.name):
        networks.error(path)
