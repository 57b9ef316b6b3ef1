"""Training sees the exported network: the rounded module equals the exported files on ONNX Runtime and torch's fake quantisation."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import load_bundle
from stretch.export.bundle import BundleFacts, export_bundle
from stretch.export.lowering import RANGES, read_ranges, scales_of, stated_ranges
from stretch.export.precision import Acceptance, export_precision
from stretch.export.quantize.replay import replay, runner
from stretch.network.capture import capture
from stretch.stages.rounded import RoundedModel, _half, _per_channel
from stretch.train.extract import extract
from stretch.train.recipe import load_recipe
from stretch.train.session import train_recipe
from stretch.transform import build
from tests.stretch.designs import cpu_and, identity_design
from tests.stretch.train.recipes import network

PRECISION = {"cpu": "int8", "gpu": "fp16"}


def inputs(result, count, seed=0):
    return torch.randn(count, *result.graph.input.shape[1:], generator=torch.Generator().manual_seed(seed))


def rounded(result, design, precision=PRECISION):
    return RoundedModel(build(result, design).eval(), precision, [inputs(result, 8)])


def written(result, module, folder):
    """The bundle exported from a rounded module in its int8 and fp16, with other images than those of its ranges."""
    precision = {name: PRECISION[name] for name in module.model.design.processors}
    facts = BundleFacts("mi9", False, "trained", precision=precision, ranges=module.ranges)
    export_bundle(folder / "float", result, module.model, None, replace(facts, controls=False))
    images = list(inputs(result, 4, seed=7).numpy()[:, None])
    export_precision(load_bundle(folder / "float"), folder / "lower", precision, images, "synthetic", Acceptance(0.1))
    return load_bundle(folder / "lower")


class Conv2dSame(nn.Conv2d):
    """TensorFlow's padding as in timm's class of this name: one row below and one column to the right."""

    def forward(self, x):
        return super().forward(torch.nn.functional.pad(x, (0, 1, 0, 1)))


def padded():
    """A network with asymmetric padding in its convolutions."""
    torch.manual_seed(0)
    layers = [nn.Sequential(Conv2dSame(c, d, 3, stride=2), nn.BatchNorm2d(d), nn.ReLU()) for c, d in ((3, 8), (8, 16))]
    return capture(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval(), (1, 3, 32, 32))


@pytest.mark.parametrize("model", [pytest.param("tiny_resnet", marks=pytest.mark.slow), "padded"])
def test_each_rounded_branch_equals_its_exported_file_within_one_step(captured, tmp_path, model):
    result = padded() if model == "padded" else captured(model)
    design = identity_design(result.graph) if model == "padded" else cpu_and("gpu", result.graph, "project")
    module = rounded(result, design).eval()
    bundle = written(result, module, tmp_path)
    runs = {sub.name: runner(str(bundle.file(sub.file))) for sub in bundle.manifest.subgraphs}
    tensors = replay(bundle.manifest, runs, inputs(result, 1, seed=3).numpy())
    for sub in bundle.manifest.subgraphs:
        with torch.no_grad():
            output = module.branch(sub.name, torch.from_numpy(tensors[sub.input])).numpy()
        difference = np.abs(output - tensors[sub.output])
        if sub.precision == "int8":
            step = module.ranges[sub.name][sub.output][0]
            # a sum halfway between two integers may round to either, depending on the order of addition
            assert difference.max() <= 1.001 * step, sub.name
            assert (difference > step / 2).mean() < 0.05, sub.name
        else:
            assert difference.max() <= 4e-3 * np.abs(tensors[sub.output]).max(), sub.name


@pytest.mark.slow
def test_exported_files_keep_the_scales_of_training_with_any_images(captured, tmp_path):
    result = captured("tiny_resnet")
    module = rounded(result, cpu_and("gpu", result.graph, "project"))
    with torch.no_grad():
        module.scales.mul_(1.5)
    bundle = written(result, module, tmp_path)
    for sub in (sub for sub in bundle.manifest.subgraphs if sub.processor == "cpu"):
        scales = scales_of(onnx.load(bundle.file(sub.file)))
        for tensor, (scale, zero) in module.ranges[sub.name].items():
            assert (scales[tensor][0], scales[tensor][1]) == (pytest.approx(scale, rel=1e-6), zero)


def test_zero_channels_and_values_beyond_half_precision_stay_finite():
    got, bias = _per_channel(torch.zeros(2, 3, 1, 1), torch.tensor([1.0, -2.0]), torch.tensor(0.02))
    assert torch.equal(got, torch.zeros(2, 3, 1, 1))
    torch.testing.assert_close(bias, torch.tensor([1.0, -2.0]), rtol=1e-3, atol=1e-6)
    assert torch.equal(_half(torch.tensor([1e6, 1 / 3])), torch.tensor([65504.0, float(torch.tensor(1 / 3).half())]))


def test_gradients_reach_every_weight_and_statistics_do_not_change(captured):
    result = captured("tiny_resnet")
    module = rounded(result, cpu_and("gpu", result.graph, "project")).train()
    before = {name: value.clone() for name, value in module.model.named_buffers()}
    module(inputs(result, 4)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    assert sum(bool(p.grad.any()) for p in module.parameters()) > 0.9 * len(list(module.parameters()))
    assert all(torch.equal(before[name], value) for name, value in module.model.named_buffers())


def test_processor_in_fp32_is_not_rounded(captured):
    result = captured("tiny_resnet")
    module = rounded(result, identity_design(result.graph), {"cpu": "fp32"}).eval()
    x = inputs(result, 2)
    with torch.no_grad():
        torch.testing.assert_close(module(x), module.model(x))
    assert module.ranges == {}


@pytest.mark.parametrize("text", ['{"a": [0, 3]}', '{"a": [1.0, 300]}', '{"a": 1}', "nothing"])
def test_stated_ranges_other_than_scales_are_refused(tmp_path, text):
    model = onnx.ModelProto()
    assert read_ranges(model, tmp_path) == {}
    onnx.helper.set_model_props(model, {RANGES: text})
    with pytest.raises(StretchError, match=f"states no scales in `{RANGES}`"):
        read_ranges(model, tmp_path)


@given(st.dictionaries(st.text(min_size=1), st.tuples(st.floats(2.0**-60, 2.0**60, width=32), st.integers(0, 255))))
def test_stated_ranges_are_read_back_unchanged(ranges):
    model = onnx.ModelProto()
    onnx.helper.set_model_props(model, stated_ranges(ranges))
    result = read_ranges(model, "there")
    assert {name: (float(scale), int(zero)) for name, (scale, zero) in result.items()} == ranges


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("start=scratch",), "keeps the statistics of its batch norms"),
        (("train.features=0.5",), "tensors at meeting points are not matched"),
        (("start=trained",), "start = trained and the file of weights"),
        (("trained=gone.safetensors",), "start = trained and the file of weights"),
        (('rounding.precision={cpu="fp32",gpu="fp32"}',), "nothing is rounded: cpu, gpu compute in fp32"),
        (('rounding.precision={dsp="int8"}',), "names `dsp`, which the design does not use"),
        (("start=trained", "trained=gone.safetensors"), "cannot read the weights"),
    ],
)
def test_recipes_that_cannot_be_rounded_are_refused(tmp_path, changes, message):
    recipe = load_recipe(network(tmp_path, "[rounding]\n"), changes)
    with pytest.raises((UsageError, StretchError), match=message):
        train_recipe(recipe, tmp_path, tmp_path / "run")


@pytest.mark.slow
def test_rounded_run_starts_from_trained_weights_resumes_and_exports_its_result(tmp_path):
    train_recipe(load_recipe(network(tmp_path), ("train.epochs=1",)), tmp_path, tmp_path / "first")
    extract(tmp_path / "first", tmp_path / "taken", bundle=False)
    weights = f"trained={tmp_path / 'taken' / 'model.safetensors'}"
    recipe = load_recipe(
        network(tmp_path, "[rounding]\nimages = 16\n"), ("start=trained", weights, "train.learning_rate=0.01", "train.epochs=2")
    )
    done, resumed = (train_recipe(recipe, tmp_path, tmp_path / "run", resume=resume) for resume in (False, True))
    assert resumed.metrics["accuracy"] == done.metrics["accuracy"]
    extracted = extract(tmp_path / "run", tmp_path / "out", controls=False)
    assert extracted.accuracy.extracted == pytest.approx(done.metrics["best_accuracy"])
    assert extracted.agreement.bundle.precisions == {"cpu": ("int8",), "gpu": ("fp16",)}
    subgraphs = load_bundle(extracted.bundle).manifest.subgraphs
    assert all(read_ranges(onnx.load(extracted.bundle / sub.file), tmp_path) for sub in subgraphs if sub.processor == "cpu")
    assert {sub.processor: sub.planned_precision for sub in subgraphs} == PRECISION
