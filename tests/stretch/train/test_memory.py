"""Memory that is told is memory that was taken."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stretch.train.session import memory_mib  # noqa: E402 - torch may be missing

pytestmark = pytest.mark.torch


@pytest.mark.slow
def test_memory_of_this_process_grows_with_what_it_takes():
    cpu = torch.device("cpu")
    before = memory_mib(cpu)
    taken = np.ones(int((before + 64) * 2**20), np.uint8)
    assert memory_mib(cpu) >= taken.nbytes / 2**20
    assert before > 0
