"""Sensitivity measured on images, and its use by the planner."""

import pytest
import torch
from msgspec.structs import replace

from predictors.errors import InfeasibleError, UsageError
from stretch.evaluation.agreement import compare
from stretch.evaluation.sensitivity import source
from stretch.evaluation.sensitivity.blocks import BlockLosses
from stretch.evaluation.sensitivity.source import (
    lowest_plausible,
    lowest_prediction,
    measure,
    measure_design,
    random_designs,
    sensitivity_of,
)
from stretch.network.capture import capture
from stretch.network.models.tiny import BasicBlock, SmallResNet
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import load_accuracy, save_accuracy
from stretch.planning.network.segments import split_segments
from stretch.planning.plan import PlanningProblem, plan
from stretch.stages.network import read_network
from stretch.transform import build
from stretch.transform.calibrate import calibrate, undivided_design
from stretch.transform.calibrate.split import Images, divide
from tests.predictors.specified import specified
from tests.stretch.designs import cpu_and, without_blocks
from tests.stretch.pictures import coloured
from tests.stretch.planning.cost.measured import made


@pytest.fixture(scope="module")
def network():
    return read_network("tiny_resnet", weights="none")


@pytest.fixture(scope="module")
def space(network):
    request = PlanningProblem.of(
        network.graph, specified("pixel6"), PlanConfig(processors=("cpu", "gpu"), alpha=1e3, beta=1e3, balance=0.01)
    )
    return request.stage_space(merged=True)


def images(count, seed):
    return [torch.from_numpy(coloured(count, seed))]


def test_images_of_one_class_and_a_network_without_stretchable_segments_are_refused(network, space):
    equal_images = [images(1, 0)[0].expand(12, -1, -1, -1)]
    with pytest.raises(UsageError, match="the original answers one class for 12 images"):
        measure(network.captured, space, images(16, 0), equal_images, 4)
    request = PlanningProblem.of(network.graph, specified("pixel6"), PlanConfig(processors=("cpu", "gpu"), alpha=1e-6))
    with pytest.raises(InfeasibleError, match="nothing to measure"):
        measure(network.captured, request.stage_space(merged=True), images(16, 0), images(12, 1), 4)


@pytest.mark.slow
def test_design_is_measured_like_building_calibrating_and_comparing_it(network, space):
    design = random_designs(space, network.graph.name, "pixel6", 1, (0.8, 1.2), 0)[0]
    fitted, held = images(16, 0), images(12, 1)
    result = measure_design(network.captured, design, fitted, held, space)
    model = build(network.captured, design)
    calibrate(model, network.captured, fitted)
    agreement = compare(model, network.captured, held)[0]
    assert (result.agreement, result.error) == (agreement.value, pytest.approx(agreement.error**2))
    assert len(result.segments) == sum(not part.whole for part in design.segments)


LOOSE = {"processors": ("cpu", "gpu"), "alpha": 1e3, "beta": 1e3, "balance": 0.01, "macs": (0.8, 1.2)}


@pytest.mark.slow
def test_measured_sensitivity_states_its_images_and_is_used_by_the_planner(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "FITTED", 16)
    monkeypatch.setattr(source, "HELD_BACK", 8)
    network = read_network("tiny_resnet", weights="none")
    divided = Images(images(10, 0), images(12, 1), synthetic=images(20, 2))
    sensitivity = sensitivity_of(network.captured, specified("pixel6"), PlanConfig(**LOOSE), divided, 4)
    assert (sensitivity.model, sensitivity.join) == ("tiny_resnet", "project")
    assert (sensitivity.on.images, sensitivity.on.held_back, sensitivity.on.device) == (16, 8, specified("pixel6").id)
    assert not sensitivity.on.complete
    assert len(sensitivity.on.weights) == len(sensitivity.on.pictures) == 64
    save_accuracy(tmp_path / "sensitivity.json", sensitivity)
    assert load_accuracy(tmp_path / "sensitivity.json", "tiny_resnet") == sensitivity
    planned = plan(network.graph, specified("pixel6"), PlanConfig(**LOOSE), sensitivity)
    assert planned.accuracy == sensitivity.prediction(sensitivity.loss(network.graph, planned.design))


@pytest.mark.parametrize(("predicted", "measured", "looser"), [(0.7, 0.8, True), (0.8, 0.7, False)])
def test_next_prediction_is_corrected_by_the_agreement_of_the_last_network(network, predicted, measured, looser):
    unchanged = build(network.captured, undivided_design(network.captured))
    agreement = replace(compare(unchanged, network.captured, images(12, 1))[0], value=measured, images=1000)
    lowest = lowest_prediction(0.75, predicted, agreement)
    assert (lowest < 0.75) == looser
    assert lowest_prediction(0.7, predicted, agreement) < lowest


@pytest.mark.parametrize("minimum", [0.5, 0.9, 0.99])
def test_interval_of_the_lowest_plausible_prediction_reaches_the_bound(minimum):
    sensitivity = replace(made(noise=0.5), spread=0.4)
    bound = lowest_plausible(sensitivity, minimum)
    assert sensitivity.prediction(sensitivity.max_loss(bound)).high == pytest.approx(minimum)
    assert lowest_plausible(sensitivity, 1.0) == pytest.approx(1.0)


def test_planning_divides_the_calibration_images_as_calibration_does():
    given = Images(list(torch.cat(images(40, 0)).split(16)), images(12, 1))
    parts, split = divide(given.fitted, 1 << 20)
    planning = given.for_planning
    assert torch.equal(torch.cat(planning.fitted), torch.cat(parts[: split.fitted]))
    assert torch.equal(torch.cat(planning.held_back), torch.cat(parts[split.fitted :]))


@torch.no_grad()
def test_loss_of_a_block_is_the_relative_squared_error_without_it_and_zero_for_a_useless_block():
    small = SmallResNet(BasicBlock, (8, 16), 4).eval()
    torch.nn.init.zeros_(small.stages[1][2].bn2.weight)
    captured = capture(small, (1, 3, 32, 32), "small")
    x = torch.from_numpy(coloured(20))
    design = cpu_and("gpu", captured.graph, "project")
    want = small(x)
    losses_of = BlockLosses(captured, x.split(7))
    for segment in split_segments(captured.graph):
        losses = losses_of(design, segment)
        assert list(losses) == ([1, 2, 3] if segment.branchable else [])
        for number, loss in losses.items():
            got = without_blocks(small, segment, [number])(x)
            assert loss == pytest.approx(float((got - want).square().sum() / want.square().sum()), rel=1e-3)
            assert (loss == 0) == ((segment.name, number) == ("s2", 2))
