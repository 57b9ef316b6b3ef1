import json

import onnx
import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402 - torch may be missing

from predictors.errors import StretchError  # noqa: E402
from scheduler.bundle.load import load_bundle  # noqa: E402
from scheduler.runtime.session import Session  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.export.bundle import BundleFacts, export_bundle  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.design.scale import scaled_graph  # noqa: E402
from stretch.planning.design.widths import partitions  # noqa: E402
from stretch.planning.network.segments import split_segments  # noqa: E402
from stretch.planning.search.cutting import cut_blocks  # noqa: E402
from stretch.planning.search.merging import merge_stages  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.stretch.designs import identity_design, whole  # noqa: E402
from tests.stretch.planning.spaces import make_space  # noqa: E402

pytestmark = pytest.mark.torch
FACTS = BundleFacts(
    "pixel6", False, "random", predicted={"makespan_ms": 1.0}, branch_times={"s1.cpu": (0.5, 1.25)}, precision={"gpu": "fp16"}
)


def two_branches(graph, join):
    parts = []
    for s in split_segments(graph):
        if not s.branchable:
            parts.append(whole(s))
            continue
        shares = partitions(s.width, [s.width, s.width], 4) if join == "project" else (0, 0)
        branches = tuple(
            BranchScale(p, d, s.width, "none", n) for p, d, n in zip(("cpu", "gpu"), (s.depth, s.min_depth), shares, strict=True)
        )
        parts.append(SegmentDesign(s.name, s.start, s.end, branches, join))
    return BranchDesign(graph.name, "pixel6", tuple(parts))


@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_mobilenet", pytest.param("tiny_regnet", marks=pytest.mark.slow)])
@pytest.mark.parametrize("join", ["project", "sum"])
def test_bundle_runs_in_the_scheduler_as_the_module_does_in_torch(captured, tmp_path, name, join):
    found = captured(name)
    model = build(found, two_branches(found.graph, join))
    manifest = export_bundle(tmp_path / "b", found, model, build(found, identity_design(found.graph)), FACTS, "0.1.0")
    assert manifest.checks["max_error"] <= 1e-4
    bundle = load_bundle(tmp_path / "b", check_hashes=True)
    assert {s.processor for s in bundle.manifest.subgraphs} == {"cpu", "gpu"}
    assert len(bundle.manifest.joins) == model.design.n_meet
    x = torch.randn(found.graph.input.shape)
    with torch.inference_mode():
        want = model(x).numpy()
    with Session(bundle) as session:
        got = session(x.numpy())
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.slow
def test_manifest_tells_what_the_planner_knew(captured, tmp_path):
    found = captured("tiny_resnet")
    export_bundle(tmp_path / "b", found, build(found, two_branches(found.graph, "sum")), None, FACTS, "0.1.0")
    raw = json.loads((tmp_path / "b" / "bundle.json").read_text())
    assert raw["weights"]["source"] == "random"
    assert raw["predicted"] == {"makespan_ms": 1.0}
    branch = next(s for s in raw["subgraphs"] if s["name"] == "s1.gpu")
    assert (branch["planned_precision"], branch["precision"]) == ("fp16", "fp32")
    assert raw["model"]["original_macs"] == found.graph.macs
    assert set(raw["controls"]) == {"original"}


@pytest.mark.slow
def test_same_model_is_exported_to_the_same_bytes(captured, tmp_path):
    found = captured("tiny_resnet")
    first, second = (
        export_bundle(tmp_path / name, found, build(found, two_branches(found.graph, "project")), None, FACTS, "0.1.0")
        for name in ("a", "b")
    )
    assert first.files == second.files


def rows_of_two(graph):
    """Every segment that ends in rows in two bands, the first of a third of them."""
    parts = []
    for s in split_segments(graph):
        rows = graph.by_name[s.end].shape[2] if s.branchable else 1
        bounds = [(0, max(1, rows // 3)), (max(1, rows // 3), rows)]
        bands = tuple(BranchScale(p, s.depth, s.width, rows=band) for p, band in zip(("cpu", "gpu"), bounds, strict=True))
        parts.append(SegmentDesign(s.name, s.start, s.end, bands, "rows") if rows > 1 else whole(s))
    return BranchDesign(graph.name, "pixel6", tuple(parts))


@pytest.mark.slow
def test_band_reads_the_rows_that_the_manifest_states_and_begins_with_no_cut(captured, tmp_path):
    found = captured("tiny_resnet")
    manifest = export_bundle(tmp_path / "b", found, build(found, rows_of_two(found.graph)), None, FACTS, "0.1.0", controls=False)
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
    found = captured("tiny_resnet")
    export_bundle(tmp_path / "b", found, build(found, rows_of_two(found.graph)), None, FACTS, "0.1.0", controls=False)
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
    found = captured("tiny_resnet")
    space = merge_stages(found.graph, make_space(found.graph, alpha=1e6, beta=1e6))
    cut = cut_blocks(found.graph, PlanConfig(merge="always"), space, merged=True)
    parts, at = [], 0
    while at < len(cut.segments):
        offer = next((o for o in cut.offers[at] if o.segment.name in cuts), None)
        if offer is None:
            parts.append(cut.ready[at][0].design(0, cut.costs))
            at += 1
            continue
        # narrow branches of both processors, so that channels are inherited in part
        parts.append(offer.ways(cut.holders, np.array([offer.count // 3])).design(0, cut.costs))
        at += offer.span
    design = BranchDesign(found.graph.name, "mi9", tuple(parts))
    assert [part.name for part in design.segments if not part.whole] == list(cuts)
    model = build(found, design)
    assert capture(model, found.graph.input.shape, found.graph.name).graph == scaled_graph(found.graph, design)
    export_bundle(tmp_path / "b", found, model, None, FACTS, "0.1.0")
    x = torch.randn(found.graph.input.shape)
    with torch.inference_mode():
        want = model(x).numpy()
    with Session(load_bundle(tmp_path / "b", check_hashes=True)) as session:
        got = session(x.numpy())
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
