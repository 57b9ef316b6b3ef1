import numpy as np
import pytest

from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input
from scheduler.cores import available_cores
from scheduler.runtime.session import Session
from stretch.export.precision import export_precision
from stretch.quantize.images import synthetic_images
from tests.scheduler.bundles import two_branches


@pytest.fixture
def driven(monkeypatch):
    """As for a user: every delegate may drive its processor."""
    monkeypatch.delenv("NN_STRETCH_DRIVERS")
    if len(available_cores()) < 2:
        pytest.skip("two cores are needed")


@pytest.mark.slow
def test_gpu_of_a_bundle_runs_on_opencl_without_being_asked(tmp_path, driven):
    bundle = two_branches(tmp_path / "b")
    with Session(bundle) as session, Session(bundle, {"gpu": "reference"}) as other:
        place = session.placements["gpu"]
        assert (place.delegate, place.dispatch) == ("opencl", "async")
        x = random_input(session.bundle)
        assert np.allclose(session(x), other(x), rtol=1e-5, atol=1e-5)
        assert {span.processor for span in session.trace.spans} == {"cpu", "gpu"}
        for span in session.trace.spans:
            assert session.trace.start_ns <= span.start_ns <= span.end_ns


def test_failing_device_fails_the_inference_and_not_the_session(tmp_path, driven, monkeypatch):
    import pyopencl as cl

    from predictors.errors import StretchError

    with Session(two_branches(tmp_path / "b")) as session:
        x = random_input(session.bundle)
        before = session(x)

        def lost(*arguments):
            raise cl.RuntimeError("clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES")

        with monkeypatch.context() as patched:
            patched.setattr(cl, "enqueue_nd_range_kernel", lost)
            with pytest.raises(StretchError, match="OUT_OF_RESOURCES"):
                session(x)
        assert np.array_equal(session(x), before)


@pytest.mark.slow
def test_fp16_subgraphs_are_stored_in_half_precision_and_meet_the_others_in_reals(tmp_path):
    floats = load_bundle(two_branches(tmp_path / "floats"))
    export_precision(floats, tmp_path / "half", {"gpu": "fp16"}, synthetic_images((1, 3, 8, 8), 8), "synthetic")
    x = random_input(floats)
    with Session(tmp_path / "half", {"gpu": "opencl"}) as half, Session(floats, {"gpu": "opencl"}) as single:
        difference = np.abs(half(x) - single(x)).max() / np.abs(single(x)).max()
    assert 0 < difference < 1e-2
