import os

import numpy as np
import pytest

from scheduler.delegates.openvino import OpenVinoDelegate
from scheduler.runtime.session import Session
from tests import onnx_runtime

if problem := OpenVinoDelegate.unavailable():
    pytest.skip(problem, allow_module_level=True)

X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


def test_writes_straight_into_a_slice_of_a_larger_buffer_and_nowhere_else(bundle_dir):
    joined = np.full((1, 20, 8, 8), 5, np.float32)
    OpenVinoDelegate().compile(bundle_dir / "stem.onnx").run([X], [joined[:, 7:13]])
    expected = onnx_runtime.output(bundle_dir / "stem.onnx", X)
    assert np.allclose(joined[:, 7:13], expected, atol=1e-6)
    assert (joined[:, :7] == 5).all()
    assert (joined[:, 13:] == 5).all()


@pytest.mark.torch
def test_bands_and_paths_on_it_beside_onnx_runtime_are_the_original(tmp_path):
    pytest.importorskip("torch")
    from tests.stretch.exact_bundles import images, made, near, original

    x = images(1)[0]
    with Session(made(tmp_path / "exact"), {"gpu": f"openvino{sorted(os.sched_getaffinity(0))[-1]}"}) as session:
        assert {p.delegate for p in session.placements.values()} == {"cpu", "openvino"}
        assert near(session(x), original(x))
        assert near(session.submit(x).result(60), original(x))
