"""The control is the plan's own, and calibration brings a branched network nearer to the original."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from stretch.stages.build import build_control, calibrate_on  # noqa: E402
from stretch.stages.design import decide_design  # noqa: E402
from stretch.stages.network import read_network  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.predictors.specified import specified  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def network():
    return read_network("tiny_resnet", weights="none")


@pytest.fixture(scope="module")
def planned(network):
    return decide_design(network.graph, specified("pixel6"), PlanConfig(alpha=1000.0, beta=1000.0, macs=(0.7, 1.4)))


def test_control_has_the_design_of_the_plan_or_there_is_none(network, planned):
    from dataclasses import replace

    assert planned.sequential is not None
    assert build_control(network.captured, planned).design == planned.sequential.design
    assert build_control(network.captured, replace(planned, sequential=None)) is None


def test_images_bring_every_segment_nearer_to_the_original(network, planned, tmp_path):
    shape = network.graph.input.shape[1:]
    np.save(tmp_path / "some.npy", np.random.default_rng(0).standard_normal((64, *shape)).astype(np.float32))
    model = build(network.captured, planned.design)
    x = torch.randn(16, *shape)
    with torch.no_grad():
        want = network.captured.module(x)
        before = (model.eval()(x) - want).square().mean()
        errors = calibrate_on(model, network.captured, tmp_path, 64)
        after = (model.eval()(x) - want).square().mean()
    assert errors
    assert all(error.after <= error.before for error in errors)
    assert after < before


def test_folder_without_images_is_refused(network, planned, tmp_path):
    with pytest.raises(StretchError):
        calibrate_on(build(network.captured, planned.design), network.captured, tmp_path, 64)
