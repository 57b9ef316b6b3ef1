"""Graphs of some channels of a segment."""

import pytest

from predictors.errors import StretchError
from predictors.slices import Channels
from stretch.planning.design.branch_design import BranchScale, SegmentDesign
from stretch.planning.design.channels import ENTRY_CHANNELS, Taken, channel_part, check_channels
from stretch.planning.network.segments import cut_segment
from tests.predictors.networks import Net
from tests.stretch.planning.network.test_divisions import inverted


def test_branch_of_hidden_channels_has_their_filters_and_columns():
    graph = inverted()
    expand, middle, project = (op.name for op in graph.ops if op.kind == "conv")
    first, second = (channel_part(graph, "part", Channels(*part), hidden=True) for part in ((0, 8), (8, 24)))
    assert [first.graph.by_name[name].shape[1] for name in (expand, middle, project)] == [8, 8, 8]
    assert [second.graph.by_name[name].shape[1] for name in (expand, middle, project)] == [16, 16, 8]
    assert second.taken[expand] == Taken(Channels(8, 24), 24)
    assert second.taken[project] == Taken(Channels(0, 8), 8, Channels(8, 24))
    assert first.graph.macs + second.graph.macs == graph.macs


def test_skip_bias_and_shift_belong_to_the_first_branch_alone():
    net = Net(1, 8, 10, 10)
    net.conv(24)
    project = net.add("conv", kernel=(1, 1), stride=(1, 1), padding=(0,) * 4, dilation=(1, 1), groups=1, out_channels=8, bias=True)
    norm = net.add("batch_norm", affine=True, eps=1e-5)
    shift = net.add("shift")
    factor = net.add("scale")
    skip = net.add("add", "input", factor)
    graph = net.graph("block")
    first, second = (channel_part(graph, "part", Channels(*part), hidden=True) for part in ((0, 8), (8, 24)))
    assert {project, norm, shift, factor, skip} <= {op.name for op in first.graph.ops}
    assert not {shift, skip} & {op.name for op in second.graph.ops}
    assert [part.graph.by_name[project].attrs["bias"] for part in (first, second)] == [True, False]
    assert [part.taken[norm].zeros for part in (first, second)] == [(), ("bias", "running_mean")]
    assert second.graph.output == factor


def test_branch_of_output_channels_computes_all_that_its_filters_read():
    graph = inverted()
    part = channel_part(graph, "part", Channels(2, 5), hidden=False).graph
    assert part.by_name[part.output].shape == (1, 3, 10, 10)
    hidden = [op for op in graph.ops if op.kind == "conv"][:2]
    assert all(part.by_name[op.name].shape == op.shape for op in hidden)
    skip = next(op for op in part.ops if op.kind == "slice")
    assert (skip.inputs, dict(skip.attrs)) == ((ENTRY_CHANNELS,) if ENTRY_CHANNELS in part.by_name else ("input",), {"start": 2, "stop": 5})


def test_branch_that_computes_nothing_is_refused():
    net = Net(1, 8, 10, 10)
    net.add("concat", "input", net.conv(4))
    with pytest.raises(StretchError, match="would compute nothing"):
        channel_part(net.graph("dense"), "part", Channels(0, 8), hidden=False)


@pytest.mark.parametrize(("part", "hidden"), [((0, 9), False), ((3, 3), False), ((20, 25), True)])
def test_channels_that_are_not_there_are_refused(part, hidden):
    with pytest.raises(StretchError, match=f"not channels {part[0]} to {part[1]}"):
        channel_part(inverted(), "part", Channels(*part), hidden=hidden)


def branches(*parts, align=1):
    return tuple(BranchScale(name, 1, 8, align=align, channels=part) for name, part in zip(("cpu", "gpu", "dsp"), parts, strict=False))


@pytest.mark.parametrize(
    ("made", "join", "reason"),
    [
        (branches((0, 12), (6, 24)), "partial_sums", "hidden channels 6 to 24 on gpu, where those from 12 on are due"),
        (branches((0, 6), (12, 24)), "partial_sums", "hidden channels 12 to 24 on gpu, where those from 6 on are due"),
        (branches((6, 12), (12, 24)), "partial_sums", "hidden channels 6 to 12 on cpu, where those from 0 on are due"),
        (branches((0, 24), (24, 24)), "partial_sums", "hidden channels 24 to 24 on gpu"),
        (branches((0, 6), (6, 18)), "partial_sums", "branches up to channel 18, `relu_6` has 24 channels"),
        (branches((0, 6), (6, 30)), "partial_sums", "branches up to channel 30, `relu_6` has 24 channels"),
        (branches((0, 4), (4, 24)), "partial_sums", "hidden channels 0 to 4 on cpu, which divide a group"),
        (branches((0, 6), (6, 24), align=4), "partial_sums", "6 hidden channels on cpu, which computes 4 at a time"),
        (branches((0, 6), None), "partial_sums", "its branch on gpu does not say which hidden channels it computes"),
        (branches((0, 3), (3, 9)), "channels", "branches up to channel 9, `add_9` has 8 channels"),
        (branches((0, 3), (3, 8)), "sum", "branches of some channels, which `sum` does not join"),
    ],
)
def test_channels_that_do_not_divide_a_segment_are_refused_with_what_would_be_right(made, join, reason):
    segment = cut_segment(inverted(groups=4), "s1", "input", "add_9")
    with pytest.raises(StretchError, match=reason) as caught:
        check_channels(segment, SegmentDesign("s1", segment.start, segment.end, made, join))
    assert "s1" in caught.value.message
    assert caught.value.hint


def test_last_branch_takes_what_is_left_of_an_aligned_division():
    segment = cut_segment(inverted(), "s1", "input", "add_9")
    check_channels(segment, SegmentDesign("s1", segment.start, segment.end, branches((0, 16), (16, 24), align=16), "partial_sums"))
