"""Times of many kernels as arrays are those of the kernels one by one."""

from hypothesis import given
from hypothesis import strategies as st

from predictors.models.base import KernelTime, Times

ms = st.floats(0, 1e3)


@given(st.lists(st.builds(KernelTime, ms, ms, ms, ms, st.just("fit")), max_size=9))
def test_times_as_arrays_give_back_what_they_were_made_of(times):
    assert Times.of(times).kernels("fit") == times


def test_kernel_is_bound_by_what_takes_most_of_its_time():
    assert KernelTime(6.0, 1.0, 3.0, 2.0).bound == "compute"
    assert KernelTime(6.0, 1.0, 2.0, 3.0).bound == "memory"
