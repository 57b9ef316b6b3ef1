import math

import pytest

torch = pytest.importorskip("torch")

import stretch  # noqa: E402 - torch may be missing
from predictors.errors import StretchError  # noqa: E402
from stretch.evaluation.agreement import compare  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.refine import Checkpoint, Refinement, refine, run  # noqa: E402
from tests.stretch.designs import cpu_and, identity_design  # noqa: E402
from tests.stretch.several import form  # noqa: E402

pytestmark = pytest.mark.torch


def images(found, count=64, seed=0):
    """Smooth ones, so that a crop resembles the whole."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, found.graph.input.shape[1], 6, 6, generator=generator)
    return torch.nn.functional.interpolate(coarse, found.graph.input.shape[2:], mode="bicubic")


def off(model, found, x):
    with torch.inference_mode():
        want = found.module(x)
        return float((model(x) - want).square().sum() / want.square().sum())


@pytest.mark.slow
@pytest.mark.parametrize(("join", "part"), [("sum", 16), ("concat", 4)])
def test_network_comes_closer_to_the_original_on_images_it_has_not_seen(captured, monkeypatch, join, part):
    """In whole batches, and in parts of as many images as there is memory for."""
    found = captured("tiny_resnet")
    model = build(found, cpu_and("gpu", found.graph, join))
    each = 4 * sum(math.prod(op.shape) for op in model.graph.ops)
    monkeypatch.setattr(run, "CPU_BYTES", part * each)
    built = {key: value.clone() for key, value in model.state_dict().items()}
    x = images(found)
    refined = refine(model, found, [x[:20], x[20:]], Refinement(steps=16, batch=16, rate=5e-3, apart=0.5, looks=3))
    assert refined.steps == 16
    assert refined.after < 0.9 * refined.before
    # the images that calibration holds back
    held = x[::4]
    assert refined.images == 16
    assert refined.after == pytest.approx(off(model, found, held), rel=1e-3)
    assert refined.before == pytest.approx(off(build(found, model.design), found, held), rel=1e-3)
    fresh = images(found, 16, seed=5)
    assert off(model, found, fresh) < 0.9 * off(build(found, model.design), found, fresh)
    assert not model.training
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, built[key])}
    assert changed
    # not what comes before the first segment that differs
    assert not any(key.startswith("stem.") for key in changed)
    # in parts of few images batch-norms keep their statistics
    assert any(key.endswith("running_mean") for key in changed) == (part == 16)


@pytest.mark.slow
def test_identity_design_stays_the_original_bit_for_bit(captured):
    found = captured("tiny_resnet")
    model = build(found, identity_design(found.graph))
    x = images(found)
    refined = refine(model, found, [x], Refinement(steps=3))
    assert (refined.before, refined.after, refined.steps) == (0, 0, 0)
    with torch.inference_mode():
        assert torch.equal(model(x), found.module(x))


def test_too_few_images_or_no_end_are_refused(captured):
    found = captured("tiny_resnet")
    model = build(found, cpu_and("gpu", found.graph, "sum"))
    with pytest.raises(StretchError, match="9 images are too few to refine with"):
        refine(model, found, [images(found, 9)], Refinement(steps=3))
    with pytest.raises(StretchError, match="without end"):
        refine(model, found, [images(found)], Refinement())


class Interrupt:
    """Progress that is interrupted by Ctrl-C when it is told of for the so-many-th time."""

    def __init__(self, number):
        self.left = number

    def __call__(self, what):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(1,), (3,), (1, 1, 2)], ids=str)
def test_interrupted_refinement_ends_as_one_that_never_stopped(captured, tmp_path, numbers):
    """In the first phase, in the second, and more than once."""
    found = captured("tiny_resnet")
    x, how = images(found, 32), Refinement(steps=8, batch=8, rate=2e-3, apart=0.5, looks=4)
    whole = build(found, cpu_and("gpu", found.graph, "sum"))
    expected = refine(whole, found, [x], how)
    # written behind each step, so that it goes on from the one before the interruption
    for number in numbers:
        started = build(found, cpu_and("gpu", found.graph, "sum"))
        with pytest.raises(KeyboardInterrupt):
            refine(started, found, [x], how, Interrupt(number), Checkpoint(tmp_path, every_s=0))
    model = build(found, cpu_and("gpu", found.graph, "sum"))
    refined = refine(model, found, [x], how, checkpoint=Checkpoint(tmp_path, every_s=0))
    assert refined.steps == expected.steps
    assert refined.before == pytest.approx(expected.before, rel=1e-5)
    assert refined.after == pytest.approx(expected.after, rel=1e-4)
    assert refined.after < refined.before
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=1e-4, atol=1e-6, msg=key)


def test_refinement_that_goes_on_makes_only_the_steps_that_are_left(captured, tmp_path):
    found = captured("tiny_resnet")
    x, how = images(found), Refinement(steps=6, batch=8, looks=6)
    with pytest.raises(KeyboardInterrupt):
        refine(build(found, cpu_and("gpu", found.graph, "sum")), found, [x], how, Interrupt(5), Checkpoint(tmp_path, every_s=0))
    told = []
    refined = refine(build(found, cpu_and("gpu", found.graph, "sum")), found, [x], how, told.append, Checkpoint(tmp_path))
    assert refined.steps == 6
    assert len(told) <= 2
    # done already: nothing is left to do
    again = []
    assert refine(build(found, cpu_and("gpu", found.graph, "sum")), found, [x], how, again.append, Checkpoint(tmp_path)).steps == 6
    assert again == []


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", ["pyramid", "deep"])
def test_network_of_several_outputs_comes_closer_in_all_of_them(name):
    module, shape = form(name)
    loose = {"alpha": 1000.0, "beta": 1000.0, "balance": 0.001, "macs": (0.4, 2.0), "segment_macs": 0.1}
    result = stretch.branch(module, "mi9", input_shape=shape, processors=("cpu", "gpu"), **loose)
    images = [torch.randn(48, *result.plan.graph.input.shape[1:], generator=torch.Generator().manual_seed(2))]
    model, captured = result.model, result.original
    assert len(captured.graph.outputs) > 1 or model.sides
    before = compare(model, captured, images).agreement.error
    found = refine(model, captured, images, Refinement(steps=30, batch=16, looks=5))
    after = compare(model, captured, images).agreement.error
    assert found.after < found.before
    assert after < before
