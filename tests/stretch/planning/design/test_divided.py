import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UnknownNameError
from predictors.graph import Op, OpGraph
from predictors.rows import Rows
from predictors.slices import Channels
from stretch.planning.design.branch_design import BranchDesign, BranchDraft, BranchScale, DesignDraft, SegmentDesign, SegmentDraft, Taken
from stretch.planning.design.scale import check_join, resolve_design, scaled_graph
from stretch.planning.divisions.channels import ENTRY_CHANNELS, channel_part
from stretch.planning.divisions.ends import subgraphs_of
from stretch.planning.divisions.rows import ENTRY_ROWS, band_graph, bands_of
from stretch.planning.network.segments import cut_segment, operators_read_outside
from tests.predictors.networks import Net
from tests.stretch.planning.design.test_paths import conv
from tests.stretch.planning.network.test_segments import inverted


def chain(*ops, shape=(1, 4, 12, 6)):
    return OpGraph.build("net", [Op("x", "input", attrs={"shape": shape}), *ops], ops[-1].name)


def two_convolutions():
    return chain(conv("a", "x"), conv("b", "a"))


def test_halo_grows_by_a_row_with_each_convolution_and_a_band_pads_where_the_image_ends():
    assert bands_of(two_convolutions(), 4, 8)[0] == {"b": Rows(4, 8), "a": Rows(3, 9), "x": Rows(2, 10)}
    top = band_graph(two_convolutions(), "top", 0, 5)
    assert [(op.name, op.kind) for op in top.ops] == [("x", "input"), (ENTRY_ROWS, "slice_rows"), ("a", "conv"), ("b", "conv")]
    assert dict(top.by_name[ENTRY_ROWS].attrs) == {"start": 0, "stop": 7}
    assert [top.by_name[name].attrs["padding"] for name in "ab"] == [(1, 1, 0, 1)] * 2
    assert top.by_name[top.output].shape == (1, 4, 5, 6)


def test_skip_reads_fewer_rows_than_the_convolution_parallel_to_it():
    graph = chain(conv("a", "x"), conv("b", "a"), Op("y", "add", ("b", "a")))
    band = band_graph(graph, "band", 4, 8)
    assert band.by_name["y"].inputs == ("b", "y_rows1")
    assert dict(band.by_name["y_rows1"].attrs) == {"start": 1, "stop": 5}


def dense():
    net = Net(1, 8, 10, 10)
    net.add("concat", "input", net.conv(4))
    return net.graph("dense")


def within_padding():
    return chain(replace(conv("y", "x"), attrs=conv("y", "x").attrs | {"padding": (4, 1, 0, 1)}))


@pytest.mark.parametrize(
    ("divide", "reason"),
    [
        *((lambda ends=ends: bands_of(two_convolutions(), *ends), "operator `b` has 12 rows") for ends in ((0, 13), (5, 5), (-1, 3))),
        (lambda: bands_of(within_padding(), 0, 1), r"rows 0 to 1 of `y` need rows of `y` that lie in its padding alone"),
        (lambda: channel_part(dense(), "part", Channels(0, 8), hidden=False), "would compute nothing"),
        (lambda: channel_part(inverted(), "part", Channels(0, 9), hidden=False), "not channels 0 to 9"),
        (lambda: channel_part(inverted(), "part", Channels(3, 3), hidden=False), "not channels 3 to 3"),
        (lambda: channel_part(inverted(), "part", Channels(20, 25), hidden=True), "not channels 20 to 25"),
    ],
)
def test_missing_rows_and_channels_and_branches_that_compute_nothing_are_refused(divide, reason):
    with pytest.raises(StretchError, match=reason):
        divide()


def test_branch_of_hidden_channels_has_their_filters_and_columns():
    graph = inverted()
    names = expand, _, project = [op.name for op in graph.ops if op.kind == "conv"]
    first, second = (channel_part(graph, "part", Channels(*part), hidden=True) for part in ((0, 8), (8, 24)))
    assert [[part.graph.by_name[name].shape[1] for name in names] for part in (first, second)] == [[8, 8, 8], [16, 16, 8]]
    assert second.taken[expand] == Taken(Channels(8, 24), 24)
    assert second.taken[project] == Taken(Channels(0, 8), 8, Channels(8, 24))
    assert first.graph.macs + second.graph.macs == graph.macs


def test_skip_bias_and_shift_belong_to_the_first_branch_only():
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


def test_branch_of_output_channels_computes_all_inputs_of_its_filters():
    graph = inverted()
    part = channel_part(graph, "part", Channels(2, 5), hidden=False).graph
    assert part.by_name[part.output].shape == (1, 3, 10, 10)
    hidden = [op for op in graph.ops if op.kind == "conv"][:2]
    assert all(part.by_name[op.name].shape == op.shape for op in hidden)
    skip = next(op for op in part.ops if op.kind == "slice")
    assert (skip.inputs, dict(skip.attrs)) == ((ENTRY_CHANNELS,) if ENTRY_CHANNELS in part.by_name else ("input",), {"start": 2, "stop": 5})


def branches(*parts, align=1):
    return tuple(BranchScale(name, 1, 8, align=align, channels=part) for name, part in zip(("cpu", "gpu", "dsp"), parts, strict=False))


@pytest.mark.parametrize(
    ("written", "join", "reason"),
    [
        (branches((0, 12), (6, 24)), "partial_sums", "hidden channels 6 to 24 on gpu, where hidden channels from 12 on are due"),
        (branches((0, 6), (12, 24)), "partial_sums", "hidden channels 12 to 24 on gpu, where hidden channels from 6 on are due"),
        (branches((6, 12), (12, 24)), "partial_sums", "hidden channels 6 to 12 on cpu, where hidden channels from 0 on are due"),
        (branches((0, 24), (24, 24)), "partial_sums", "hidden channels 24 to 24 on gpu"),
        (branches((0, 6), (6, 18)), "partial_sums", "branches up to 18 of the 24 hidden channels of `relu_6`"),
        (branches((0, 6), (6, 30)), "partial_sums", "branches up to 30 of the 24 hidden channels of `relu_6`"),
        (branches((0, 4), (4, 24)), "partial_sums", "hidden channels 0 to 4 on cpu, which divide a group"),
        (branches((0, 6), (6, 24), align=4), "partial_sums", "hidden channels 0 to 6 on cpu, which computes 4 at a time"),
        (branches((0, 6), None), "partial_sums", "is divided by channels, and its branch on gpu does not say which it computes"),
        (branches((0, 3), (3, 9)), "channels", "branches up to 9 of the 8 channels of `add_9`"),
        (branches((0, 3), (3, 8)), "sum", "branches of some channels, which `sum` does not join"),
    ],
)
def test_channels_that_do_not_divide_a_segment_are_refused_with_valid_channels(written, join, reason):
    segment = cut_segment(inverted(groups=4), "s1", "input", "add_9")
    with pytest.raises(StretchError, match=reason) as caught:
        check_join(segment, SegmentDesign("s1", segment.start, segment.end, written, join))
    assert "s1" in caught.value.message
    assert caught.value.hint


def test_last_branch_takes_the_remainder_of_an_aligned_division():
    segment = cut_segment(inverted(), "s1", "input", "add_9")
    check_join(segment, SegmentDesign("s1", segment.start, segment.end, branches((0, 16), (16, 24), align=16), "partial_sums"))


def skipping():
    """Two modules with tensors that skip over the end of the first."""
    ops = [conv("a", "x"), conv("b", "x"), Op("ab", "add", ("a", "b")), conv("c", "ab"), conv("d", "b"), Op("cd", "concat", ("c", "d"))]
    return OpGraph.build("net", [Op("x", "input", attrs={"shape": (1, 4, 6, 6)}), *ops, conv("end", "cd")], "end")


def portions(ends):
    return subgraphs_of(skipping(), [f"s1.p{i}" for i in range(len(ends))], ends)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([(), ("end",)], "`s1.p0` hands on no tensor, so it computes nothing"),
        ([("x",), ("end",)], "`s1.p0` hands on `x`, which arrives at the segment"),
        ([("b",), ("b", "end")], "`s1.p1` hands on `b`, which `s1.p0` computes before it"),
        ([("b", "b"), ("end",)], "`s1.p0` hands on `b` twice"),
        ([("end",), ("c",)], "`s1.p1` hands on `c`, which `s1.p0` computes before it"),
        ([("b",), ("ab",)], "the segment's end `end` is computed by none"),
        ([("ab",), ("end",)], "`s1.p1` reads `b`, which `s1.p0` computes and does not hand on"),
        ([("a", "ab", "b"), ("end",)], "`s1.p0` hands on `a`, which no later branch reads"),
        ([("abb",), ("end",)], "`abb`"),
    ],
)
def test_invalid_ends_of_portions_are_refused_by_name(ends, message):
    with pytest.raises(UnknownNameError if ends[0] == ("abb",) else StretchError, match=re.escape(message)):
        portions(ends)


def placed(*branches, join="placed"):
    segment = cut_segment(skipping(), "s1", "x", "end")
    scales = tuple(BranchScale(p, segment.depth, segment.width, **more) for p, more in branches)
    return BranchDesign("net", "test", (SegmentDesign("s1", "x", "end", scales, join),))


@pytest.mark.parametrize(
    ("design", "message"),
    [
        (placed(("cpu", {"ends": ("end",)})), "has one branch, and ends are divided among two or more"),
        (placed(("cpu", {"ends": ("b",)}), ("gpu", {})), "is divided by ends, and its branch on gpu does not say which it computes"),
        (placed(("cpu", {"ends": ("b",)}), ("gpu", {"ends": ("end",)}), join="rows"), "which `rows` does not join"),
        (placed(("cpu", {"ends": ("b",), "rows": (0, 3)}), ("gpu", {"ends": ("end",)})), "computes some operators and a band of rows"),
        (placed(("cpu", {"ends": ("b",), "entry": "project"}), ("gpu", {"ends": ("end",)})), "and no entry"),
        (
            placed(("cpu", {"ends": ("b",)}), ("cpu", {"ends": ("ab", "d")}), ("cpu[2]", {"ends": ("end",)})),
            "has processors with the same name: cpu, cpu_2, cpu[2]",
        ),
    ],
)
def test_segment_with_branches_other_than_portions_is_refused(design, message):
    with pytest.raises(StretchError, match=re.escape(message)):
        scaled_graph(skipping(), design)


def test_design_file_states_only_processors_and_ends():
    branches = [BranchDraft("cpu", ends=("b",)), BranchDraft("gpu", ends=("end",))]
    built = resolve_design(DesignDraft([SegmentDraft(branches, "s1", "x", "end")]), skipping(), "test", {"cpu": 8, "gpu": 4}, "cpu")
    assert built.segments[0].join == "placed"
    assert [branch.ends for branch in built.segments[0].branches] == [("b",), ("end",)]


@given(st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_any_division_that_passes_on_shared_tensors_has_each_operator_once_and_reads_its_inputs(numbers):
    graph = skipping()
    names = [op.name for op in graph.ops if op.kind != "input"]
    # an operator is never in an earlier portion than its inputs
    portion_of: dict[str, int] = {}
    for name, number in zip(names, numbers, strict=True):
        portion_of[name] = max([number, *(portion_of[i] for i in graph.by_name[name].inputs if i != "x")])
    members = [{name for name in names if portion_of[name] == number} for number in sorted(set(portion_of.values()))]
    ends = [operators_read_outside(graph, [op for op in graph.ops if op.name in current]) for current in members]
    built = subgraphs_of(graph, [f"p{i}" for i in range(len(members))], ends)
    assert [{op.name for op in portion.ops if op.kind != "input"} for portion in built] == members
    reads = [
        dict.fromkeys(name for op in graph.ops if op.name in current for name in op.inputs if name not in current) for current in members
    ]
    assert [[op.name for op in portion.inputs] for portion in built] == list(map(list, reads))
    assert [list(portion.outputs) for portion in built] == list(map(list, ends))
    assert sum(portion.macs for portion in built) == graph.macs
    assert sum(portion.params for portion in built) == graph.params
