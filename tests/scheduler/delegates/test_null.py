import time

import numpy as np
import pytest

from scheduler.delegates.null import NullDelegate

X = np.zeros((1, 3, 8, 8), np.float32)


@pytest.mark.parametrize(("seconds", "cost"), [(0.03, 0.03), ({"stem": 0.03}, 0.03), ({"other": 9.0}, 0.0)])
def test_costs_at_least_what_it_is_told_and_writes_nothing(bundle_dir, seconds, cost):
    output = np.full((1, 6, 8, 8), 7, np.float32)
    call = NullDelegate(seconds).compile(bundle_dir / "stem.onnx").bind([X], [output])
    start = time.perf_counter()
    call.run()
    assert time.perf_counter() - start >= cost
    assert (output == 7).all()
