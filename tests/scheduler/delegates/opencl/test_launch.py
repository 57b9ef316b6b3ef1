from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.opencl.launch import Ints, Launch, Tensor
from scheduler.delegates.opencl.tensors import plain

sizes = st.tuples(*[st.integers(1, 40)] * 3)


@given(sizes, sizes)
def test_grid_is_rounded_up_to_whole_work_groups(grid, local):
    launch = Launch("k", "n", (), (), grid, "", local=local)
    assert all(
        size % group == 0 and 0 <= size - wanted < group for size, group, wanted in zip(launch.global_size, local, grid, strict=True)
    )


def test_grid_stays_where_the_driver_chooses_the_work_group():
    assert Launch("k", "n", (), (), (5, 3), "").global_size == (5, 3)


def test_buffers_of_the_device_are_told_apart_by_use():
    arguments = (Tensor(plain("x", (1, 2), "input")), Tensor(plain("a", (1, 2))), Ints((1,)), Tensor(plain("b", (1, 2)), written=True))
    assert Launch("k", "n", (), arguments, (1,), "").buffers() == ({"a"}, {"b"})
