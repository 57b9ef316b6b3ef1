from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.opencl.launch import Ints, Launch, Tensor, Weights
from scheduler.delegates.opencl.tensors import Blocking, plain

sizes = st.tuples(*[st.integers(1, 40)] * 3)


@given(sizes, sizes, st.integers(1, 64), sizes)
def test_work_group_is_brought_within_limits(grid, local, limit, most):
    launch = Launch("k", "n", (), (), grid, "", local=local).within(limit, most)
    assert all(size <= own and size <= top for size, own, top in zip(launch.local, local, most, strict=True))
    assert prod(launch.local) <= limit or launch.local[:2] == (1, 1)
    assert Launch("k", "n", (), (), grid, "").within(limit, most).local is None


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
