import pytest

from predictors.errors import StretchError, UnknownNameError
from stretch.planning.network.segments import cut_segment, split_segments
from tests.predictors.networks import Net


@pytest.mark.torch
@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_mobilenet", "tiny_regnet", "tiny_vgg"])
def test_segments_cover_every_operator_once(captured, name):
    graph = captured(name).graph
    segments = split_segments(graph)
    inside = [op.name for s in segments for op in s.graph.ops if op.kind != "input"]
    assert inside == [op.name for op in graph.ops if op.kind != "input"]
    assert sum(s.graph.macs for s in segments) == graph.macs


@pytest.mark.torch
def test_own_meeting_points_bound_the_segments(captured):
    graph = captured("resnet18").graph
    segments = split_segments(graph, ["layer2_1_relu_1", "avgpool"])
    assert [(s.name, s.start, s.end) for s in segments] == [
        ("stem", "input", "maxpool"),
        ("s1", "maxpool", "layer2_1_relu_1"),
        ("s2", "layer2_1_relu_1", "avgpool"),
        ("head", "avgpool", "fc"),
    ]


@pytest.mark.torch
def test_meeting_point_inside_a_block_is_refused_with_the_closest_cut_point(captured):
    with pytest.raises(UnknownNameError, match="unknown cut point `layer1_0_bn1`") as caught:
        split_segments(captured("resnet18").graph, ["layer1_0_bn1"])
    assert "layer1" in caught.value.hint


@pytest.mark.torch
def test_meeting_points_out_of_order_are_refused(captured):
    with pytest.raises(StretchError, match="order"):
        split_segments(captured("resnet18").graph, ["avgpool", "layer2_1_relu_1"])


@pytest.mark.torch
def test_segment_that_ends_before_it_starts_is_refused(captured):
    with pytest.raises(StretchError, match="not after its start"):
        cut_segment(captured("resnet18").graph, "s", "avgpool", "maxpool")


@pytest.mark.torch
def test_entry_is_needed_only_behind_an_identity_skip(captured):
    segments = {s.name: s for s in split_segments(captured("resnet18").graph)}
    assert segments["s1"].entries(32) == ("project", "slice")
    assert segments["s1"].entries(64) == ("none",)
    assert segments["s2"].entries(64) == ("none",)


def test_branch_behind_a_grouped_convolution_that_multiplies_channels_needs_as_many_as_it_reads():
    """As the last stage of FastViT: two grouped convolutions side by side, each of which writes two channels for one."""
    net = Net(1, 3, 8, 8)
    start = net.conv(8, 3)
    one = net.conv(16, 3, groups=8, act=None)
    two = net.conv(16, groups=8, act=None, source=start)
    net.add("add", one, two)
    end = net.add("relu")
    net.head(10)
    segment = next(each for each in split_segments(net.graph("g"), [start, end]) if each.end == end)
    assert (segment.width, segment.in_width) == (16, 8)
    assert segment.arriving(16) == 8
    assert segment.arriving(8) == 4
    assert segment.entries(16) == ("none",)
