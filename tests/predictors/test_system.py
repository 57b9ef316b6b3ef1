"""What only some operating systems have."""

import platform

import numpy as np
import pytest

from predictors import system


def faults() -> int:
    """Pages that the system fetched for arrays which are made and freed in turn."""
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        np.ones(8 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or system.PLAIN, reason="other C libraries have no settings for freed memory")
def test_freed_memory_is_used_again_within_the_block_only():
    usual = faults()
    with system.keep_freed_memory():
        np.ones(8 << 20)
        kept = faults()
    assert kept < usual / 4 < usual / 2 < faults()
