"""A refined network is no worse than it was, in the errors of its outputs and in how often it agrees."""

import pytest

torch = pytest.importorskip("torch")

from msgspec.structs import replace  # noqa: E402 - torch may be missing

from scheduler.bundle.agreement import Agreement  # noqa: E402
from stretch.evaluation.agreement import compare  # noqa: E402
from stretch.stages import refine as module  # noqa: E402
from stretch.stages.build import Images  # noqa: E402
from stretch.stages.refine import KEPT, refine_and_compare, refined  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.calibrate import calibrate  # noqa: E402
from stretch.transform.refine import Refinement  # noqa: E402
from tests.stretch.designs import cpu_and  # noqa: E402

pytestmark = pytest.mark.torch


def noise(found, count, seed, scale=1.0, shift=0.0):
    return torch.randn(count, *found.graph.input.shape[1:], generator=torch.Generator().manual_seed(seed)) * scale + shift


@pytest.mark.slow
def test_refined_network_stays_where_it_was_and_is_no_worse(captured):
    found = captured("tiny_resnet")
    model = build(found, cpu_and("gpu", found.graph, "sum"))
    told = []
    refinement = refined(model, found, [noise(found, 32, 0)], Refinement(minutes=0.01), told.append)
    assert refinement.after <= refinement.before
    assert told
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


@pytest.mark.slow
def test_network_that_came_closer_is_kept_and_both_comparisons_are_its_own(captured):
    found = captured("tiny_resnet")
    model = build(found, cpu_and("gpu", found.graph, "sum"))
    # scores with the wrong sign: the best class is the original's worst, so it cannot agree less often afterwards
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".fc." in name:
                parameter.neg_()
    images = Images([noise(found, 32, 0)], [noise(found, 8, 1)])
    before = compare(model, found, images.held_back).agreement
    assert before.value == 0
    outcome = refine_and_compare(model, found, images, Refinement(steps=8, batch=16, rate=5e-3, looks=2))
    assert outcome.kept == "refined"
    assert outcome.refinement.after < outcome.refinement.before
    assert outcome.before.agreement == before
    assert outcome.after.agreement == compare(model, found, images.held_back).agreement
    assert outcome.after.agreement.value >= before.value
    assert KEPT not in outcome.warnings


@pytest.mark.slow
def test_network_that_agrees_less_often_on_images_held_back_keeps_its_start(captured):
    found = captured("tiny_resnet")
    model = build(found, cpu_and("gpu", found.graph, "sum"))
    # calibrated on images like those held back, refined on others that look nothing like them
    held_back = noise(found, 64, 0)
    calibrate(model, found, [held_back])
    start = {key: value.clone() for key, value in model.state_dict().items()}
    images = Images([noise(found, 32, 1, scale=30.0, shift=90.0)], [held_back])
    outcome = refine_and_compare(model, found, images, Refinement(steps=12, batch=16, rate=3e-2, looks=2))
    assert outcome.kept == "start"
    assert KEPT in outcome.warnings
    assert outcome.refinement.after == outcome.refinement.before
    assert outcome.after == outcome.before
    for key, value in model.state_dict().items():
        assert torch.equal(value, start[key]), key


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ((0.5, 0.2), (0.4, 0.1), True),
        ((0.5, 0.1), (0.5, 0.2), True),
        ((0.5, 0.2), (0.5, 0.1), False),
        ((0.5, 0.1), (0.6, 0.2), False),
        ((None, 0.1), (None, 0.2), True),
        ((None, 0.2), (None, 0.1), False),
    ],
)
def test_classes_decide_and_errors_where_they_are_as_many_or_none(before, after, worse):
    plain = Agreement(value=None, low=None, high=None, top5_overlap=None, error=0.0, images=8)
    one, other = (replace(plain, value=value, error=error) for value, error in (before, after))
    assert module._worse(other, one) == worse


@pytest.mark.slow
def test_too_few_images_to_hold_any_back_are_told_and_errors_decide(captured):
    found = captured("tiny_resnet")
    model = build(found, cpu_and("gpu", found.graph, "sum"))
    outcome = refine_and_compare(model, found, Images([noise(found, 16, 0)], []), Refinement(steps=4, batch=16, rate=5e-3, looks=2))
    assert (outcome.before, outcome.after) == (None, None)
    assert "too few images" in outcome.warnings[0]
    assert outcome.kept == ("refined" if outcome.refinement.after < outcome.refinement.before else "start")
