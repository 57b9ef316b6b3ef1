"""Arguments of the Python API, and refinement of a bundle by one call: in place, as a copy, and resumed after an interrupt."""

import contextlib
import random
import shutil

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn
from torch.nn.utils import prune

from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import verify_bundle
from stretch.api.refining import CHECKPOINT, RefineOptions, checkpoint_folder, refine_bundle
from stretch.export.bundle import BundleFacts, export_bundle
from stretch.export.lowering import read_ranges, scales_of
from stretch.export.precision import Acceptance, export_precision
from stretch.network.capture import capture
from stretch.stages.arguments import copy_module, full_shape, preserve_random_state
from stretch.transform import build
from stretch.transform import refine as checkpoints
from tests.effort import examples
from tests.stretch.api import snapshot
from tests.stretch.cli.commands import tree
from tests.stretch.designs import cpu_and
from tests.stretch.interrupts import Interrupt
from tests.stretch.pictures import folder_of

OPTIONS = RefineOptions(steps=3, image_count=32, run_images=2)


@pytest.fixture
def bundle(tiny_bundle, tmp_path):
    return shutil.copytree(tiny_bundle, tmp_path / "bundle")


@pytest.fixture
def images(tmp_path):
    return folder_of(tmp_path / "images", 40)


@pytest.mark.slow
def test_refined_bundle_replaces_the_original_and_states_its_agreement(bundle, images):
    before = load_bundle(bundle).manifest
    rows = []
    state = torch.get_rng_state()
    answer = refine_bundle(bundle, images, OPTIONS, progress=rows.append)
    assert torch.equal(torch.get_rng_state(), state)
    manifest = load_bundle(bundle, check_hashes=True).manifest
    assert not list(verify_bundle(bundle).problems)
    assert (answer.bundle, answer.model) == (bundle, "tiny_resnet")
    assert manifest.design == before.design
    assert manifest.agreement.images == answer.agreement.images == 10
    assert manifest.agreement.bundle.images == 2
    assert manifest.agreement.value == answer.agreement.after >= answer.agreement.before
    assert answer.refinement.after <= answer.refinement.before
    assert manifest.weights.source == ("trained" if answer.kept == "refined" else before.weights.source)
    assert any(row.startswith("refine, ") for row in rows)
    # neither a checkpoint nor the earlier bundle remains
    assert sorted(path.name for path in bundle.parent.iterdir()) == ["bundle", "images"]


@pytest.mark.slow
def test_interrupted_refinement_resumes_and_writes_the_same_as_an_uninterrupted_one(bundle, images, monkeypatch):
    whole = refine_bundle(bundle, images, OPTIONS, out=bundle.parent / "whole")
    before = tree(bundle)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_INTERVAL_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        refine_bundle(bundle, images, OPTIONS, out=bundle.parent / "new", progress=Interrupt(2, "refine, "))
    kept = checkpoint_folder(bundle.parent / "new")
    assert kept.name == f"new{CHECKPOINT}"
    assert any(kept.iterdir())
    assert not (bundle.parent / "new").exists()
    answer = refine_bundle(bundle, images, OPTIONS, out=bundle.parent / "new")
    assert not kept.exists()
    assert (tree(bundle), answer.kept) == (before, whole.kept)
    assert answer.refinement.steps == whole.refinement.steps == 3
    assert answer.refinement.after == pytest.approx(whole.refinement.after, rel=1e-4)
    assert answer.agreement.error_after == pytest.approx(whole.agreement.error_after, rel=1e-3)


@pytest.mark.slow
def test_checkpoint_of_other_images_is_refused_and_nothing_changes(bundle, images, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_INTERVAL_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        refine_bundle(bundle, images, OPTIONS, progress=Interrupt(2, "refine, "))
    np.save(images / "some.npy", np.random.default_rng(1).standard_normal((40, 3, 32, 32)).astype(np.float32))
    before = tree(bundle.parent)
    with pytest.raises(StretchError, match="of a refinement with other images"):
        refine_bundle(bundle, images, OPTIONS)
    assert tree(bundle.parent) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": float("nan")}, "no time to refine for"),
        ({"steps": 0}, "no number of steps"),
        ({"run_images": -1}, "no number of images"),
    ],
)
def test_invalid_refinement_is_refused_before_any_work(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        refine_bundle(tmp_path / "none", tmp_path / "none", RefineOptions(**options))
    assert not list(tmp_path.iterdir())


def test_checkpoint_in_a_bundle_or_below_a_file_is_refused(bundle, images):
    before = tree(bundle.parent)
    for folder, message in ((bundle / "kept", "would lie in the bundle"), (images / "some.npy", "no folder that can be written")):
        with pytest.raises(UsageError, match=message):
            refine_bundle(bundle, images, replace(OPTIONS, checkpoint=folder))
    assert tree(bundle.parent) == before


def maps():
    """A network with an output of five feature maps instead of class scores."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(4)]
    network = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), *blocks, nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 5, 1))
    return capture(network.eval(), (1, 3, 32, 32), "maps")


def test_network_without_class_scores_is_judged_by_the_error_of_its_outputs(tmp_path, images):
    captured = maps()
    design = cpu_and("gpu", captured.graph, "sum")
    assert any(len(part.branches) > 1 for part in design.segments)
    export_bundle(tmp_path / "b", captured, build(captured, design), None, BundleFacts("mi9", False, "random"))
    answer = refine_bundle(tmp_path / "b", images, OPTIONS)
    agreement = answer.agreement
    assert (agreement.before, agreement.after, agreement.low) == (None, None, None)
    assert load_bundle(tmp_path / "b").manifest.agreement.error == agreement.error_after <= agreement.error_before
    assert any("no list of class scores" in warning for warning in answer.warnings)


@pytest.mark.slow
def test_int8_files_have_the_ranges_of_the_last_training_steps(tmp_path, images):
    """The ranges do not depend on the images of a later export."""
    captured = maps()
    model, precision = build(captured, cpu_and("gpu", captured.graph, "sum")), {"cpu": "int8", "gpu": "fp32"}
    export_bundle(tmp_path / "b", captured, model, None, BundleFacts("mi9", False, "random", precision=precision))
    answer = refine_bundle(tmp_path / "b", images, replace(OPTIONS, steps=20))
    assert answer.kept == "refined"
    assert answer.refinement.rounded_after <= answer.refinement.rounded_before
    bundle = load_bundle(tmp_path / "b")
    noise = [np.random.default_rng(5).standard_normal((1, 3, 32, 32)).astype(np.float32)]
    export_precision(bundle, tmp_path / "int8", precision, noise, "noise", Acceptance(0.1))
    lowered = load_bundle(tmp_path / "int8")
    for sub in bundle.manifest.subgraphs:
        if sub.processor == "cpu":
            file = bundle.file(sub.file)
            ranges, scales = read_ranges(onnx.load(file), file), scales_of(onnx.load(lowered.file(sub.file)))
            assert ranges
            assert all(scales[name] == pytest.approx(scale) for name, scale in ranges.items())


SHAPE = (1, 3, 8, 8)


def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 2, 1), nn.Dropout(0.5)))


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_module_in_any_state_is_copied_without_a_change(data):
    module = small().to(data.draw(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])))
    for part in module.modules():
        part.training = data.draw(st.booleans())
    for parameter in module.parameters():
        parameter.requires_grad_(data.draw(st.booleans()))
        if data.draw(st.booleans()):
            parameter.grad = torch.ones_like(parameter)
    calls = []
    if data.draw(st.booleans()):
        module[0].register_forward_hook(lambda *call: calls.append(call))
    before = snapshot.of_module(module)
    copied = copy_module(module, SHAPE)
    assert snapshot.of_module(module) == before
    assert not any(part.training for part in copied.modules())
    assert {t.dtype for t in copied.state_dict().values() if t.is_floating_point()} == {torch.float32}
    for (name, current), (_, other) in zip(module.state_dict().items(), copied.state_dict().items(), strict=True):
        assert torch.equal(current.float(), other.float()), name
        assert current.data_ptr() != other.data_ptr()
    count = len(calls)
    copied(torch.zeros(SHAPE))
    assert len(calls) == count


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("change", [lambda conv: prune.l1_unstructured(conv, "weight", 0.5), nn.utils.weight_norm])
def test_weights_computed_by_a_hook_are_copied_with_their_values(change):
    module = small()
    change(module[0])
    x = torch.randn(SHAPE)
    before = snapshot.of_module(module)
    with torch.no_grad():
        assert torch.equal(copy_module(module, SHAPE)(x), module.eval()(x))
    module.train()
    assert snapshot.of_module(module) == before


def hooked():
    module = small()
    module[3][0].register_forward_hook(lambda part, inputs, output: output + 1)
    return module


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (hooked, "a hook of `Sequential` changes its output"),
        (lambda: small().to("meta"), r"`Sequential` has no weights: `0.weight` is on the device `meta`"),
        (lambda: nn.Sequential(nn.LazyConv2d(4, 3)), r"`Sequential` has no weights yet: `0.weight`"),
        (lambda: nn.Sequential(nn.Linear(2, 2, dtype=torch.complex64)), r"`Sequential` has complex weights: `0.weight`"),
    ],
    ids=["hook", "meta", "lazy", "complex"],
)
def test_module_that_cannot_be_branched_is_refused_with_the_reason(module, message):
    with pytest.raises(StretchError, match=message):
        copy_module(module(), SHAPE)


@pytest.mark.parametrize(
    "shape", [[3, 32, 48], torch.Size((1, 3, 32, 48)), np.array([3, 32, 48]), (224, 224), (3, 0, 32), (3, 2.5, 32), "3x32x32"]
)
def test_shape_may_omit_the_batch_and_invalid_shapes_are_refused(shape):
    if any(size == 48 for size in shape):
        full = full_shape(shape)
        assert (full, {type(size) for size in full}) == ((1, 3, 32, 48), {int})
    else:
        with pytest.raises(UsageError, match="is no shape of one image"):
            full_shape(shape)


@pytest.mark.parametrize("error", [None, ValueError])
def test_random_state_is_restored_even_after_an_error(error):
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002 - the test draws from the global generator

    before = snapshot.of_random_state()
    with contextlib.suppress(ValueError), preserve_random_state():
        torch.manual_seed(3)
        first = draw()
        if error:
            raise error
    assert snapshot.of_random_state() == before
    assert draw() != first
