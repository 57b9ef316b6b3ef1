"""Export writes a complete bundle: files compute torch's results, the manifest describes them, new weights change nothing else."""

import json
import shutil
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.predictor import KernelsTime
from scheduler.bundle.agreement import Agreement
from scheduler.bundle.load import load_bundle, read_bundle
from scheduler.bundle.manifest import WeightsInfo
from scheduler.bundle.statements import MAX_ROUNDING
from scheduler.checks.verify import TOLERANCE, compare_with_reference, random_input, read_sample, verify_bundle
from scheduler.formats.onnx import open_onnx
from scheduler.formats.onnx.shapes import RULES
from scheduler.runtime.sequential import MARGIN
from scheduler.runtime.session import Session
from stretch.export.bundle import BundleFacts, export_bundle
from stretch.export.checks import check_export
from stretch.export.lowering import entry_rows, subgraph_names, subgraph_of
from stretch.export.onnx import NODE_TAGS, save_onnx, to_numpy, to_onnx
from stretch.export.reweigh import export_reweighed
from stretch.network.capture import capture
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.design.scale import scaled_graph
from stretch.planning.search.parts import PartSpace
from stretch.transform import build
from stretch.transform.model import op_weights
from tests import onnx_runtime
from tests.effort import examples
from tests.scheduler.delegates import graphs
from tests.stretch.cli.commands import tree
from tests.stretch.designs import branchable, cpu_and, divided, identity_design, in_bands, random_designs
from tests.stretch.export.written import assert_near
from tests.stretch.network.capture.patterns import Calling
from tests.stretch.planning.spaces import make_space

FACTS = BundleFacts("pixel6", False, "random", predicted={"makespan_ms": 1.0}, precision={"gpu": "fp16"})


@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_mobilenet", pytest.param("tiny_regnet", marks=pytest.mark.slow)])
@pytest.mark.parametrize("join", ["project", "sum"])
def test_bundle_computes_the_same_in_the_scheduler_as_the_module_in_torch(captured, tmp_path, name, join):
    result = captured(name)
    model = build(result, cpu_and("gpu", result.graph, join))
    manifest = export_bundle(tmp_path / "b", result, model, build(result, identity_design(result.graph)), FACTS)
    assert manifest.checks["max_error"] <= 1e-4
    bundle = load_bundle(tmp_path / "b", check_hashes=True)
    assert {s.processor for s in bundle.manifest.subgraphs} == {"cpu", "gpu"}
    assert len(bundle.manifest.joins) == model.design.n_meet
    with Session(bundle) as session:
        assert_near(session, model, result.graph.input.shape)


@pytest.mark.slow
def test_manifest_has_the_facts_of_the_planner_and_export_is_reproducible(captured, tmp_path):
    result = captured("tiny_resnet")
    design, facts = cpu_and("gpu", result.graph, "project"), replace(FACTS, branch_times={"s1.cpu": KernelsTime(0.5, 0.25, 0.125)})
    first, second = (export_bundle(tmp_path / name, result, build(result, design), None, facts) for name in ("a", "b"))
    assert first.files == second.files
    raw = json.loads((tmp_path / "a" / "bundle.json").read_text())
    branch = next(s for s in raw["subgraphs"] if s["name"] == "s1.gpu")
    assert (branch["planned_precision"], branch["precision"]) == ("fp16", "fp32")
    assert (raw["weights"]["source"], raw["predicted"], set(raw["controls"])) == ("random", {"makespan_ms": 1.0}, {"original"})
    assert raw["model"]["original_macs"] == result.graph.macs


def rows_of_two(graph):
    """A design with every segment whose output has rows in two bands; the first band has a third of the rows."""
    heights = {segment: graph.by_name[segment.end].shape[2] for segment in branchable(graph)}
    return divided(graph, *(in_bands(segment, first=max(1, rows // 3)) for segment, rows in heights.items() if rows > 1))


@pytest.mark.slow
def test_band_reads_the_rows_in_the_manifest_and_does_not_start_with_a_slice(captured, tmp_path):
    result = captured("tiny_resnet")
    manifest = export_bundle(tmp_path / "b", result, build(result, rows_of_two(result.graph)), None, replace(FACTS, controls=False))
    shapes = {tensor.name: tensor.shape for tensor in manifest.tensors}
    bands = [sub for sub in manifest.subgraphs if sub.rows]
    assert {sub.processor for sub in bands} == {"cpu", "gpu"}
    for sub in bands:
        model = onnx.load(tmp_path / "b" / sub.file)
        ((name, (start, stop)),) = sub.rows.items()
        assert 0 <= start < stop <= shapes[name][2]
        (source,) = model.graph.input
        read = [*shapes[name][:2], stop - start, shapes[name][3]]
        assert (source.name, [d.dim_value for d in source.type.tensor_type.shape.dim]) == (sub.input, read)
        assert not (model.graph.node[0].op_type == "Slice" and model.graph.node[0].input[0] == source.name)
    # the halo is read twice
    assert any(b.rows[b.input][0] < a.rows[a.input][1] for a, b in zip(bands[::2], bands[1::2], strict=True))
    raw = json.loads((tmp_path / "b" / "bundle.json").read_text())
    rows = next(sub["rows"] for sub in raw["subgraphs"] if sub["rows"])
    rows[next(iter(rows))][1] -= 1
    (tmp_path / "b" / "bundle.json").write_text(json.dumps(raw))
    with pytest.raises(StretchError, match=r"does not fit the bundle: its input is `.*` \[1, "):
        load_bundle(tmp_path / "b")


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [("stem_to_s1_1", "s1_2_to_s2_2"), ("stem", "s1_2", "s2_1_to_s2_2")])
def test_stem_and_runs_of_blocks_as_scaled_copies_compute_the_same_as_the_module_in_torch(captured, tmp_path, cuts):
    result = captured("tiny_resnet")
    part_space = PartSpace(result.graph, make_space(result.graph, alpha=1e6, beta=1e6), ())
    space, parts, at = part_space.mixed(), [], 0
    while at < len(space.segments):
        last = next((i for i in range(at, len(space.segments)) if part_space.name(at, i) in cuts), None)
        if last is None:
            parts.append(space.built[at][0].design(0, space.costs))
            at += 1
            continue
        # narrow branches on both processors, which inherit only a part of the channels
        (offer,) = space.stretched_offers(part_space.segment(at, last), at, last - at + 1)
        parts.append(offer.options(space.holders, np.array([offer.count // 3])).design(0, space.costs))
        at = last + 1
    design = BranchDesign(result.graph.name, "mi9", tuple(parts))
    assert [part.name for part in design.segments if not part.whole] == list(cuts)
    model = build(result, design)
    assert capture(model, result.graph.input.shape, result.graph.name).graph == scaled_graph(result.graph, design)
    export_bundle(tmp_path / "b", result, model, None, FACTS)
    with Session(load_bundle(tmp_path / "b", check_hashes=True)) as session:
        assert_near(session, model, result.graph.input.shape)


@pytest.fixture(scope="module")
def exported_once(captured, tmp_path_factory):
    result, folder = captured("tiny_resnet"), tmp_path_factory.mktemp("exported")
    model, facts = build(result, identity_design(result.graph)), BundleFacts("mi9", False, "random", ranges={"s1.cpu": {"x": (0.5, 3)}})
    manifest = export_bundle(folder / "whole", result, model, model, BundleFacts("pixel6", False, "random"))
    export_bundle(folder / "branched", result, build(result, cpu_and("gpu", result.graph, "project")), model, facts)
    return folder, manifest, result, model


@pytest.fixture
def exported(exported_once, tmp_path):
    """A bundle that a test may change, its manifest, the original and the network."""
    folder, *others = exported_once
    return shutil.copytree(folder / "whole", tmp_path / "b"), *others


@pytest.fixture
def reweighed(exported_once, tmp_path):
    """A branched bundle, the original, and a network of the same design with other weights."""
    folder, _, result, _ = exported_once
    model = build(result, cpu_and("gpu", result.graph, "project"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    return load_bundle(shutil.copytree(folder / "branched", tmp_path / "b"), check_hashes=True), result, model


@pytest.mark.slow
@pytest.mark.parametrize(("file", "named"), [("model.onnx", "model"), ("s1.cpu.onnx", "s1.cpu"), ("original.onnx", "original")])
def test_file_with_wrong_results_is_named(exported, file, named):
    folder, manifest, result, model = exported
    proto = onnx.load(folder / file)
    weight = next(t for t in proto.graph.initializer if t.name.endswith(".weight") and len(t.dims) == 4)
    weight.raw_data = (np.frombuffer(weight.raw_data, np.float32) * 1.01).astype(np.float32).tobytes()
    onnx.save(proto, folder / file)
    with pytest.raises(StretchError, match=f"export of `{named}` differs"):
        check_export(folder, manifest, result, model, {"sequential_same_macs": model})


def test_network_that_the_scheduler_would_refuse_is_refused_before_a_bundle_is_written(captured, tmp_path, monkeypatch):
    result = captured("tiny_resnet")
    monkeypatch.delitem(RULES, "Relu")
    model = build(result, cpu_and("gpu", result.graph, "sum"))
    with pytest.raises(StretchError, match=r"`tiny_resnet` would not load: .*Relu"):
        export_bundle(tmp_path / "b", result, model, None, FACTS)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_amplify_rounding_are_distinguished_from_a_wrong_file(captured, tmp_path):
    result = captured("tiny_resnet")
    model = build(result, identity_design(result.graph))
    with torch.no_grad():
        # sines of large numbers: inputs that differ in the last bit give unrelated outputs
        model.register_forward_hook(lambda module, value, output: torch.sin(output * 1e9))
    with pytest.raises(StretchError, match=r"is off by .* in float64: this network amplifies rounding errors"):
        export_bundle(tmp_path / "b", result, model, None, BundleFacts("pixel6", False, "random"))


def cancelling(size: float) -> nn.Module:
    """A network with sums of large numbers that cancel: the result is as small as its rounding error."""
    stem, body, head = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.Conv2d(32, 4, 1)
    with torch.no_grad():
        head.weight[:, :16], head.weight[:, 16:] = size, -size
        head.weight[:, 16:] += torch.randn(4, 16, 1, 1)
    return Calling(lambda x, stem, body, head: head(torch.cat([body(stem(x))] * 2, 1)), stem, body, head)


def test_differences_within_float_rounding_are_accepted_and_larger_ones_are_refused(tmp_path):
    torch.manual_seed(0)
    captured = capture(cancelling(1e4).eval(), (1, 3, 24, 24), "cancelling")
    model = build(captured, identity_design(captured.graph))
    manifest = export_bundle(tmp_path / "b", captured, model, None, BundleFacts("pixel6", False, "random"))
    checks = manifest.checks
    (current,) = [checks["rounding"][name] for name in manifest.outputs]
    assert TOLERANCE < checks["max_error"] <= checks["tolerance"]
    assert TOLERANCE < current < MAX_ROUNDING
    assert verify_bundle(tmp_path / "b").ok
    with Session(tmp_path / "b") as session:
        compare_with_reference(session, random_input(load_bundle(tmp_path / "b"), 3))
    proto = onnx.load(tmp_path / "b" / "model.onnx")
    bias = next(t for t in proto.graph.initializer if t.name.endswith("part2.bias"))
    largest = np.abs(read_sample(checks).values).max()
    bias.raw_data = (np.frombuffer(bias.raw_data, np.float32) + 10 * MARGIN * current * largest).astype(np.float32).tobytes()
    onnx.save(proto, tmp_path / "b" / "model.onnx")
    with pytest.raises(StretchError, match=r"export of `model` differs .* output$"):
        check_export(tmp_path / "b", manifest, captured, model, {})


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(st.data())
def test_subgraphs_have_every_operator_except_joins_once_and_read_available_tensors(captured, data):
    result = captured("tiny_resnet")
    graph = scaled_graph(result.graph, data.draw(random_designs(result.graph)))
    pieces = {name: subgraph_of(graph, name) for name in subgraph_names(graph)}
    names = [op.name for piece in pieces.values() for op in piece.ops if op.kind != "input"]
    joins = {op.name for op in graph.ops if op.tags.get("meeting_point") == "true"}
    assert (len(names), set(names)) == (len(set(names)), {op.name for op in graph.ops if op.kind != "input"} - joins)
    available = {graph.input.name} | joins
    for name, piece in pieces.items():
        assert {op.name for op in piece.inputs} <= available
        available |= set(piece.outputs)
        assert entry_rows(graph, name) is None
    assert graph.output in available


@given(case=st.sampled_from(graphs.ALL_KIND_NAMES).flatmap(graphs.graphs))
def test_every_operator_computes_the_same_as_its_torch_module(case):
    graph, weights, x = case
    want = graphs.computed(graph, weights, x)[graph.output]
    model, attrs = to_onnx(graph, weights), graph.by_name[graph.output].attrs
    # for a window smaller than its stride, shape inference of the onnx package gives one output more than the standard
    ambiguous = attrs.get("ceil_mode") and any(k < s for k, s in zip(attrs["kernel"], attrs["stride"], strict=True))
    onnx.checker.check_model(model, full_check=not ambiguous)
    got = onnx_runtime.output(model.SerializeToString(), x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(want).max())))


def test_every_node_keeps_its_attributes_after_load(captured, tmp_path):
    result = captured("tiny_mobilenet")
    graph = scaled_graph(result.graph, identity_design(result.graph))
    model = build(result, identity_design(result.graph))
    save_onnx(to_onnx(graph, to_numpy(op_weights(model)), {"stretch.model": "tiny"}), tmp_path / "m.onnx")
    loaded = onnx.load(tmp_path / "m.onnx")
    assert len(loaded.graph.node) > 20
    for node in loaded.graph.node:
        mapping = {p.key: p.value for p in node.metadata_props}
        assert set(mapping) - {"stretch.kind", "stretch.attributes"} == set(NODE_TAGS)
        assert mapping["stretch.subgraph"].split(".")[1] == mapping["stretch.processor"] == "cpu"
    assert {p.key: p.value for p in loaded.metadata_props}["stretch.model"] == "tiny"


def test_identities_leave_no_node_unless_they_are_the_output():
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout(0.5), nn.ReLU(), nn.Identity())
    captured = capture(module.eval(), (1, 3, 4, 4))
    model = to_onnx(captured.graph, to_numpy(captured.weights))
    assert [n.op_type for n in model.graph.node] == ["Conv", "Relu", "Identity"]


def test_files_share_one_weights_file_without_duplicates_and_a_changed_file_is_refused(exported):
    folder, manifest, result, _ = exported
    assert 0 < (folder / "weights.bin").stat().st_size <= sum(4 * weight.numel() for weight in result.module.state_dict().values()) * 1.1
    assert manifest.files["weights.bin"].bytes == (folder / "weights.bin").stat().st_size
    for name in ("model.onnx", "original.onnx"):
        assert (folder / name).stat().st_size < (folder / "weights.bin").stat().st_size
        assert_near(partial(onnx_runtime.output, folder / name), result.module, result.graph.input.shape)
    content = bytearray((folder / "weights.bin").read_bytes())
    content[-1] ^= 1
    (folder / "weights.bin").write_bytes(content)
    with pytest.raises(StretchError, match=r"weights\.bin was changed"):
        load_bundle(folder, check_hashes=True)


def test_graph_with_several_inputs_and_outputs_becomes_a_file_with_the_same(tmp_path):
    ops = [*(Op(name, "input", attrs={"shape": (1, 4, 3, 3)}) for name in "ab"), Op("s", "add", ("a", "b"))]
    graph = OpGraph.build("g", [*ops, Op("d", "dropout", ("s",)), Op("r", "relu", ("d",))], ["r", "s", "d"])
    save_onnx(to_onnx(graph, {}), tmp_path / "m.onnx")
    session = onnx_runtime.session(tmp_path / "m.onnx", log_severity_level=3)
    a, b = np.random.default_rng(0).standard_normal((2, 1, 4, 3, 3)).astype(np.float32)
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": b}), [np.maximum(a + b, 0), a + b, a + b])
    reopened = open_onnx(tmp_path / "m.onnx").graph
    assert ([op.name for op in reopened.inputs], reopened.outputs) == (["a", "b"], graph.outputs)


def trained(bundle):
    """The bundle with other weights stated in its manifest."""
    return replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, weights=WeightsInfo("trained", "otherwise")))


AGREEMENT = Agreement(value=0.5, low=0.2, high=0.8, top5_overlap=None, error=0.1, images=4)


@pytest.mark.slow
def test_reweighed_bundle_computes_with_the_new_weights_and_keeps_everything_else(reweighed, tmp_path):
    bundle, result, model = reweighed
    exported_files = []
    manifest = export_reweighed(
        trained(bundle), tmp_path / "new", result, model, agreeing=lambda files: exported_files.append(files.manifest.files) or AGREEMENT
    )
    rewritten, before = load_bundle(tmp_path / "new", check_hashes=True), bundle.manifest
    assert (msgspec.json.encode(rewritten.manifest), exported_files) == (msgspec.json.encode(manifest), [manifest.files])
    assert (manifest.agreement, manifest.weights) == (AGREEMENT, trained(bundle).manifest.weights)
    assert not list(verify_bundle(tmp_path / "new").problems)
    with Session(rewritten) as session:
        assert_near(session, model, result.graph.input.shape)
    for key in ("design", "predicted", "controls", "control_macs", "tensors", "joins", "subgraphs", "model", "recommended"):
        assert getattr(manifest, key) == getattr(before, key), key
    for control in before.controls.values():
        assert onnx.load(rewritten.file(control)) == onnx.load(bundle.file(control))
    assert manifest.checks["errors"].keys() == before.checks["errors"].keys()
    assert manifest.checks["max_error"] <= manifest.checks["tolerance"]
    assert manifest.checks["sample"] != before.checks["sample"]
    # the int8 ranges belong to the old weights
    assert [b"stretch.ranges" in item.file("s1.cpu.onnx").read_bytes() for item in (bundle, rewritten)] == [True, False]


def test_failed_export_leaves_the_earlier_bundle(reweighed):
    bundle, result, model = reweighed
    before = tree(bundle.path.parent)

    def fails(files):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_reweighed(trained(bundle), bundle.path, result, model, agreeing=fails)
    assert tree(bundle.path.parent) == before


@pytest.mark.slow
def test_files_derived_from_the_float_files_are_left_out(reweighed, tmp_path):
    bundle, result, model = reweighed
    (bundle.path / "model.tflite").write_bytes(b"of the old weights")
    text = json.loads((bundle.path / "bundle.json").read_text()) | {"tflite": "model.tflite"}
    text["files"]["model.tflite"] = {"bytes": 18, "sha256": "0" * 64}
    text["checks"]["tflite"] = {"max_error": 0.0}
    (bundle.path / "bundle.json").write_text(json.dumps(text))
    manifest = export_reweighed(trained(read_bundle(bundle.path)), tmp_path / "new", result, model, agreeing=lambda files: None)
    assert (manifest.tflite, "tflite" in manifest.checks, (tmp_path / "new" / "model.tflite").exists()) == (None, False, False)
