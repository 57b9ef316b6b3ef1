"""Portions of a segment: each operator once, what crosses is stated, and together they compute what the segment computes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UnknownNameError
from predictors.graph import Op, OpGraph
from stretch.planning.design.branch_design import BranchDesign, BranchDraft, BranchScale, DesignDraft, SegmentDesign, SegmentDraft
from stretch.planning.design.portions import portion_ends, portion_graphs
from stretch.planning.design.resolve import resolve_design
from stretch.planning.design.scale import scaled_graph
from stretch.planning.network.segments import cut_segment
from tests.stretch.planning.design.test_paths import conv


def skipping():
    """Two modules whose tensors skip over the end of the first."""
    ops = [conv("a", "x"), conv("b", "x"), Op("ab", "add", ("a", "b")), conv("c", "ab"), conv("d", "b"), Op("cd", "concat", ("c", "d"))]
    return OpGraph.build("net", [Op("x", "input", attrs={"shape": (1, 4, 6, 6)}), *ops, conv("end", "cd")], "end")


def portions(ends):
    return portion_graphs(skipping(), [f"s1.p{i}" for i in range(len(ends))], ends)


def test_portion_computes_what_its_ends_need_and_nothing_before_it_does():
    first, second, third = portions([("b",), ("ab", "d"), ("end",)])
    assert [op.name for op in first.ops] == ["x", "b"]
    assert [op.name for op in second.ops] == ["x", "b", "a", "ab", "d"]
    assert [op.name for op in second.inputs] == ["x", "b"]
    assert second.outputs == ("ab", "d")
    assert [op.name for op in third.ops] == ["ab", "d", "c", "cd", "end"]


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
    ],
)
def test_ends_that_divide_nothing_properly_are_refused_by_name(ends, message):
    with pytest.raises(StretchError, match=re.escape(message)):
        portions(ends)


def test_end_that_the_segment_does_not_have_is_refused_with_the_closest():
    with pytest.raises(UnknownNameError, match="`abb`"):
        portions([("abb",), ("end",)])


def placed(*branches, join="placed"):
    segment = cut_segment(skipping(), "s1", "x", "end")
    scales = tuple(BranchScale(p, segment.depth, segment.width, **more) for p, more in branches)
    return BranchDesign("net", "test", (SegmentDesign("s1", "x", "end", scales, join),))


@pytest.mark.parametrize(
    ("design", "message"),
    [
        (placed(("cpu", {"ends": ("end",)})), "has one branch, and a segment divided along its graph has two or more"),
        (placed(("cpu", {"ends": ("b",)}), ("gpu", {})), "`s1.gpu` does not say which tensors it hands on"),
        (placed(("cpu", {"ends": ("b",)}), ("gpu", {"ends": ("end",)}), join="rows"), "which `rows` does not join"),
        (placed(("cpu", {"ends": ("b",), "rows": (0, 3)}), ("gpu", {"ends": ("end",)})), "no entry, rows or paths"),
        (placed(("cpu", {"ends": ("b",), "entry": "project"}), ("gpu", {"ends": ("end",)})), "no entry, rows or paths"),
        (
            placed(("cpu", {"ends": ("b",)}), ("cpu", {"ends": ("ab", "d")}), ("cpu[2]", {"ends": ("end",)})),
            "has processors whose names cannot be told apart: cpu, cpu_2, cpu[2]",
        ),
    ],
)
def test_segment_whose_branches_are_not_all_portions_is_refused(design, message):
    with pytest.raises(StretchError, match=re.escape(message)):
        scaled_graph(skipping(), design)


def test_design_file_names_processors_and_ends_alone():
    branches = [BranchDraft("cpu", ends=("b",)), BranchDraft("gpu", ends=("end",))]
    made = resolve_design(DesignDraft([SegmentDraft(branches, "s1", "x", "end")]), skipping(), "test", {"cpu": 8, "gpu": 4}, "cpu")
    assert made.segments[0].join == "placed"
    assert [branch.ends for branch in made.segments[0].branches] == [("b",), ("end",)]


@given(st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_any_division_that_hands_on_what_others_read_has_each_operator_once(numbers):
    graph = skipping()
    names = [op.name for op in graph.ops if op.kind != "input"]
    # an operator is in no earlier portion than what it reads
    of: dict[str, int] = {}
    for name, number in zip(names, numbers, strict=True):
        of[name] = max([number, *(of[i] for i in graph.by_name[name].inputs if i != "x")])
    inside = [{name for name in names if of[name] == number} for number in sorted(set(of.values()))]
    made = portion_graphs(graph, [f"p{i}" for i in range(len(inside))], portion_ends(graph, inside))
    assert [{op.name for op in portion.ops if op.kind != "input"} for portion in made] == inside
    assert sum(portion.macs for portion in made) == graph.macs
    assert sum(portion.params for portion in made) == graph.params
