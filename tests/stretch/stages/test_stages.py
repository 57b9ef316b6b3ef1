"""Results, requests and refusals of each stage: designs, networks, code, explanations, predictions, refinement, reopened bundles."""

import json
import random
import shutil
from dataclasses import replace

import msgspec
import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct
from torch import nn

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.predictor import LatencyPredictor
from scheduler.bundle.agreement import Agreement
from scheduler.bundle.load import load_bundle
from scheduler.formats.onnx import open_onnx
from stretch.export.bundle import BundleFacts, export_bundle
from stretch.export.precision import export_precision
from stretch.export.quantize.images import synthetic_images
from stretch.network.capture import capture
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.stages import build as module
from stretch.stages.abilities import stage_abilities
from stretch.stages.build import MIN_AGREEMENT, FileComparison, compare_with_original, divide_images
from stretch.stages.explain import explain_on
from stretch.stages.network import check_numbers, read_graph, read_network
from stretch.stages.reopen import load_bundle_model
from stretch.tools.emit.package import emit
from stretch.transform import build
from stretch.transform.calibrate import undivided_design
from stretch.transform.calibrate.split import Images
from tests.corpus.mutations import VALUES, swapped
from tests.effort import examples
from tests.predictors.specified import specified, stating
from tests.scheduler.bundles import edit, file_entry, two_branches
from tests.stretch import exact_bundles
from tests.stretch.channel_networks import small, small_in_channels
from tests.stretch.conftest import _captured
from tests.stretch.designs import cpu_and, identity_design
from tests.stretch.network.capture import token_patterns
from tests.stretch.several import form


def test_model_becomes_a_package_of_one_class_and_its_options_are_refused_for_a_bundle(tiny_bundle, tmp_path):
    answer = emit("tiny_mobilenet", tmp_path / "net", (1, 3, 64, 64), weights="none")
    assert not answer.branched
    assert "torch.randn(1, 3, 64, 64)" in (tmp_path / "net" / "example.py").read_text()
    with pytest.raises(UsageError, match="has its own input and weights"):
        emit(str(tiny_bundle), tmp_path / "other", (1, 3, 64, 64))


def test_reason_of_a_processor_adds_a_subgraph_with_a_different_reason(tmp_path):
    bundle = load_bundle(two_branches(tmp_path / "b"))
    on_gpu = {"planned_precision": "fp16"}
    mixed = [msgspec.structs.replace(e, **on_gpu) if e.processor == "gpu" else e for e in bundle.manifest.subgraphs]
    first, *_, last = (i for i, entry in enumerate(mixed) if entry.processor == "gpu")
    mixed[first] = msgspec.structs.replace(mixed[first], planned_precision="fp32")
    one = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, subgraphs=mixed))
    reason = explain_on(one, load_device("pixel6"), lambda name: None).processors["gpu"].reason
    assert (reason.count(f"; {mixed[last].name}: "), reason.count("planned was fp16")) == (1, 1)


def test_operator_that_a_runtime_splits_takes_the_time_of_all_its_kernels(captured, tmp_path):
    result = captured("tiny_regnet")
    model = build(result, identity_design(result.graph))
    export_bundle(tmp_path / "b", result, model, model, BundleFacts("mi9", False, "random"))
    device = stating(specified("mi9"), rewrites=("grouped_conv=parts",))
    answer = explain_on(load_bundle(tmp_path / "b"), device, lambda name: None)
    predictor = LatencyPredictor(device)
    for subgraph, entry in zip(answer.subgraphs, load_bundle(tmp_path / "b").manifest.subgraphs, strict=True):
        graph = open_onnx(tmp_path / "b" / entry.file).graph
        assert subgraph.ms == pytest.approx(predictor.predict(graph, entry.processor, entry.precision).computing_ms)
    assert any("kernels of tflite_cpu" in row.reason for row in answer.ops)


TOKEN_NET = """
import torch


class Net(torch.nn.Module):
    input_shape = (1, 3, 8, 8)

    def __init__(self):
        super().__init__()
        self.patch, self.norm = torch.nn.Conv2d(3, 6, 2, 2), torch.nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(self.patch(x).flatten(2).transpose(1, 2)).mean(1)
"""


def test_network_that_cannot_be_traced_is_still_read_for_a_prediction(tmp_path):
    (tmp_path / "tokens.py").write_text(TOKEN_NET)
    read = read_graph(f"{tmp_path}/tokens.py:Net", trust_code=True)
    assert ("cannot capture node" in read.refusal, read.graph.macs) == (True, 16 * 6 * 12)
    assert read_graph("tiny_resnet").refusal is None


def test_non_finite_weights_are_refused_by_name_but_infinite_masks_are_allowed():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    net.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    check_numbers(net, "net")
    with pytest.raises(StretchError, match=r"`weight` of `lazy` has no size yet"):
        check_numbers(nn.LazyLinear(10), "lazy")
    wrong = {"1.running_mean": (net[1].running_mean, torch.nan), "0.weight": (net[0].weight, torch.inf)}
    for name, (tensor, number) in wrong.items():
        tensor.detach().view(-1)[0] = number
        with pytest.raises(StretchError, match=rf"`{name}` of `net` has 1 of"):
            check_numbers(net, "net")


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
def test_agreement_decides_whether_a_refinement_is_worse_and_errors_decide_ties_and_unknowns(before, after, worse):
    plain = Agreement(value=None, low=None, high=None, top5_overlap=None, error=0.0, images=8)
    one, other = (replace_struct(plain, value=value, error=error) for value, error in (before, after))
    assert module._is_worse(other, one) == worse


@pytest.fixture(scope="module")
def network():
    return read_network("tiny_resnet", weights="none")


@given(st.integers(20, 60), st.integers(1, 30), st.integers(0, 3))
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_duplicate_images_are_used_once_with_a_warning(network, tmp_path, distinct, copies, seed):
    """Copies of an image must not be in both the fitted and the held-back images."""
    shape = network.graph.input.shape[1:]
    images = np.zeros((distinct + copies, *shape), np.float32)
    images[:distinct, 0, 0, 0] = np.arange(distinct)
    images[distinct:] = images[np.random.default_rng(seed).integers(0, distinct, copies)]
    np.save(tmp_path / "some.npy", images[np.random.default_rng(seed).permutation(len(images))])
    result = divide_images(tmp_path, network.captured, 256)
    numbers = [int(n) for part in (result.fitted, result.held_back) for batch in part for n in batch[:, 0, 0, 0]]
    assert (sorted(numbers), result.repeated) == (list(range(distinct)), copies)
    assert f"{copies} of the images are the same as others" in result.warnings[0]


def test_identical_images_give_no_agreement(network):
    same = [torch.zeros(8, *network.graph.input.shape[1:])]
    whole = build(network.captured, undivided_design(network.captured, identity_design(network.graph)))
    assert "the original answers one class for 8 images" in compare_with_original(whole, network.captured, same)[1][0]


def test_network_with_low_agreement_gives_a_warning_that_it_needs_training(network):
    planned = plan(network.graph, specified("pixel6"), PlanConfig(alpha=1000.0, beta=1000.0, macs=(0.7, 1.4)))
    model = build(network.captured, planned.design)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn_like(value))
    x = [torch.randn(64, *network.graph.input.shape[1:]) * torch.linspace(0.1, 20, 64)[:, None, None, None]]
    agreement, answer = compare_with_original(model, network.captured, x)
    assert (agreement.value < MIN_AGREEMENT, "train it" in answer[0]) == (True, True)


def test_files_run_on_part_of_the_held_back_images_with_a_warning_if_time_runs_out(network, tmp_path):
    captured, warnings = network.captured, []
    model = build(captured, identity_design(network.graph)).eval()
    export_bundle(tmp_path / "b", captured, model, None, BundleFacts("mi9", False, "random", controls=False))
    noise = torch.randn(24, *network.graph.input.shape[1:], generator=torch.Generator().manual_seed(0))
    images = Images([noise[:16]], list(noise[16:].split(3)))
    compared = compare_with_original(model, captured, images.held_back)[0], captured, images
    result = FileComparison(*compared, 5, warnings=warnings)(load_bundle(tmp_path / "b")).bundle
    # the original sees only one class in this noise
    assert (result.images, result.value, result.classes, warnings) == (5, None, 1, [])
    assert result.error < 1e-3
    assert FileComparison(*compared, 64, seconds=0.0, warnings=warnings)(load_bundle(tmp_path / "b")).bundle.images == 1
    assert warnings == ["in the time there is, the bundle's files were run on 1 of 8 images"]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [((4, 3, 16, 16), "batch of 4"), ("towers", "networks of one input"), ((1, 3, 16, 16), "40 images of which only 1 differ")],
)
def test_identical_images_and_networks_of_several_inputs_or_fixed_batches_are_refused(tmp_path, shapes, message):
    module, arguments = form("towers" if shapes == "towers" else "deep")
    captured = capture(module, arguments if shapes == "towers" else shapes, "net")
    np.save(tmp_path / "images.npy", np.zeros((40, 3, 16, 16), np.float32))
    with pytest.raises(StretchError, match=message):
        divide_images(tmp_path, captured, 16)


def written(folder, result, design):
    model = build(result, design)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            # weights must differ from the original's
            parameter.mul_(1 + 0.01 * (number % 3))
    export_bundle(folder, result, model, None, BundleFacts("mi9", False, "random"))
    return load_bundle(folder, check_hashes=True), model.eval()


class Scaled(nn.Module):
    """A residual block with a factor, an addend and a slope for each channel, which files hold as (channels, 1, 1)."""

    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(8, 8, 3, padding=1), nn.PReLU(8)
        self.factor, self.addend = nn.Parameter(torch.rand(8, 1, 1) + 0.5), nn.Parameter(torch.randn(8, 1, 1))

    def forward(self, x):
        return x + self.act(self.conv(x)) * self.factor + self.addend


def scaled():
    return nn.Sequential(nn.Conv2d(3, 8, 3), *[Scaled() for _ in range(3)], nn.Conv2d(8, 4, 1))


NETWORKS = {
    **{
        join: (lambda join=join: (found := _captured("tiny_resnet"), cpu_and("gpu", found.graph, join)))
        for join in ("sum", "concat", "project")
    },
    "depthwise": lambda: (found := _captured("tiny_mobilenet"), cpu_and("gpu", found.graph, "sum")),
    "bands and paths": lambda: (
        found := capture(exact_bundles.network(), (1, 3, exact_bundles.HEIGHT, exact_bundles.WIDTH), "net"),
        exact_bundles.designed(found.graph),
    ),
    "channels": lambda: (found := small(), small_in_channels(found.graph)),
    "numbers per channel": lambda: (found := capture(scaled(), (1, 3, 16, 16), "net"), cpu_and("gpu", found.graph, "sum")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_reopened_networks_compute_the_same_as_the_written_networks(tmp_path, name):
    result, design = NETWORKS[name]()
    bundle, model = written(tmp_path / "b", result, design)
    original, reopened = load_bundle_model(bundle)
    x = torch.randn(3, *result.graph.input.shape[1:])
    with torch.inference_mode():
        for got, want in ((reopened(x), model(x)), (original.module(x), result.module.eval()(x))):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
    assert {name for name, _ in reopened.named_parameters()} == {name for name, _ in model.named_parameters()}
    assert not reopened.training


@pytest.fixture(scope="module")
def whole(captured, tmp_path_factory):
    """The folder of an unmodified bundle."""
    result = captured("tiny_resnet")
    return written(tmp_path_factory.mktemp("whole") / "b", result, cpu_and("gpu", result.graph, "sum"))[0].path


def remove_original(folder):
    edit(folder, lambda m: m.update(controls={}, control_macs={}))


def half_precision_of(folder):
    bundle, half = load_bundle(folder), folder.parent / "half"
    export_precision(bundle, half, {"gpu": "fp16"}, synthetic_images(bundle.manifest.model.input_shape, 8), "made up")
    return half


def double_weights(folder):
    model = onnx.load(str(folder / "model.onnx"))
    for tensor in model.graph.initializer:
        if len(tensor.dims) == 4:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 2, tensor.name))
    onnx.save(model, str(folder / "model.onnx"))
    edit(folder, lambda m: m["files"].update({"model.onnx": file_entry(folder / "model.onnx")}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove_original, "without controls"),
        (double_weights, "differs from torch"),
        pytest.param(half_precision_of, "in fp16, and weights can be changed in fp32 alone", marks=pytest.mark.slow),
    ],
)
def test_bundle_whose_network_cannot_be_restored_is_refused(whole, tmp_path, change, message):
    folder = shutil.copytree(whole, tmp_path / "b")
    with pytest.raises(StretchError, match=message):
        load_bundle_model(load_bundle(change(folder) or folder))


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(seed=3944773)  # a width of 400 digits
@example(seed=1097)  # branches of zero width
@example(seed=17168)  # a segment called ".."
@example(seed=2346)  # a segment called "cpu", which is a method of every module
@given(seed=st.integers(0, 2**32))
def test_design_with_random_changes_is_refused_in_one_sentence_or_keeps_the_original(captured, whole, seed):
    result, bundle = captured("tiny_resnet"), whole
    text = json.loads((bundle / "bundle.json").read_text())
    text["design"] = swapped(random.Random(seed), text["design"], VALUES)
    path = bundle.parent / "tampered"
    shutil.copytree(bundle, path, dirs_exist_ok=True)
    (path / "bundle.json").write_text(json.dumps(text))
    try:
        original, _ = load_bundle_model(load_bundle(path))
    except StretchError:
        return
    x = torch.randn(1, *result.graph.input.shape[1:])
    with torch.inference_mode():
        torch.testing.assert_close(original.module(x), result.module.eval()(x), rtol=1e-3, atol=1e-3)


def stages_of(*patterns):
    return stage_abilities(capture(token_patterns.network(*patterns), (1, 3, 8, 8), "net").graph)


def test_stage_of_tokens_can_be_scaled_and_divided_and_its_head_stays_whole():
    stage = next(stage for stage in stages_of(*[token_patterns.Fused, token_patterns.Mlp] * 3) if stage.depth > stage.min_depth)
    assert {"depth", "heads", "hidden"} <= set(stage.scaled)
    assert {"hidden", "heads"} <= set(stage.exact)
    assert (stage.heads, stage.opaque, stage.why) == (token_patterns.HEADS, 0, "")
    stages = {stage.name: stage for stage in stages_of(token_patterns.Mlp)}
    assert stages["head"].why == "the head stays whole"
    assert all(bool(stage.why) == (not stage.scaled) for stage in stages.values())
