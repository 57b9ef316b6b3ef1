import gc
import os
import subprocess
import sys

import numpy as np

from scheduler.delegates.process.shared import SharedArrays, opened

ARRAYS = [np.zeros((2, 3), np.float32), np.zeros(5, np.int64), np.zeros((1, 1), np.uint8)]


def test_what_one_writes_the_other_reads():
    shared = SharedArrays(ARRAYS)
    for number, (own, described) in enumerate(zip(shared.arrays, shared.described, strict=True)):
        assert own.flags.c_contiguous
        assert own.flags.writeable
        other = opened(described)
        own[:] = number + 1
        assert (other == number + 1).all()
        other[:] = 7
        assert (own == 7).all()
    assert [(each.shape, each.dtype) for each in shared.arrays] == [(each.shape, each.dtype) for each in ARRAYS]


def test_another_process_opens_it():
    shared = SharedArrays(ARRAYS)
    code = f"from scheduler.delegates.process.shared import opened; opened({shared.described[1]!r})[:] = [1, 2, 3, 4, 5]"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert shared.arrays[1].tolist() == [1, 2, 3, 4, 5]


def test_nothing_of_it_is_left_when_it_goes():
    def use():
        shared = SharedArrays(ARRAYS)
        shared.arrays[0][:] = 1

    use()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        use()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
