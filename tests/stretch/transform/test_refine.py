"""Refinement of a network towards its original: errors, views, checkpoints."""

import contextlib
import json
import math

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import stretch
import stretch.transform.refine as module
from predictors.errors import StretchError
from stretch.evaluation.agreement import compare
from stretch.stages.build import int8_rounding
from stretch.transform import build
from stretch.transform.calibrate.split import Images
from stretch.transform.refine import FILE, VERSION, Checkpoint, Done, Refinement, SegmentErrors, SegmentPairs, Views, refine
from tests.stretch.designs import branchable, cpu_and, divided, identity_design, in_bands
from tests.stretch.interrupts import Interrupt
from tests.stretch.several import form

INT8 = {"cpu": "int8", "gpu": "int8"}


def images(result, count=64, seed=0):
    """Make smooth images, so that a crop resembles the whole image."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, result.graph.input.shape[1], 6, 6, generator=generator)
    return torch.nn.functional.interpolate(coarse, result.graph.input.shape[2:], mode="bicubic")


def relative_error(model, result, x):
    with torch.inference_mode():
        want = result.module(x)
        return float((model(x) - want).square().sum() / want.square().sum())


@pytest.mark.slow
@pytest.mark.parametrize(("join", "part"), [("sum", 16), ("concat", 4)])
def test_refined_network_is_closer_to_the_original_on_unseen_images(captured, monkeypatch, join, part):
    """In whole batches, and in parts of the number of images that fits into memory."""
    result = captured("tiny_resnet")
    model = build(result, cpu_and("gpu", result.graph, join))
    total = 4 * sum(math.prod(op.shape) for op in model.graph.ops)
    monkeypatch.setattr(module, "CPU_BYTES", part * total)
    built = {key: value.clone() for key, value in model.state_dict().items()}
    x = images(result)
    refined = refine(model, result, Images([x[:20], x[20:]]), Refinement(steps=16, batch=16, rate=5e-3, apart=0.5, looks=3))
    assert refined.steps == 16
    assert refined.after < 0.9 * refined.before
    # `after` is measured on the images that calibration holds back
    held = x[::4]
    assert (refined.images, refined.after) == (16, pytest.approx(relative_error(model, result, held), rel=1e-3))
    assert refined.before == pytest.approx(relative_error(build(result, model.design), result, held), rel=1e-3)
    fresh = images(result, 16, seed=5)
    assert relative_error(model, result, fresh) < 0.9 * relative_error(build(result, model.design), result, fresh)
    assert not model.training
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, built[key])}
    assert changed
    # layers before the first segment that differs stay unchanged
    assert not any(key.startswith("stem.") for key in changed)
    # batch norms keep their statistics if a part has few images
    assert any(key.endswith("running_mean") for key in changed) == (part == 16)


@pytest.mark.slow
def test_last_steps_bring_the_int8_network_closer(captured):
    result = captured("tiny_resnet")
    model = build(result, cpu_and("gpu", result.graph, "sum"))
    x = images(result)
    rounding, warnings = int8_rounding(model, INT8, [x[:4]])
    assert not warnings
    settings = Refinement(steps=10, batch=16, rate=5e-3, rounded=1.0, looks=4)
    refined = refine(model, result, Images([x]), settings, rounding=rounding)
    assert refined.rounded_after < 0.9 * refined.rounded_before
    # the ranges of outputs are those of the steps
    held = x[::4]
    assert refined.rounded_after == pytest.approx(relative_error(rounding.network, result, held), rel=1e-3)
    assert refined.after == pytest.approx(relative_error(model, result, held), rel=1e-3)


def test_exact_branches_are_refined_in_fp32_with_a_warning(captured):
    result = captured("tiny_resnet")
    model = build(result, divided(result.graph, in_bands(branchable(result.graph)[0])))
    rounding, warnings = int8_rounding(model, INT8, [images(result, 4)])
    assert (rounding, len(warnings)) == (None, 1)
    assert "refined in fp32 alone, without int8's rounding: branch `s1.cpu` computes a part of its segment" in warnings[0]


@pytest.mark.parametrize(("count", "task", "reason"), [(9, Refinement(steps=3), "9 images are too few"), (64, Refinement(), "without end")])
def test_too_few_images_or_no_end_are_refused(captured, count, task, reason):
    result = captured("tiny_resnet")
    with pytest.raises(StretchError, match=reason):
        refine(build(result, cpu_and("gpu", result.graph, "sum")), result, Images([images(result, count)]), task)


@pytest.fixture(scope="module")
def uninterrupted(captured):
    """A network refined in one go, the result, its rounding to int8, the images and the request."""
    result = captured("tiny_resnet")
    x, settings = Images([images(result, 32)]), Refinement(steps=10, batch=8, rate=2e-3, apart=0.4, looks=5)
    whole = build(result, cpu_and("gpu", result.graph, "sum"))
    rounding, _ = int8_rounding(whole, INT8, x.fitted)
    return whole, refine(whole, result, x, settings, rounding=rounding), rounding, x, settings


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(3,), (1, 1, 2, 5)], ids=str)
def test_interrupted_refinement_ends_like_an_uninterrupted_one(captured, uninterrupted, tmp_path, numbers):
    """Interrupted in the second phase; and more than once, in the first phase and during int8 rounding."""
    result, (whole, expected, rounding, x, settings) = captured("tiny_resnet"), uninterrupted
    # a checkpoint after each step: the run continues from the step before the interruption
    for number in numbers:
        started = build(result, cpu_and("gpu", result.graph, "sum"))
        with contextlib.suppress(KeyboardInterrupt):
            refine(started, result, x, settings, Interrupt(number), Checkpoint(tmp_path, every_s=0), rounding=rounding)
    model = build(result, cpu_and("gpu", result.graph, "sum"))
    refined = refine(model, result, x, settings, checkpoint=Checkpoint(tmp_path, every_s=0), rounding=rounding)
    assert refined.steps == expected.steps
    for name, slack in {"rounded_before": 1e-3, "rounded_after": 1e-3, "before": 1e-5, "after": 1e-4}.items():
        assert getattr(refined, name) == pytest.approx(getattr(expected, name), rel=slack), name
    assert refined.after < refined.before
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=1e-4, atol=1e-6, msg=key)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", ["pyramid", "deep"])
def test_network_of_several_outputs_comes_closer_in_all_of_them(name):
    module, shape = form(name)
    options = {"alpha": 1000.0, "beta": 1000.0, "balance": 0.001, "macs": (0.4, 2.0), "segment_macs": 0.1}
    result = stretch.branch(module, "mi9", input_shape=shape, processors=("cpu", "gpu"), **options)
    images = [torch.randn(48, *result.plan.graph.input.shape[1:], generator=torch.Generator().manual_seed(2))]
    model, captured = result.model, result.original
    assert len(captured.graph.outputs) > 1 or model.sides
    before = compare(model, captured, images)[0].error
    outcome = refine(model, captured, Images(images), Refinement(steps=30, batch=16, looks=5))
    after = compare(model, captured, images)[0].error
    assert outcome.after < outcome.before
    assert after < before


def generator():
    return torch.Generator().manual_seed(0)


def test_errors_are_those_of_every_meeting_point_and_of_the_classifier_input(captured):
    """The expected errors come from running both networks segment by segment."""
    result = captured("tiny_resnet")
    design = cpu_and("gpu", result.graph, "sum")
    model, original = build(result, design), build(result, identity_design(result.graph))
    x = images(result, 4)
    with torch.no_grad():
        errors = SegmentPairs(model, result).errors(x, False, generator())
        branched, reference, expected, read = x, x, [], []
        for part in design.segments:
            for net in (model, original):
                for layer in net.get_submodule(part.name).modules():
                    if isinstance(layer, torch.nn.Linear):
                        layer.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
            branched, reference = (net.get_submodule(part.name)(value) for net, value in ((model, branched), (original, reference)))
            expected.append(float((branched - reference).square().sum() / reference.square().sum()))
    assert (expected[0], [float(error) for error in errors.meeting]) == (0, pytest.approx(expected[1:], rel=1e-4))
    assert float(errors.features) == pytest.approx(float((read[0] - read[1]).square().sum() / read[1].square().sum()), rel=1e-4)


@pytest.mark.parametrize(
    ("join", "apart", "reached"),
    [
        ("sum", True, {"head"}),
        ("sum", False, {"s1", "s2", "s3", "head"}),
        # errors of concatenated backbones are measured at the next segment that can be compared
        ("concat", True, {"s1", "s2", "s3", "head"}),
    ],
)
def test_judged_apart_no_error_reaches_earlier_segments(captured, join, apart, reached):
    result = captured("tiny_resnet")
    model = build(result, cpu_and("gpu", result.graph, join))
    errors = SegmentPairs(model, result).errors(images(result, 4), apart, generator())
    *others, output = errors.meeting
    assert join == "sum" or (others, errors.features) == ([], None)
    output.backward()
    assert {name.split(".")[0] for name, parameter in model.named_parameters() if parameter.grad is not None} == reached


def test_identity_has_nothing_to_refine_and_no_error(captured):
    result = captured("tiny_mobilenet")
    pair, x = SegmentPairs(build(result, identity_design(result.graph)), result), images(result, 4)
    (output,) = pair.outputs(x, 3, original=False)
    assert pair.parameters == []
    torch.testing.assert_close(output, result.module(x).detach())


def test_loss_averages_meeting_points_unless_judged_apart_and_adds_output_and_features():
    errors = SegmentErrors([torch.tensor(value) for value in (0.1, 0.3, 0.5)], torch.tensor(0.7))
    assert float(errors.loss(False)) == pytest.approx(0.2 + 0.5 + 0.7)
    assert float(errors.loss(True)) == pytest.approx(0.4 + 0.5 + 0.7)
    assert float(SegmentErrors([torch.tensor(0.5)]).loss(False)) == 0.5


def ramp(count=4, size=32):
    """Make images whose first two channels are the position of a pixel, and the third the number of the image."""
    line = torch.linspace(-1, 1, size)
    position = torch.stack([line[None, :].expand(size, size), line[:, None].expand(size, size), torch.zeros(size, size)])
    return torch.stack([position + torch.tensor([0, 0, float(i)])[:, None, None] for i in range(count)])


@pytest.fixture
def plain(monkeypatch):
    """Turn off all changes to views but crops and mirroring."""
    for name in ("BLEND_PROBABILITY", "PASTE_PROBABILITY", "LIGHT_CHANGE"):
        monkeypatch.setattr(module, name, 0.0)


def test_each_view_is_a_window_of_one_image_with_an_allowed_area(plain):
    drawn = Views(ramp()).draw(200)
    assert drawn.shape == (200, 3, 32, 32)
    across, down = (drawn[:, i].flatten(1) for i in (0, 1))
    area = (across.amax(1) - across.amin(1)) * (down.amax(1) - down.amin(1)) / 4
    assert area.min() > module.MIN_AREA * 0.8
    assert area.max() <= 1
    assert area.std() > 0.1
    # each view shows one image, and every image occurs
    spread = drawn[:, 2].flatten(1)
    torch.testing.assert_close(spread.amax(1), spread.amin(1))
    assert set(spread[:, 0].round().tolist()) == {0, 1, 2, 3}
    # about half of the views are mirrored, none is upside down
    mirrored = drawn[:, 0, 16, -1] < drawn[:, 0, 16, 0]
    assert 0.3 < mirrored.float().mean() < 0.7
    assert (drawn[:, 1, -1, 16] > drawn[:, 1, 0, 16]).all()


def test_some_views_have_a_rectangle_of_another_image(plain, monkeypatch):
    monkeypatch.setattr(module, "PASTE_PROBABILITY", 0.5)
    third = Views(ramp()).draw(200)[:, 2]
    values = torch.stack([item.flatten().round().mode().values for item in third])
    other = (third - values[:, None, None]).abs() > 1e-3
    # a rectangle from the same image cannot be seen
    pasted = other.flatten(1).any(1)
    assert 0.15 < pasted.float().mean() < 0.55
    # the rectangle may cover less than half: then the rest of the view is the rectangle
    for mask in other[pasted]:
        assert any(torch.equal(value, value.any(1)[:, None] & value.any(0)) for value in (mask, ~mask))


def test_brightness_changes_in_proportion_to_the_deviation_of_the_images(plain, monkeypatch):
    monkeypatch.setattr(module, "LIGHT_CHANGE", 0.2)
    images = ramp() * 100
    lit = Views(images).draw(300)[:, 2, 16, 16]
    assert float((lit[:, None] - 100 * torch.arange(4)).abs().amin(1).std()) > 0.02 * float(images.std())


def test_same_seed_draws_the_same_views_and_leaves_the_global_generator_alone():
    state = torch.random.get_rng_state()
    first, second, other = (Views(ramp(), seed).draw(8) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


DONE = {"version": VERSION, "identity": {"images": "a", "settings": "b"}, "phase": 1, "steps": 3, "seconds": 0.5, "looks": 2, "least": 0.25}
TENSORS = {"model.w": torch.arange(3.0)}


def test_checkpoint_holds_the_last_write_and_leaves_other_files(tmp_path):
    checkpoint = Checkpoint(tmp_path / "new" / "folder")
    assert checkpoint.read({}) is None
    for steps in (1, 2):
        checkpoint.write(Done(**DONE | {"steps": steps}), TENSORS)
    state, tensors = checkpoint.read({"images": "a"})
    assert state.steps == 2
    assert torch.equal(tensors["model.w"], TENSORS["model.w"])
    assert [path.name for path in checkpoint.file.parent.iterdir()] == [FILE]
    checkpoint.remove()
    assert not checkpoint.file.parent.exists()
    (tmp_path / "note.txt").write_text("mine")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(Done(**DONE), TENSORS)
    checkpoint.remove()
    checkpoint.remove()
    assert (tmp_path / "note.txt").read_text() == "mine"
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"x" * 100, b"\xff" * 16),
        *({"steps": -1}, {"least": None}, {"phase": "one"}, {"more": 1}, {"seconds": -0.5}),
    ],
)
def test_damaged_checkpoint_or_invalid_header_is_named(tmp_path, damage):
    Checkpoint(tmp_path).write(Done(**DONE), TENSORS)
    if isinstance(damage, bytes):
        (tmp_path / FILE).write_bytes(damage)
    else:
        with safe_open(tmp_path / FILE, framework="pt") as file:
            state = json.loads(file.metadata()["state"])
        save_file(TENSORS, tmp_path / FILE, {"state": json.dumps(state | damage)})
    with pytest.raises(StretchError, match=rf"{FILE} is no whole checkpoint") as error:
        Checkpoint(tmp_path).read({})
    assert "remove" in error.value.hint


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        *(({"identity": DONE["identity"] | {what: "else"}}, f"a refinement with other {what}") for what in DONE["identity"]),
        ({"version": VERSION + 1}, f"version {VERSION + 1}"),
    ],
)
def test_checkpoint_of_another_refinement_or_version_is_refused_with_the_difference(tmp_path, change, reason):
    Checkpoint(tmp_path).write(Done(**DONE | change), TENSORS)
    with pytest.raises(StretchError, match=reason):
        Checkpoint(tmp_path).read(DONE["identity"])


def test_tensors_that_do_not_fit_the_network_are_reported_as_a_damaged_checkpoint(captured, tmp_path):
    result = captured("tiny_resnet")
    settings = Refinement(steps=1, batch=8, looks=1)

    def run_refinement():
        model = build(result, cpu_and("gpu", result.graph, "sum"))
        refine(model, result, Images([images(result, 32)]), settings, checkpoint=Checkpoint(tmp_path))

    run_refinement()
    with safe_open(tmp_path / FILE, framework="pt") as file:
        header = file.metadata()
    tensors = load_file(tmp_path / FILE)
    name = next(name for name in tensors if name.startswith("best.") and tensors[name].dim() == 4)
    for damaged in (tensors | {name: torch.zeros(1)}, {key: value for key, value in tensors.items() if key != "random.views"}):
        save_file(damaged, tmp_path / FILE, header)
        with pytest.raises(StretchError, match="no whole checkpoint"):
            run_refinement()
