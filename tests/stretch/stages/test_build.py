"""The control is the plan's own, and images are divided between calibration and comparing."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from predictors.errors import StretchError, UsageError  # noqa: E402
from scheduler.bundle.load import load_bundle  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.export.bundle import BundleFacts, export_bundle  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from stretch.stages.build import CLOSE, Images, compare_on, divide_images, run_on  # noqa: E402
from stretch.stages.design import decide_design  # noqa: E402
from stretch.stages.network import read_network  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.calibrate import whole_design  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.predictors.specified import specified  # noqa: E402
from tests.stretch.designs import identity_design  # noqa: E402
from tests.stretch.several import form  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def network():
    return read_network("tiny_resnet", weights="none")


@pytest.fixture(scope="module")
def planned(network):
    return decide_design(network.graph, specified("pixel6"), PlanConfig(alpha=1000.0, beta=1000.0, macs=(0.7, 1.4)))


@given(st.integers(20, 60), st.integers(1, 30), st.integers(0, 3))
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_image_that_is_there_twice_is_taken_once_and_it_is_said(network, tmp_path, there, copies, seed):
    """Else what nothing was fitted to would be what was."""
    shape = network.graph.input.shape[1:]
    some = np.zeros((there + copies, *shape), np.float32)
    some[:there, 0, 0, 0] = np.arange(there)
    some[there:] = some[np.random.default_rng(seed).integers(0, there, copies)]
    np.save(tmp_path / "some.npy", some[np.random.default_rng(seed).permutation(len(some))])
    result = divide_images(tmp_path, network.captured, 256)
    numbers = [int(n) for part in (result.fitted, result.held_back) for batch in part for n in batch[:, 0, 0, 0]]
    assert sorted(numbers) == list(range(there))
    assert result.repeated == copies
    assert f"{copies} of the images are the same as others" in result.warnings[0]


def test_images_of_which_too_few_differ_are_refused(network, tmp_path):
    np.save(tmp_path / "some.npy", np.ones((40, *network.graph.input.shape[1:]), np.float32))
    with pytest.raises(StretchError, match="40 images of which only 1 differ"):
        divide_images(tmp_path, network.captured, 64)


def test_images_that_are_all_alike_give_no_agreement(network, tmp_path):
    shape = network.graph.input.shape[1:]
    same = [torch.zeros(8, *shape)]
    _, answer = compare_on(build(network.captured, whole_design(network.captured, identity_design(network.graph))), network.captured, same)
    assert "the original answers one class for 8 images" in answer[0]


def test_network_that_lost_the_original_s_classes_is_said_to_need_training(network, planned):
    model = build(network.captured, planned.design)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn_like(value))
    x = [torch.randn(64, *network.graph.input.shape[1:]) * torch.linspace(0.1, 20, 64)[:, None, None, None]]
    compared, answer = compare_on(model, network.captured, x)
    assert compared is not None
    assert compared.agreement.value < CLOSE
    assert "train it" in answer[0]


def test_files_are_run_on_some_of_the_images_held_back_and_what_was_left_out_is_said(network, tmp_path):
    captured = network.captured
    model = build(captured, identity_design(network.graph)).eval()
    export_bundle(tmp_path / "b", captured, model, None, BundleFacts("mi9", False, "random"), "0", controls=False)
    some = torch.randn(24, *network.graph.input.shape[1:], generator=torch.Generator().manual_seed(0))
    images = Images([some[:16]], list(some[16:].split(3)))
    result, said = run_on(load_bundle(tmp_path / "b"), captured, images, count=5)
    # of this noise the original sees one class alone
    assert (result.images, result.value, result.classes, said) == (5, None, 1, [])
    assert result.error < 1e-3
    result, said = run_on(load_bundle(tmp_path / "b"), captured, images, seconds=0.0)
    assert result.images == 1
    assert said == ["in the time there is, the bundle's files were run on 1 of 8 images"]


@pytest.mark.parametrize(("shapes", "says"), [((4, 3, 16, 16), "batch of 4"), ("towers", "networks of one input")])
def test_images_of_a_network_that_reads_several_at_once_are_refused(tmp_path, shapes, says):
    module, arguments = form("towers" if shapes == "towers" else "deep")
    captured = capture(module, arguments if shapes == "towers" else shapes, "net")
    np.save(tmp_path / "images.npy", np.zeros((40, 3, 16, 16), np.float32))
    with pytest.raises(UsageError, match=says):
        divide_images(tmp_path, captured, 16)
