"""Subgraphs on an OpenCL device."""

import numpy as np
import pyopencl as cl
import pytest

from predictors.errors import StretchError
from scheduler.checks.verify import random_input
from scheduler.cores import available_cores
from scheduler.delegates.base import UnableError
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.memory import MemoryPlan
from scheduler.runtime.session import Session
from tests.scheduler.bundles import two_branches
from tests.scheduler.delegates.opencl import networks

NETWORKS = [networks.residual_block, networks.squeeze_excite, networks.classifier]


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS, ids=lambda make: make.__name__)
def test_network_agrees_with_onnx_runtime(tmp_path, network):
    assert networks.error(network(tmp_path / "m.onnx")) <= 1e-5


@pytest.mark.parametrize("network", [NETWORKS[0], *(pytest.param(make, marks=pytest.mark.slow) for make in NETWORKS[1:])])
def test_network_stored_in_half_precision_is_close_and_chooses_the_same_class(tmp_path, network):
    path = network(tmp_path / "m.onnx")
    assert networks.error(path, half=True) <= 1e-2
    (full,), (half,) = networks.run(OpenCLDelegate(), path), networks.run(OpenCLDelegate(half=True), path)
    assert np.array_equal(full.reshape(len(full), -1).argmax(1), half.reshape(len(half), -1).argmax(1))


def test_places_tell_kernel_time_and_what_was_merged(tmp_path):
    places = {place.name: place for place in OpenCLDelegate().places(networks.residual_block(tmp_path / "m.onnx"))}
    assert places["c1"].ms > 0
    assert "kernel" in places["c1"].reason
    assert places["n1"].reason == places["r1"].reason == "merged into `c1`"
    assert places["a"].reason == places["y"].reason == "merged into `c2`"


def test_places_tell_why_a_subgraph_is_refused(tmp_path):
    path = networks.save(tmp_path / "m.onnx", [("Cos", ["x"], "y", {})], {"x": (1, 5)}, ["y"], {})
    (place,) = OpenCLDelegate().places(path)
    assert (
        place.reason
        == "on the CPU instead, for the opencl delegate refuses its subgraph: node `y` is a Cos, for which the opencl delegate has no kernel"
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return OpenCLDelegate().compile(networks.classifier(tmp_path_factory.mktemp("m") / "m.onnx"))


def test_two_invocations_of_one_subgraph_keep_to_their_own_buffers(compiled):
    xs = [networks.numbers(2, 3, 30, 30, seed=seed) for seed in (1, 2)]
    ys = [np.zeros((2, 5), np.float32) for _ in xs]
    calls = [compiled.bind([x], [y]) for x, y in zip(xs, ys, strict=True)]
    for call in calls:
        call.enqueue()
    for call in calls:
        call.wait()
    for x, y in zip(xs, ys, strict=True):
        alone = np.zeros((2, 5), np.float32)
        compiled.run([x], [alone])
        assert np.array_equal(y, alone)
    assert not np.array_equal(*ys)


def test_memory_that_the_device_does_not_have_is_an_error(tmp_path):
    def huge(tensors, alignment):
        return MemoryPlan({t.name: 0 for t in tensors.tensors}, {t.name: 0 for t in tensors.tensors}, (1 << 60,))

    with pytest.raises(UnableError, match=r"the OpenCL device `.*` has no memory for the subgraph: "):
        OpenCLDelegate(planner=huge).compile(networks.residual_block(tmp_path / "m.onnx"))


@pytest.fixture
def bound(tmp_path):
    compiled = OpenCLDelegate().compile(networks.residual_block(tmp_path / "m.onnx"))
    x, y = networks.numbers(1, 16, 9, 9), np.zeros((1, 16, 9, 9), np.float32)
    return compiled.bind([x], [y]), x, y


def test_results_follow_the_callers_arrays(bound):
    call, x, y = bound
    call.run()
    first = y.copy()
    x *= -2
    call.run()
    assert not np.array_equal(y, first)
    x /= -2
    call.run()
    assert np.array_equal(y, first)


def test_device_that_refuses_is_an_error_with_a_way_out(bound, monkeypatch):
    def lost(*arguments):
        raise cl.RuntimeError("clEnqueueNDRangeKernel failed: DEVICE_NOT_AVAILABLE")

    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", lost)
    with pytest.raises(StretchError, match="DEVICE_NOT_AVAILABLE") as caught:
        bound[0].enqueue()
    assert "--map gpu=cpu" in caught.value.hint


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
    with Session(two_branches(tmp_path / "b")) as session:
        x = random_input(session.bundle)
        before = session(x)

        def lost(*arguments):
            raise cl.RuntimeError("clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES")

        with monkeypatch.context() as patched:
            patched.setattr(cl, "enqueue_nd_range_kernel", lost)
            with pytest.raises(StretchError, match="failed: clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES"):
                session(x)
        assert np.array_equal(session(x), before)
