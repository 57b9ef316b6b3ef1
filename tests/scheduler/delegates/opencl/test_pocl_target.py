import os
import platform
import subprocess
import sys

import pytest

from scheduler.delegates.opencl import pocl_target
from scheduler.delegates.opencl.device import cpu_flags, find_device

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
    assert pocl_target.target(flags) == name


#: The driver forgets the processor, as on one that it does not know; then it is told. Some builds of
#: the driver take the name from elsewhere: they compile on, and there is nothing to tell them.
FORGETS = """
import sys

import pyopencl as cl
from scheduler.delegates.opencl import pocl_target
from scheduler.delegates.opencl.device import cpu_flags, find_device

device = find_device()
known = pocl_target.place_of(device.int_ptr, device.version.split("linux-gnu-")[-1].strip())
place = known or pocl_target.place_of(device.int_ptr, pocl_target.target(cpu_flags()))
if place is None:
    sys.exit("forgets nothing")
pocl_target.point(place, "generic")
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
print(pocl_target.name_target(device, cpu_flags()))
print(result())
"""


def test_driver_that_does_not_know_the_processor_compiles_for_one_it_knows(tmp_path):
    if platform.machine() != "x86_64" or "Portable" not in find_device().platform.name or pocl_target.target(cpu_flags()) is None:
        pytest.skip("PoCL on x86-64 with AVX2 alone")
    run = subprocess.run(
        [sys.executable, "-c", FORGETS], capture_output=True, text=True, env=os.environ | {"POCL_CACHE_DIR": str(tmp_path)}
    )
    if run.stderr.endswith("forgets nothing\n"):
        pytest.skip("this driver knows its processor in another way")
    assert run.stdout.split() == ["True", pocl_target.target(cpu_flags()), "True"], run.stderr
