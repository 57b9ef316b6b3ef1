import gc
import os

import numpy as np
import pytest

from scheduler.shared import describe, opened, shared_bytes, shared_like

ARRAYS = [np.zeros((2, 3), np.float32), np.zeros(5, np.int64), np.zeros((1, 1), np.uint8)]


def test_what_one_writes_the_other_reads():
    for number, current in enumerate(shared_like(ARRAYS)):
        assert current.flags.c_contiguous
        assert current.flags.writeable
        other = opened(describe(current))
        current[:] = number + 1
        assert (other == number + 1).all()
        other[:] = 7
        assert (current == 7).all()
    assert [(item.shape, item.dtype) for item in shared_like(ARRAYS)] == [(array.shape, array.dtype) for array in ARRAYS]


def test_any_contiguous_view_is_described_and_nothing_else():
    memory = shared_bytes(4096)
    part = memory[128:256].view(np.float32).reshape(2, 16)
    part[1] = 3
    assert opened(describe(part[1])).tolist() == [3] * 16
    assert describe(np.zeros(8, np.float32)) is None


@pytest.mark.slow
def test_nothing_of_it_is_left_when_it_goes():
    def use():
        shared_like(ARRAYS)[0][:] = 1

    use()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        use()
    assert len(os.listdir("/proc/self/fd")) == before
