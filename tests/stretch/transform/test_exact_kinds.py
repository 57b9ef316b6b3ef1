"""Bands, channels, portions and parts of convolutions compute what the original network does."""

import copy
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError, UnknownNameError
from predictors.graph import OpGraph
from predictors.predictor import LatencyPredictor
from predictors.rewrites import PART, apply_rewrites
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import verify_bundle
from scheduler.placement.mapping import choose_processors
from scheduler.runtime.session import Session
from scheduler.simulate.clock import predicted_trace
from stretch.export.bundle import BundleFacts, export_bundle
from stretch.export.precision import export_precision
from stretch.export.tflite import export_tflite
from stretch.network.capture import capture
from stretch.planning.config import PlanConfig
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import scaled_graph
from stretch.planning.network.segments import cut_segment, split_segments
from stretch.planning.plan import plan
from stretch.transform import build
from stretch.transform.calibrate import calibrate
from stretch.transform.model import Branch, weights_in_parts, weights_of_wholes
from tests.effort import examples
from tests.predictors.specified import specified
from tests.stretch.band_networks import banded, networks
from tests.stretch.channel_networks import divided, small, small_in_channels, small_segments
from tests.stretch.channel_networks import networks as networks_in_channels
from tests.stretch.designs import divided as in_parts
from tests.stretch.designs import in_bands, pair
from tests.stretch.export.written import FACTS, written
from tests.stretch.portion_networks import WIDTH, Skipping, random_placements, skipping_networks


def image(result):
    return torch.randn(result.graph.input.shape, generator=torch.Generator().manual_seed(1))


def is_close(got, want):
    return np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


def test_bands_after_a_wider_backbone_read_all_its_channels(captured):
    """A segment that joins by `concat` changes the number of channels that arrive."""
    result = captured("tiny_mobilenet")
    segments = split_segments(result.graph)
    at = next(i for i, s in enumerate(segments) if s.branchable and i + 1 < len(segments) and segments[i + 1].dense_input)
    before, after = segments[at], segments[at + 1]
    first, x = pair(before, "concat", (before.depth, before.depth)), image(result)
    with torch.inference_mode():
        got = build(result, in_parts(result.graph, first, in_bands(after)))(x)
        want = build(result, in_parts(result.graph, first))(x)
    assert is_close(got.numpy(), want.numpy())


SHAPE = (1, WIDTH, 6, 5)


def drawn(data):
    """Draw a network with at least two operators, and a placement."""
    network = data.draw(skipping_networks())
    captured = capture(network, SHAPE, "net")
    assume(len(captured.graph.ops) > 2)
    return network, captured, data.draw(random_placements(captured.graph))


def drawn_bands(data):
    result = data.draw(networks())
    return result.module, result, data.draw(banded(result.graph))


def drawn_channels(data):
    result = data.draw(networks_in_channels())
    design = data.draw(divided(result.graph))
    for part in design.segments:
        event(part.join)
    return result.module, result, design


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "slack"), [(drawn_bands, 1e-6), (drawn, 0.0), (drawn_channels, 2e-6)])
@given(data=st.data())
def test_built_parts_have_the_scaled_graph_and_compute_the_original(draw, slack, data):
    network, result, design = draw(data)
    model, x = build(result, design), image(result)
    graph = scaled_graph(result.graph, design)
    assert capture(model, result.graph.input.shape, result.graph.name).graph == model.graph == graph
    assert OpGraph.from_json(graph.to_json()) == graph
    with torch.inference_mode():
        got, want = model(x).numpy(), network(x).numpy()
    assert np.abs(got - want).max() <= slack * np.abs(want).max()
    if draw is drawn:
        # no operator is computed twice
        assert (graph.macs, graph.params) == (result.graph.macs, result.graph.params)


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(data=st.data())
def test_portions_exported_and_run_by_the_scheduler_give_the_original(tmp_path_factory, data):
    network, result, design = drawn(data)
    model = build(result, design)
    folder = tmp_path_factory.mktemp("portions") / "bundle"
    export_bundle(folder, result, model, None, replace(FACTS, controls=False))
    with torch.inference_mode():
        want = network(image(result)).numpy()
    with Session(load_bundle(folder)) as session:
        largest = max(float(np.abs(tensor).max()) for tensor in session.tensors(image(result).numpy()).values())
        for got in (session(image(result).numpy()), session.submit(image(result).numpy()).result()):
            assert np.abs(got - want).max() <= 1e-6 * largest


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Modules with skip connections across their boundaries, planned and written as a bundle."""
    torch.manual_seed(0)
    width, count, device = 128, 3, specified("mi9")
    convs = [[nn.Conv2d(width, width, 3, padding=1) for _ in range(3)] for _ in range(count)]
    layers = [[first, nn.Sequential(*others)] for first, *others in convs]
    network = Skipping(layers, [[i, max(0, i - 1)] for i in range(count)], [True] * count).eval()
    captured = capture(network, (1, width, 28, 28), "net")
    result = plan(captured.graph, device, PlanConfig(processors=("cpu", "gpu"), kinds=("graph",)))
    folder = tmp_path_factory.mktemp("planned") / "bundle"
    export_bundle(folder, captured, build(captured, result.design), None, BundleFacts.of(result, "random"))
    return result, device, load_bundle(folder)


def test_state_machine_ends_at_the_planned_time(planned):
    result, device, bundle = planned
    assert any(part.join == "placed" for part in result.design.segments)
    trace = predicted_trace(bundle.manifest, device)
    assert trace.makespan_ms == pytest.approx(result.run.makespan_ms, rel=1e-6)
    starts = {span.name: span.start_ns / 1e6 for span in trace.spans if span.kind == "subgraph"}
    for row in result.run.segments:
        for name, branch in zip(row.design.names, row.branches, strict=True):
            if branch.ms:
                assert starts[f"{row.design.name}.{name}"] == pytest.approx(row.start_ms + branch.start_ms + branch.in_ms, abs=1e-5)


@pytest.mark.parametrize("priority", ["latency", "energy"])
def test_priority_places_many_portions_without_exhaustive_search(planned, priority):
    manifest = planned[2].manifest
    if priority == "energy" and any(alternative.mj is None for entry in manifest.subgraphs for alternative in entry.alternatives.values()):
        pytest.skip("the profile states no power")
    chosen = choose_processors(manifest, priority=priority)
    for before, after in zip(manifest.subgraphs, chosen.subgraphs, strict=True):
        if priority == "latency":
            assert after.processor == before.processor
        else:
            assert after.alternatives[after.processor].mj == min(alternative.mj for alternative in after.alternatives.values())


@pytest.fixture(scope="module")
def skipping(tmp_path_factory):
    """Images, and a folder with bundles in fp32 and int8 of a network with skip connections in portions."""
    torch.manual_seed(1)
    layers = [[nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU()) for _ in range(2)] for _ in range(3)]
    captured = capture(Skipping(layers, [[0, 0], [1, 0], [2, 1]], [True] * 3).eval(), SHAPE, "net")
    segment = cut_segment(captured.graph, "s1", captured.graph.input.name, captured.graph.output)
    adds = [op for op in segment.graph.ops if op.kind == "add"]
    relus = [segment.graph.consumers[op.name][0] for op in adds]
    ends = [("cpu", (adds[0].inputs[0],)), ("gpu", (relus[0], adds[1].inputs[1])), ("cpu", (relus[1],)), ("gpu", (segment.end,))]
    scales = tuple(BranchScale(name, segment.depth, segment.width, ends=current) for name, current in ends)
    parted = BranchDesign("net", "test", (SegmentDesign("s1", segment.start, segment.end, scales, "placed"),))
    folder = tmp_path_factory.mktemp("skipping")
    images = [np.random.default_rng(i).standard_normal(SHAPE).astype(np.float32) for i in range(16)]
    bundle = written(folder / "portions", captured, parted)
    export_precision(bundle, folder / "portions_int8", {s.processor: "int8" for s in bundle.manifest.subgraphs}, images, "random")
    return images, folder


def test_portions_in_half_precision_are_close_to_fp32(skipping):
    images, folder = skipping
    built = export_precision(load_bundle(folder / "portions"), folder / "portions_fp16", {"gpu": "fp16"}, images, "random")
    assert {sub.processor for sub in built.manifest.subgraphs if sub.precision == "fp16"} == {"gpu"}
    assert all(loss.cosine > 0.9999 for loss in built.losses.values())


@pytest.mark.parametrize("name", ["portions", "portions_int8"])
def test_portions_become_signatures_of_several_tensors_in_a_tflite_file(skipping, name):
    pytest.importorskip("ai_edge_litert")
    images, folder = skipping
    assert export_tflite(load_bundle(folder / name), folder / f"{name}_tflite", images[:4], "random").manifest.tflite
    assert verify_bundle(folder / f"{name}_tflite").problems == ()


def test_weights_of_divided_segments_are_shared_and_have_the_gradients_of_the_original():
    result = small()
    design = small_in_channels(result.graph)
    model = build(result, design)
    # fine-tuning often freezes statistics; parts of weights would have no gradients
    for module in (original := copy.deepcopy(result.module).eval(), model):
        module(image(result)).square().sum().backward()
    actual, expected = (sum(float(w.grad.double().square().sum()) for w in m.parameters()) for m in (model, original))
    assert actual == pytest.approx(expected, rel=1e-4)
    assert {part.join for part in design.segments} == {"none", "channels", "partial_sums"}
    assert sum(p.numel() for p in model.parameters()) == result.graph.params
    moved = copy.deepcopy(model).double().float()
    x = image(result)
    with torch.inference_mode():
        before = model(x)
    for value in (model, moved):
        with torch.no_grad():
            for weight in value.parameters():
                weight.mul_(1.1)
            want = x
            for part in design.segments:
                want = value.segment(part.name).owner(want)
            torch.testing.assert_close(value(x), want, rtol=1e-4, atol=1e-5)
            assert not torch.allclose(before, want, rtol=1e-2)


def test_calibration_fits_divided_channels_as_one_piece_after_stretched_segments():
    result = small()
    design = small_in_channels(result.graph)
    first = design.segments[2]
    cut = next(s for s in small_segments(result.graph) if s.name == first.name)
    branches = tuple(BranchScale(p, cut.depth, cut.width) for p in ("cpu", "gpu"))
    parts = (*design.segments[:2], replace(first, branches=branches, join="sum"), *design.segments[3:])
    design = replace(design, segments=parts)
    model, before = build(result, design), build(result, design)
    for scaled in (model, before):
        with torch.no_grad():
            for weight in scaled.branch(first.name, "gpu").parameters():
                weight.mul_(0.7)
    batches = [torch.randn(8, *result.graph.input.shape[1:], generator=torch.Generator().manual_seed(i)) for i in range(8)]
    assert [error.segment for error in calibrate(model, result, batches)] == [first.name]
    x = torch.cat(batches)
    with torch.inference_mode():
        want = result.module(x)
        assert (model(x) - want).square().mean() < (before(x) - want).square().mean()


NAME = "grouped_conv=parts"


class ResNeXt(nn.Module):
    """Two small blocks of ResNeXt."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((16, 32, 1, 1), (32, 32, 3, 8), (32, 16, 1, 1))
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.ModuleList()
        for _ in range(2):
            convs = [nn.Conv2d(a, b, size, padding=size // 2, groups=groups, bias=False) for a, b, size, groups in sizes]
            layers = [layer for conv in convs for layer in (conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU())]
            self.blocks.append(nn.Sequential(*layers[:-1]))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module", params=["resnext", "tiny_regnet"])
def network(request, captured):
    return capture(ResNeXt().eval(), (1, 3, 32, 32), "resnext") if request.param == "resnext" else captured("tiny_regnet")


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(2, 9), st.integers(2, 4), st.integers(1, 3), st.sampled_from([1, 2, 3]), st.integers(1, 2), st.booleans(), st.booleans())
def test_parts_compute_the_convolution(groups, reads, writes, kernel, stride, bias, norm):
    conv = nn.Conv2d(groups * reads, groups * writes, kernel, stride, kernel // 2, groups=groups, bias=bias)
    layers = nn.Sequential(conv, nn.BatchNorm2d(groups * writes), nn.SiLU()) if norm else nn.Sequential(conv)
    for module in layers:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.running_mean)
    captured = capture(layers.eval(), (1, groups * reads, 7, 6), "net")
    graph, done = apply_rewrites(captured.graph, [NAME])
    assert done == (NAME,)
    module = Branch(graph).eval()
    for op, current in weights_in_parts(graph, captured.weights).items():
        module.get_submodule(op).load_state_dict(current, strict=False)
    x = torch.randn(1, groups * reads, 7, 6)
    with torch.inference_mode():
        torch.testing.assert_close(module(x), layers(x), rtol=1e-4, atol=1e-5)


def test_weights_divided_into_parts_are_restored(network):
    graph = apply_rewrites(network.graph, [NAME])[0]
    restored = weights_of_wholes(graph, weights_in_parts(graph, network.weights))
    for name, weight in network.weights.items():
        for key, tensor in weight.items():
            assert torch.equal(restored[name][key], tensor)


def device_with(**keys):
    device = specified("mi9")
    return msgspec.structs.replace(
        device, processors={**device.processors, "gpu": msgspec.structs.replace(device.processors["gpu"], **keys)}
    )


@pytest.mark.representatives(1)
def test_plan_times_the_launched_parts_and_warns_of_them(network):
    config = PlanConfig(processors=("cpu", "gpu"))
    lacking = plan(network.graph, device_with(unsupported=("grouped_conv",)), config)
    device = device_with(unsupported=("grouped_conv",), rewrites=(NAME,))
    parts = plan(network.graph, device, config)
    assert parts.run.makespan_ms <= lacking.run.makespan_ms
    used = {b.rewrites for part in parts.design.segments for b in part.branches if b.rewrites}
    assert used <= {(NAME,)}
    assert any("run in parts" in str(warning) for warning in parts.warnings) == bool(used)
    graph = scaled_graph(network.graph, parts.design)
    assert any(PART in op.tags for op in graph.ops) == bool(used)
    launched = LatencyPredictor(device).kernels(apply_rewrites(network.graph, [NAME])[0], "gpu")
    assert not any(kernel.elsewhere for kernel in launched)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [({"rewrites": ("grouped_conv=part",)}, "unknown rewrite"), ({"unsupported": ("grouped_convs",)}, "no kind of operator")],
)
def test_profile_with_a_misspelt_rewrite_or_operator_is_refused(captured, keys, reason):
    with pytest.raises((StretchError, UnknownNameError), match=reason):
        plan(captured("tiny_regnet").graph, device_with(**keys), PlanConfig(processors=("cpu", "gpu")))
