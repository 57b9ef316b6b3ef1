"""The control is the plan's own, and images are divided between calibration and comparing."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from stretch.stages.build import CLOSE, build_control, compare_on, divide_images, refined  # noqa: E402
from stretch.stages.design import decide_design  # noqa: E402
from stretch.stages.network import read_network  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.calibrate import MIN_IMAGES, whole_design  # noqa: E402
from tests.predictors.specified import specified  # noqa: E402
from tests.stretch.designs import identity_design  # noqa: E402

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


def folder_of(path, count, shape):
    """Images whose first pixel is their number."""
    some = np.zeros((count, *shape), np.float32)
    some[:, 0, 0, 0] = np.arange(count)
    np.save(path / "some.npy", some)
    return path


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(16, 120), st.integers(16, 64), st.integers(4, 40))
def test_images_held_back_are_others_than_those_for_calibration(network, tmp_path, there, count, most):
    shape = network.graph.input.shape[1:]
    found = divide_images(folder_of(tmp_path, there, shape), network.captured, count, held_back=most)
    fitted, back = ([int(n) for batch in some for n in batch[:, 0, 0, 0]] for some in (found.fitted, found.held_back))
    assert set(fitted).isdisjoint(back)
    assert len(set(fitted) | set(back)) == min(there, count + most)
    assert MIN_IMAGES <= len(fitted) <= count or (len(fitted) > count and not back)
    assert len(back) <= most
    if there >= count + most:
        assert (len(fitted), len(back)) == (count, most)


def test_few_images_all_go_to_calibration_and_it_is_said(network, planned, tmp_path):
    found = divide_images(folder_of(tmp_path, 16, network.graph.input.shape[1:]), network.captured, 64)
    assert (sum(map(len, found.fitted)), found.held_back) == (16, [])
    compared, told = compare_on(build(network.captured, planned.design), network.captured, found.held_back)
    assert compared is None
    assert "too few images" in told[0]


def test_images_that_are_all_alike_are_said_to_mean_little(network, tmp_path):
    shape = network.graph.input.shape[1:]
    same = [torch.zeros(8, *shape)]
    _, told = compare_on(build(network.captured, whole_design(network.captured, identity_design(network.graph))), network.captured, same)
    assert "means little" in told[0]


def test_network_that_lost_the_original_s_classes_is_said_to_need_training(network, planned):
    model = build(network.captured, planned.design)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn_like(value))
    x = [torch.randn(64, *network.graph.input.shape[1:]) * torch.linspace(0.1, 20, 64)[:, None, None, None]]
    compared, told = compare_on(model, network.captured, x)
    assert compared is not None
    assert compared.agreement.value < CLOSE
    assert any(word in told[0] for word in ("train it", "means little"))


def test_folder_without_images_is_refused(network, tmp_path):
    with pytest.raises(StretchError):
        divide_images(tmp_path, network.captured, 64)


def test_refined_network_stays_where_it_was_and_is_no_worse(network, planned):
    shape = network.graph.input.shape[1:]
    images = [torch.randn(32, *shape, generator=torch.Generator().manual_seed(0))]
    model = build(network.captured, planned.design)
    told = []
    found = refined(model, network.captured, images, 0.01, told.append)
    assert found.after <= found.before
    assert told
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
