from pathlib import Path

import numpy as np
import pytest

from scheduler.delegates.base import UnableError
from scheduler.delegates.opencl import OpenCLDelegate
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


def test_subgraph_whose_kernel_is_not_compiled_is_one_that_another_delegate_may_run_and_its_log_is_named(tmp_path, added_template):
    (tmp_path / "broken.cl").write_text("#error it does not compile")
    path = networks.save(tmp_path / "c.onnx", [("Cos", ["x"], "y", {})], {"x": (1, 5, 2, 2)}, ["y"], {})
    added_template("Cos", networks.cosine("broken"), tmp_path)
    with pytest.raises(UnableError, match="does not compile the kernel `broken`; its log is in ") as caught:
        OpenCLDelegate.create(()).compile(path)
    Path(caught.value.message.rsplit(" ", 1)[-1]).unlink()
