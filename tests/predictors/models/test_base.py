"""Times of many kernels as arrays are those of the kernels one by one."""

from predictors.models.base import KernelTime


def test_kernel_is_bound_by_what_takes_most_of_its_time():
    assert KernelTime(6.0, 1.0, 3.0, 2.0).bound == "compute"
    assert KernelTime(6.0, 1.0, 2.0, 3.0).bound == "memory"
