"""Networks in portions compute what the original computes, wherever their operators run."""

import numpy as np
import pytest

from tests.effort import examples

torch = pytest.importorskip("torch")
from hypothesis import assume, given, settings  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from predictors.graph import OpGraph  # noqa: E402
from scheduler.bundle.load import load_bundle  # noqa: E402
from scheduler.checks.verify import verify_bundle  # noqa: E402
from scheduler.placement.priority import choose_processors  # noqa: E402
from scheduler.runtime.session import Session  # noqa: E402
from scheduler.simulate.predicted import predicted_trace  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.export.bundle import BundleFacts, export_bundle  # noqa: E402
from stretch.export.facts import bundle_facts  # noqa: E402
from stretch.export.precision import export_precision  # noqa: E402
from stretch.export.tflite.bundle import export_tflite  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.design.scale import scaled_graph  # noqa: E402
from stretch.planning.network.segments import cut_segment  # noqa: E402
from stretch.planning.plan import plan  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.calibrate import calibrate  # noqa: E402
from tests.predictors.specified import specified  # noqa: E402
from tests.stretch.designs import whole  # noqa: E402
from tests.stretch.portion_networks import WIDTH, Skipping, random_placements, skipping_networks  # noqa: E402

pytestmark = pytest.mark.torch
FACTS = BundleFacts("pixel6", False, "random")
SHAPE = (1, WIDTH, 6, 5)


def drawn(data):
    """A network with at least two operators, and a placement."""
    network = data.draw(skipping_networks())
    found = capture(network, SHAPE, "net")
    assume(len(found.graph.ops) > 2)
    return network, found, data.draw(random_placements(found.graph))


def image(shape=SHAPE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@given(data=st.data())
def test_portions_built_and_captured_are_the_scaled_graph_and_the_original(data):
    network, found, design = drawn(data)
    model = build(found, design)
    graph = scaled_graph(found.graph, design)
    assert capture(model, SHAPE, "net").graph == model.graph == graph
    assert OpGraph.from_json(graph.to_json()) == graph
    assert (graph.macs, graph.params) == (found.graph.macs, found.graph.params)
    with torch.inference_mode():
        assert torch.equal(model(image()), network(image()))


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(data=st.data())
def test_portions_exported_and_run_by_the_scheduler_give_the_original(tmp_path_factory, data):
    network, found, design = drawn(data)
    model = build(found, design)
    folder = tmp_path_factory.mktemp("portions") / "bundle"
    export_bundle(folder, found, model, None, FACTS, "0.1.0", controls=False)
    with torch.inference_mode():
        want = network(image()).numpy()
    with Session(load_bundle(folder)) as session:
        largest = max(float(np.abs(tensor).max()) for tensor in session.tensors(image().numpy()).values())
        for got in (session(image().numpy()), session.submit(image().numpy()).result()):
            assert np.abs(got - want).max() <= 1e-6 * largest


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Modules whose tensors skip over their ends, planned and written as a bundle."""
    torch.manual_seed(0)
    width, count = 128, 3
    layers, reads = [], []
    for i in range(count):
        first, second, third = (nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        layers.append([first, nn.Sequential(second, third)])
        reads.append([i, max(0, i - 1)])
    network = Skipping(layers, reads, [True] * count).eval()
    device = specified("mi9")
    found = capture(network, (1, width, 28, 28), "net")
    result = plan(found.graph, device, PlanConfig(processors=("cpu", "gpu"), kinds=("graph",)))
    folder = tmp_path_factory.mktemp("planned") / "bundle"
    export_bundle(folder, found, build(found, result.design), None, bundle_facts(result, device, "random", ""), "0.1.0")
    return result, device, load_bundle(folder), network, found


def test_state_machine_ends_when_the_plan_says(planned):
    result, device, bundle, _, _ = planned
    assert any(part.join == "placed" for part in result.design.segments)
    trace = predicted_trace(bundle.manifest, device)
    assert trace.makespan_ms == pytest.approx(result.run.makespan_ms, rel=1e-6)
    starts = {span.name: span.start_ns / 1e6 for span in trace.spans if span.kind == "subgraph"}
    for row in result.run.segments:
        for name, branch in zip(row.design.names, row.branches, strict=True):
            if branch.ms:
                assert starts[f"{row.design.name}.{name}"] == pytest.approx(row.start_ms + branch.start_ms + branch.in_ms, abs=1e-5)


@pytest.mark.parametrize("priority", ["latency", "energy"])
def test_priority_places_many_portions_without_trying_all_ways(planned, priority):
    _, _, bundle, _, _ = planned
    manifest = bundle.manifest
    if priority == "energy" and any(way.mj is None for entry in manifest.subgraphs for way in entry.alternatives.values()):
        pytest.skip("the profile states no power")
    chosen = choose_processors(manifest, priority=priority)
    for before, after in zip(manifest.subgraphs, chosen.subgraphs, strict=True):
        if priority == "latency":
            assert after.processor == before.processor
        else:
            assert after.alternatives[after.processor].mj == min(way.mj for way in after.alternatives.values())


def test_calibration_leaves_portions_as_they_are(planned):
    result, _, _, _, found = planned
    model = build(found, result.design)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = [torch.randn(8, *found.graph.input.shape[1:]) for _ in range(2)]
    assert calibrate(model, found, images) == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def exported(found, design, folder):
    export_bundle(folder, found, build(found, design), None, FACTS, "0.1.0", controls=False)
    return load_bundle(folder)


@pytest.fixture(scope="module")
def skipping(tmp_path_factory):
    """A network that skips over its nodes, whole and in portions, in float and in int8."""
    torch.manual_seed(1)

    def layer():
        return nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU())

    network = Skipping([[layer(), layer()] for _ in range(3)], [[0, 0], [1, 0], [2, 1]], [True] * 3).eval()
    found = capture(network, SHAPE, "net")
    segment = cut_segment(found.graph, "s1", found.graph.input.name, found.graph.output)
    adds = [op.name for op in segment.graph.ops if op.kind == "add"]
    firsts = [op.inputs for op in segment.graph.ops if op.kind == "add"]
    relus = [segment.graph.consumers[name][0] for name in adds]
    ends = [("cpu", (firsts[0][0],)), ("gpu", (relus[0], firsts[1][1])), ("cpu", (relus[1],)), ("gpu", (segment.end,))]
    scales = tuple(BranchScale(name, segment.depth, segment.width, ends=own) for name, own in ends)
    parted = BranchDesign("net", "test", (SegmentDesign("s1", segment.start, segment.end, scales, "placed"),))
    folder = tmp_path_factory.mktemp("skipping")
    images = [np.random.default_rng(i).standard_normal(SHAPE).astype(np.float32) for i in range(16)]
    made = {}
    for name, design in (("whole", BranchDesign("net", "test", (whole(segment),))), ("portions", parted)):
        bundle = exported(found, design, folder / name)
        export_precision(bundle, folder / f"{name}_int8", {s.processor: "int8" for s in bundle.manifest.subgraphs}, images, "random")
        made[name] = load_bundle(folder / f"{name}_int8")
    return made, images, folder


def test_portions_in_half_precision_are_near_the_floats(skipping):
    _, images, folder = skipping
    bundle = load_bundle(folder / "portions")
    made = export_precision(bundle, folder / "portions_fp16", {"gpu": "fp16"}, images, "random")
    assert {sub.processor for sub in made.manifest.subgraphs if sub.precision == "fp16"} == {"gpu"}
    assert all(each.cosine > 0.9999 for each in made.losses.values())


def test_portions_have_signatures_of_several_tensors_in_a_tflite_file(skipping):
    pytest.importorskip("ai_edge_litert")
    made, images, folder = skipping
    for name in ("portions", "portions_int8"):
        done = export_tflite(load_bundle(folder / name), folder / f"{name}_tflite", images[:4], "random")
        assert done.manifest.tflite
        assert verify_bundle(folder / f"{name}_tflite").problems == ()
    assert made
