"""One matrix product on PoCL with 8 lanes as AVX2 and with 16 as AVX-512, one core: `python -m experiments.opencl_switches.avx512`."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from experiments.records import Value, write_record
from predictors.errors import StretchError
from scheduler.cores import available_cores, cpu_flags
from scheduler.delegates.opencl.device import open_device

HERE = Path(__file__).parent

#: Channels that are added up, and tiles of pixels.
DEPTH, TILES = 256, 256
#: Lanes, pixels and blocks of a tile, and whether the product is a function with AVX-512 that is not inlined.
FORMS = (
    (8, 4, 3, False),
    (8, 6, 2, False),
    (16, 4, 3, False),
    (16, 4, 3, True),
    (16, 6, 4, True),
    (16, 8, 3, True),
)

#: PoCL 3.0 gives the function around a kernel its own choice of processor, and the kernel is inlined into it.
APART = '__attribute__((noinline, target("avx512f,avx512vl,avx512dq,avx512bw"), min_vector_width(512)))'

SOURCE = """
typedef float VEC __attribute__((ext_vector_type(L)));

static APART void product(__global const float *restrict x, __global const float *restrict w, __global float *restrict y, const int tile) {
  x += tile * VW * DEPTH;
  y += tile * VW * VC * L;
  VEC acc[VW][VC];
#pragma unroll
  for (int i = 0; i < VW; i++)
#pragma unroll
    for (int j = 0; j < VC; j++) acc[i][j] = (VEC)0.0f;
  for (int c = 0; c < DEPTH; c++, w += VC * L) {
    VEC u[VC];
#pragma unroll
    for (int j = 0; j < VC; j++) u[j] = *(__global const VEC *)(w + j * L);
#pragma unroll
    for (int i = 0; i < VW; i++) {
      const float s = x[i * DEPTH + c];
#pragma unroll
      for (int j = 0; j < VC; j++) acc[i][j] += s * u[j];
    }
  }
#pragma unroll
  for (int i = 0; i < VW; i++)
#pragma unroll
    for (int j = 0; j < VC; j++) *(__global VEC *)(y + (i * VC + j) * L) = acc[i][j];
}

__kernel void tiles(__global const float *restrict x, __global const float *restrict w, __global float *restrict y) {
  product(x, w, y, get_global_id(0));
}
"""


class Product:
    """The product in one form, ready to run.

    Args:
        device: An `OpenDevice`.
        lanes: Of a vector.
        pixels: Of a tile.
        blocks: Of a tile.
        apart: Whether it is a function with AVX-512.
    """

    def __init__(self, device: Any, lanes: int, pixels: int, blocks: int, apart: bool) -> None:
        import pyopencl as cl

        self._cl, self._queue = cl, device.queue
        random = np.random.default_rng(0)
        x = random.normal(size=(TILES * pixels, DEPTH)).astype(np.float32)
        w = random.normal(size=(DEPTH, blocks * lanes)).astype(np.float32)
        self.operations = 2 * TILES * pixels * DEPTH * blocks * lanes
        constant = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        y = np.zeros((TILES * pixels, blocks * lanes), np.float32)
        result = cl.Buffer(device.context, cl.mem_flags.WRITE_ONLY, y.nbytes)
        self._kept = [cl.Buffer(device.context, constant, hostbuf=x), cl.Buffer(device.context, constant, hostbuf=w), result]
        macros = {"L": lanes, "VW": pixels, "VC": blocks, "DEPTH": DEPTH}
        source = f"#define APART {APART if apart else ''}\n{SOURCE}"
        program = cl.Program(device.context, source).build(["-cl-mad-enable", *(f"-D{name}={value}" for name, value in macros.items())])
        self._kernel = cl.Kernel(program, "tiles")
        self._kernel.set_args(*self._kept)
        self.ms()
        cl.enqueue_copy(self._queue, y, result)
        self.error = float(np.abs(y - x @ w).max() / np.abs(y).max())

    def ms(self) -> float:
        """Milliseconds of one run by the device's clock."""
        event = self._cl.enqueue_nd_range_kernel(self._queue, self._kernel, (TILES,), (16,))
        event.wait()
        return float(event.profile.end - event.profile.start) / 1e6


def measure(core: int, rounds: int) -> list[dict[str, Value]]:
    """A row a form."""
    products = {form: Product(open_device((core,)), *form) for form in FORMS}
    best = dict.fromkeys(FORMS, float("inf"))
    for _ in range(rounds):
        for form, product in products.items():
            # The first run of a turn brings the data into the caches.
            best[form] = min(best[form], *(product.ms() for _ in range(4)))
    rows: list[dict[str, Value]] = []
    for form, product in products.items():
        if product.error > 1e-5:
            raise StretchError(f"the product in the form {form} is wrong by {product.error:.1e}")
        lanes, pixels, blocks, apart = form
        rows.append(
            {
                "form": f"{lanes} lanes, {pixels}×{blocks}" + (", a function with AVX-512" if apart else ""),
                "ms": round(best[form], 3),
                "GFLOP_per_s": round(product.operations / best[form] / 1e6, 1),
            }
        )
    return rows


def main(words: list[str] | None = None) -> int:
    """Measure and write ``results/avx512.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_switches.avx512", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--core", type=int, default=available_cores()[-1])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "avx512.json")
    options = parser.parse_args(words)
    if "avx512f" not in cpu_flags():
        raise StretchError("this processor has no AVX-512")
    load = os.getloadavg()[0]
    rows = measure(options.core, options.rounds)
    write_record(
        options.out,
        {"forms": rows},
        source="measured",
        command="python -m experiments.opencl_switches.avx512",
        runs=options.rounds,
        interleaved=True,
        load=load,
        notes=[f"fp32, one core, {open_device((options.core,)).driver}; least of the runs by the device's clock."],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
