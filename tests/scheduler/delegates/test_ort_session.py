import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.delegates.ort_session import SessionCompiled
from tests import onnx_runtime

X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def compiled(bundle_dir):
    session = onnx_runtime.session(bundle_dir / "stem.onnx")
    return SessionCompiled(session, {"x": (1, 3, 8, 8)}, {"t0": (1, 6, 8, 8)})


def test_each_run_reads_what_the_buffer_holds_then(compiled):
    x, y = X.copy(), np.zeros((1, 6, 8, 8), np.float32)
    call = compiled.bind([x], [y])
    call.run()
    first = y.copy()
    x[:] = 0
    call.run()
    assert not np.array_equal(first, y)
    x[:] = X
    call.run()
    assert np.array_equal(first, y)


def test_buffers_of_another_shape_are_refused(compiled):
    with pytest.raises(StretchError, match="`t0` has shape"):
        compiled.bind([X], [np.zeros((1, 6, 8, 9), np.float32)])
