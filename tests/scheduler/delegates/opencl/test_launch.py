from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.opencl.launch import Ints, Launch, Tensor, Weights
from scheduler.delegates.opencl.tensors import Blocking, plain

sizes = st.tuples(*[st.integers(1, 40)] * 3)


@given(sizes, sizes)
def test_grid_is_rounded_up_to_whole_work_groups(grid, local):
    launch = Launch("k", "n", (), (), grid, "", local=local)
    assert all(
        size % group == 0 and 0 <= size - wanted < group for size, group, wanted in zip(launch.global_size, local, grid, strict=True)
    )


@given(sizes, sizes, st.integers(1, 64), sizes)
def test_work_group_is_brought_within_limits(grid, local, limit, most):
    launch = Launch("k", "n", (), (), grid, "", local=local).within(limit, most)
    assert all(size <= own and size <= top for size, own, top in zip(launch.local, local, most, strict=True))
    assert prod(launch.local) <= limit or launch.local[:2] == (1, 1)
    assert Launch("k", "n", (), (), grid, "").within(limit, most).local is None


def test_launch_that_reads_images_can_read_buffers():
    x, y = Tensor(plain("a", (1, 2)), image=True), Tensor(plain("b", (1, 2)), written=True)
    launch = Launch("k", "n", (("VW", "1"), ("XIMAGE", "1")), (x, y), (1,), "").in_buffers()
    assert launch.defines == (("VW", "1"), ("XIMAGE", "0"))
    assert [a.image for a in launch.arguments] == [False, False]


def test_grid_stays_where_the_driver_chooses_the_work_group():
    assert Launch("k", "n", (), (), (5, 3), "").global_size == (5, 3)


def test_buffers_of_the_device_are_told_apart_by_use():
    arguments = (Tensor(plain("x", (1, 2), "input")), Tensor(plain("a", (1, 2))), Ints((1,)), Tensor(plain("b", (1, 2)), written=True))
    assert Launch("k", "n", (), arguments, (1,), "").buffers() == ({"a"}, {"b"})


@pytest.mark.parametrize(("half", "item"), [(False, 4), (True, 2)])
def test_traffic_counts_every_input_weight_and_result_once_with_the_padding_of_blocks(half, item):
    blocking = Blocking(8, True, half)
    x, y = blocking.blocked("x", (1, 12, 5, 5)), plain("y", (1, 3, 5, 5), "output")
    arguments = (
        Tensor(x),
        Weights(np.zeros(100, np.float32)),
        Weights(np.zeros(8, np.float32), "float"),
        Tensor(y, written=True),
        Ints((1,)),
    )
    assert Launch("k", "n", (), arguments, (1,), "s").traffic(item) == 16 * 25 * item + 100 * item + 8 * 4 + 3 * 25 * 4
