import pytest

from predictors.errors import StretchError
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import scaled_graph
from stretch.planning.network.segments import split_segments
from tests.stretch.designs import identity_design, whole

TINY = ["tiny_resnet", "tiny_mobilenet", "tiny_regnet", "tiny_vgg", "tiny_efficientnet"]


@pytest.mark.torch
@pytest.mark.parametrize("name", TINY)
def test_identity_design_has_the_operators_and_cost_of_the_original(captured, name):
    graph = captured(name).graph
    scaled = scaled_graph(graph, identity_design(graph))
    assert [(op.kind, op.shape) for op in scaled.ops] == [(op.kind, op.shape) for op in graph.ops]
    assert (scaled.macs, scaled.params) == (graph.macs, graph.params)


@pytest.mark.torch
def test_regnet_bottleneck_keeps_whole_convolution_groups(captured):
    graph = captured("regnet_x_1_6gf").graph
    parts = [
        whole(s) if s.name != "s2" else SegmentDesign("s2", s.start, s.end, (BranchScale("cpu", 4, 88), BranchScale("gpu", 2, 168)), "sum")
        for s in split_segments(graph)
    ]
    scaled = scaled_graph(graph, BranchDesign(graph.name, "test", tuple(parts)))
    grouped = [op for op in scaled.ops if op.kind == "conv" and op.attrs["groups"] > 1 and op.name.startswith("s2_on_cpu")]
    assert grouped
    assert all(op.attrs["out_channels"] // op.attrs["groups"] == 24 for op in grouped)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"branches": (BranchScale("cpu", 1, 12),)}, "keeps its width"),
        ({"branches": (BranchScale("cpu", 1, 16), BranchScale("cpu", 1, 16)), "join": "sum"}, "one branch per processor"),
        ({"branches": (BranchScale("cpu", 1, 16), BranchScale("gpu", 1, 16))}, "nothing joins"),
        ({"join": "project"}, "nothing to join"),
        ({"branches": (BranchScale("cpu", 1, 16, "none", 4), BranchScale("gpu", 1, 16, "none", 4)), "join": "project"}, "add up to 8"),
        ({"branches": (BranchScale("cpu", 1, 9, align=4), BranchScale("gpu", 1, 16)), "join": "sum"}, "needs an entry"),
    ],
)
@pytest.mark.torch
def test_design_that_does_not_fit_is_refused_naming_the_segment(captured, change, reason):
    graph = captured("tiny_resnet").graph
    parts = {s.name: whole(s) for s in split_segments(graph)}
    old = parts["s1"]
    fields = {"branches": old.branches, "join": old.join} | change
    parts["s1"] = SegmentDesign(old.name, old.start, old.end, **fields)
    with pytest.raises(StretchError, match=reason) as caught:
        scaled_graph(graph, BranchDesign(graph.name, "test", tuple(parts.values())))
    assert "s1" in caught.value.message
