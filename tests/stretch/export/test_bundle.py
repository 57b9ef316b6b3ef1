"""A bundle is written whole, its files compute what the module does in torch, and its manifest says what it has."""

import json

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.statements import MAX_ROUNDING
from scheduler.checks.verify import TOLERANCE, judge, random_input, read_sample, verify_bundle
from scheduler.runtime.sequential import MARGIN
from scheduler.runtime.session import Session
from stretch.capture import capture
from stretch.export.bundle import BundleFacts, export_bundle
from stretch.export.checks import check_export
from stretch.export.lowering import entry_rows, subgraph_names, subgraph_of
from stretch.planning.config import PlanConfig
from stretch.planning.design.branch_design import BranchDesign, BranchScale
from stretch.planning.design.scale import scaled_graph
from stretch.planning.search.parts import cut_blocks, merge_stages
from stretch.transform import build
from tests.effort import examples
from tests.stretch.designs import branchable, cpu_and, divided, identity_design, part_of, random_designs
from tests.stretch.export.written import assert_near
from tests.stretch.planning.spaces import make_space

FACTS = BundleFacts(
    "pixel6", False, "random", predicted={"makespan_ms": 1.0}, branch_times={"s1.cpu": (0.5, 1.25)}, precision={"gpu": "fp16"}
)


@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_mobilenet", pytest.param("tiny_regnet", marks=pytest.mark.slow)])
@pytest.mark.parametrize("join", ["project", "sum"])
def test_bundle_runs_in_the_scheduler_as_the_module_does_in_torch(captured, tmp_path, name, join):
    result = captured(name)
    model = build(result, cpu_and("gpu", result.graph, join))
    manifest = export_bundle(tmp_path / "b", result, model, build(result, identity_design(result.graph)), FACTS, "0.1.0")
    assert manifest.checks["max_error"] <= 1e-4
    bundle = load_bundle(tmp_path / "b", check_hashes=True)
    assert {s.processor for s in bundle.manifest.subgraphs} == {"cpu", "gpu"}
    assert len(bundle.manifest.joins) == model.design.n_meet
    with Session(bundle) as session:
        assert_near(session, model, result.graph.input.shape)


@pytest.mark.slow
def test_manifest_tells_what_the_planner_knew(captured, tmp_path):
    result = captured("tiny_resnet")
    export_bundle(tmp_path / "b", result, build(result, cpu_and("gpu", result.graph, "sum")), None, FACTS, "0.1.0")
    raw = json.loads((tmp_path / "b" / "bundle.json").read_text())
    assert raw["weights"]["source"] == "random"
    assert raw["predicted"] == {"makespan_ms": 1.0}
    branch = next(s for s in raw["subgraphs"] if s["name"] == "s1.gpu")
    assert (branch["planned_precision"], branch["precision"]) == ("fp16", "fp32")
    assert raw["model"]["original_macs"] == result.graph.macs
    assert set(raw["controls"]) == {"original"}


@pytest.mark.slow
def test_same_model_is_exported_to_the_same_bytes(captured, tmp_path):
    result = captured("tiny_resnet")
    design = cpu_and("gpu", result.graph, "project")
    first, second = (export_bundle(tmp_path / name, result, build(result, design), None, FACTS, "0.1.0") for name in ("a", "b"))
    assert first.files == second.files


def rows_of_two(graph):
    """Every segment that ends in rows in two bands, the first of a third of them."""
    parts = []
    for s in branchable(graph):
        rows = graph.by_name[s.end].shape[2]
        bounds = [(0, max(1, rows // 3)), (max(1, rows // 3), rows)]
        bands = (BranchScale(p, s.depth, s.width, rows=band) for p, band in zip(("cpu", "gpu"), bounds, strict=True))
        parts += [part_of(s, "rows", bands)] if rows > 1 else []
    return divided(graph, *parts)


@pytest.mark.slow
def test_band_reads_the_rows_that_the_manifest_states_and_begins_with_no_cut(captured, tmp_path):
    result = captured("tiny_resnet")
    manifest = export_bundle(tmp_path / "b", result, build(result, rows_of_two(result.graph)), None, FACTS, "0.1.0", controls=False)
    shapes = {tensor.name: tensor.shape for tensor in manifest.tensors}
    bands = [sub for sub in manifest.subgraphs if sub.rows]
    assert {sub.processor for sub in bands} == {"cpu", "gpu"}
    for sub in bands:
        model = onnx.load(tmp_path / "b" / sub.file)
        (name,) = sub.rows
        start, stop = sub.rows[name]
        assert 0 <= start < stop <= shapes[name][2]
        (source,) = model.graph.input
        assert (source.name, [d.dim_value for d in source.type.tensor_type.shape.dim]) == (
            sub.input,
            [*shapes[name][:2], stop - start, shapes[name][3]],
        )
        assert all(not (node.op_type == "Slice" and node.input[0] == source.name) for node in model.graph.node[:1])
    assert any(b.rows[b.input][0] < a.rows[a.input][1] for a, b in zip(bands[::2], bands[1::2], strict=True))  # the halo is read twice


@pytest.mark.slow
def test_bands_that_state_other_rows_than_their_files_read_are_refused(captured, tmp_path):
    result = captured("tiny_resnet")
    export_bundle(tmp_path / "b", result, build(result, rows_of_two(result.graph)), None, FACTS, "0.1.0", controls=False)
    raw = json.loads((tmp_path / "b" / "bundle.json").read_text())
    band = next(sub for sub in raw["subgraphs"] if sub["rows"])
    (name,) = band["rows"]
    band["rows"][name][1] -= 1
    (tmp_path / "b" / "bundle.json").write_text(json.dumps(raw))
    with pytest.raises(StretchError, match=r"does not fit the bundle: its input is `.*` \[1, "):
        load_bundle(tmp_path / "b")


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [("stem_to_s1_1", "s1_2_to_s2_2"), ("stem", "s1_2", "s2_1_to_s2_2")])
def test_stem_and_runs_of_blocks_in_scaled_copies_run_as_the_module_does_in_torch(captured, tmp_path, cuts):
    result = captured("tiny_resnet")
    space = merge_stages(result.graph, make_space(result.graph, alpha=1e6, beta=1e6))
    cut = cut_blocks(result.graph, PlanConfig(merge="always"), space, merged=True)
    parts, at = [], 0
    while at < len(cut.segments):
        offer = next((o for o in cut.offers[at] if o.segment.name in cuts), None)
        if offer is None:
            parts.append(cut.ready[at][0].design(0, cut.costs))
            at += 1
            continue
        # narrow branches of both processors, so that channels are inherited in part
        parts.append(offer.options(cut.holders, np.array([offer.count // 3])).design(0, cut.costs))
        at += offer.span
    design = BranchDesign(result.graph.name, "mi9", tuple(parts))
    assert [part.name for part in design.segments if not part.whole] == list(cuts)
    model = build(result, design)
    assert capture(model, result.graph.input.shape, result.graph.name).graph == scaled_graph(result.graph, design)
    export_bundle(tmp_path / "b", result, model, None, FACTS, "0.1.0")
    with Session(load_bundle(tmp_path / "b", check_hashes=True)) as session:
        assert_near(session, model, result.graph.input.shape)


@pytest.fixture
def exported(captured, tmp_path):
    result = captured("tiny_resnet")
    model = build(result, identity_design(result.graph))
    manifest = export_bundle(tmp_path / "b", result, model, model, BundleFacts("pixel6", False, "random"), "0.1.0")
    return tmp_path / "b", manifest, result, model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "named"), [("model.onnx", "model"), ("subgraphs/s1.cpu.onnx", "s1.cpu"), ("controls/original.onnx", "original")]
)
def test_file_that_computes_something_else_is_named(exported, file, named):
    folder, manifest, result, model = exported
    proto = onnx.load(folder / file)
    weight = next(t for t in proto.graph.initializer if t.name.endswith(".weight") and len(t.dims) == 4)
    weight.raw_data = (np.frombuffer(weight.raw_data, np.float32) * 1.01).astype(np.float32).tobytes()
    onnx.save(proto, folder / file)
    with pytest.raises(StretchError, match=f"export of `{named}` differs"):
        check_export(folder, manifest, result, model, model)


def test_weights_that_blow_roundings_up_are_told_from_a_wrong_file(captured, tmp_path):
    result = captured("tiny_resnet")
    model = build(result, identity_design(result.graph))
    with torch.no_grad():
        # sines of large numbers: two inputs that differ in the last bit give outputs that have nothing in common
        model.register_forward_hook(lambda module, value, output: torch.sin(output * 1e9))
    with pytest.raises(StretchError, match=r"is off by .* in float64: this network amplifies rounding errors"):
        export_bundle(tmp_path / "b", result, model, None, BundleFacts("pixel6", False, "random"), "0.1.0")


class Cancelling(nn.Module):
    """Sums of large numbers that cancel: what is left is as large as what the order of the sums changes makes it uncertain."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.Conv2d(32, 4, 1)
        with torch.no_grad():
            self.head.weight[:, :16], self.head.weight[:, 16:] = size, -size
            self.head.weight[:, 16:] += torch.randn(4, 16, 1, 1)

    def forward(self, x):
        y = self.stem(x)
        z = self.body(y)
        return self.head(torch.cat([z, z], 1))


def test_differences_that_the_order_of_float_sums_explains_are_no_fault_and_others_are(tmp_path):
    torch.manual_seed(0)
    captured = capture(Cancelling(1e4).eval(), (1, 3, 24, 24), "cancelling")
    model = build(captured, identity_design(captured.graph))
    manifest = export_bundle(tmp_path / "b", captured, model, None, BundleFacts("pixel6", False, "random"), "0.1.0")
    checks = manifest.checks
    (current,) = [checks["rounding"][name] for name in manifest.outputs]
    assert TOLERANCE < checks["max_error"] <= checks["tolerance"]
    assert TOLERANCE < current < MAX_ROUNDING
    assert verify_bundle(tmp_path / "b").ok
    with Session(tmp_path / "b") as session:
        judge(session, random_input(load_bundle(tmp_path / "b"), 3))
    proto = onnx.load(tmp_path / "b" / "model.onnx")
    bias = next(t for t in proto.graph.initializer if t.name.endswith("head.bias"))
    largest = np.abs(read_sample(checks).values).max()
    bias.raw_data = (np.frombuffer(bias.raw_data, np.float32) + 10 * MARGIN * current * largest).astype(np.float32).tobytes()
    onnx.save(proto, tmp_path / "b" / "model.onnx")
    with pytest.raises(StretchError, match=r"export of `model` differs .* output$"):
        check_export(tmp_path / "b", manifest, captured, model, None)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(st.data())
def test_subgraphs_have_every_operator_but_joins_once_and_read_what_others_write(captured, data):
    result = captured("tiny_resnet")
    graph = scaled_graph(result.graph, data.draw(random_designs(result.graph)))
    pieces = {name: subgraph_of(graph, name) for name in subgraph_names(graph)}
    inside = [op.name for piece in pieces.values() for op in piece.ops if op.kind != "input"]
    joins = {op.name for op in graph.ops if op.tags.get("meeting_point") == "true"}
    assert len(inside) == len(set(inside))
    assert set(inside) == {op.name for op in graph.ops if op.kind != "input"} - joins
    there = {graph.input.name} | joins
    for name, piece in pieces.items():
        assert {op.name for op in piece.inputs} <= there
        there |= set(piece.outputs)
        assert entry_rows(graph, name) is None
    assert graph.output in there
