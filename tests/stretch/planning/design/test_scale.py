import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import drop_units, kept_units, partitions, scaled_graph, scaled_units
from stretch.planning.network.segments import channel_groups, split_segments
from tests.predictors.networks import Net
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


def test_channels_that_cannot_be_scaled_are_kept_at_any_width():
    net = Net(1, 3, 64, 64)
    net.conv(16, 3, 2)
    block = net.conv(16, 3, 2)
    # the width asks for half of a group of channels that change together, so the group keeps its width
    net.add("slice", start=3, stop=9)
    net.add("add", block, net.conv(16))
    net.conv(32, 3, 2)
    net.head(10)
    _, segment, *_ = split_segments(net.graph("halved"))
    groups = channel_groups(segment.graph)
    assert groups.pieces[segment.graph.output][0][0] in groups.frozen
    with pytest.raises(StretchError, match="its channels would be 16"):
        kept_units(segment, segment.graph, groups, BranchScale("cpu", segment.depth, 8), 16)


@pytest.mark.torch
def test_depth_of_merged_stages_shrinks_evenly(captured):
    segment = split_segments(captured("resnet50").graph, ["layer3_5_relu_2", "avgpool"])[1]
    kept = {op.name.split("_")[0] + "_" + op.name.split("_")[1] for op in drop_units(segment, 7).ops if op.kind == "conv"}
    assert kept == {*(f"layer1_{i}" for i in range(2)), *(f"layer2_{i}" for i in range(2)), *(f"layer3_{i}" for i in range(3))}


@pytest.mark.torch
@pytest.mark.parametrize("depth", [0, 5])
def test_depth_out_of_range_is_refused_with_the_range(captured, depth):
    segment = next(s for s in split_segments(captured("resnet50").graph) if s.name == "s2")
    with pytest.raises(StretchError, match=f"cannot have depth {depth}") as caught:
        drop_units(segment, depth)
    assert "1 to 4" in caught.value.hint


@given(st.integers(1, 512), st.sampled_from([1, 2, 8, 24]), st.floats(0.05, 2.0), st.sampled_from([1, 4, 8, 16, 32]))
def test_scaled_channels_are_a_multiple_of_the_alignment_unless_too_few(units, per, ratio, align):
    kept = scaled_units(units, per, ratio, align)
    assert kept >= 1
    if ratio == 1:
        assert kept == units
    elif units * ratio * per >= align * per:
        assert kept * per % align == 0


@given(st.integers(1, 300).map(lambda n: n * 4), st.lists(st.integers(1, 400), min_size=1, max_size=3), st.sampled_from([1, 4, 8]))
def test_partitions_add_up_and_give_every_branch_channels(width, widths, align):
    shares = partitions(width, widths, align)
    assert sum(shares) == width
    assert min(shares) > 0


@given(st.integers(3, 64), st.lists(st.integers(1, 400), min_size=2, max_size=3))
def test_partitions_are_within_one_channel_of_their_proportion_if_each_is_at_least_one(width, widths):
    exact = [width * item / sum(widths) for item in widths]
    if min(exact) >= 1:
        assert all(abs(share - part) < 1 for share, part in zip(partitions(width, widths, 1), exact, strict=True))
