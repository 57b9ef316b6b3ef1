import platform
import subprocess
import sys

import pytest

from predictors import system

#: Pages that the system fetches for large arrays, made and freed in turn: before, within and after the block.
COUNT = """
import resource
import numpy as np
from predictors.system import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        np.ones(8 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = faults()
with keep_freed_memory():
    np.ones(8 << 20)
    kept = faults()
print(usual, kept, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or system.PLAIN, reason="other C libraries have no settings for freed memory")
def test_freed_memory_is_used_again_within_the_block_only():
    printed = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True).stdout
    usual, kept, after = map(int, printed.split())
    assert kept < usual / 4 < usual / 2 < after
