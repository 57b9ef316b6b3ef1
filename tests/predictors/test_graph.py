"""Graphs, operator kinds, registries, and the joins of branches."""

import json
import re
from math import prod

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import KERNEL_KINDS
from predictors.errors import StretchError, UnknownNameError
from predictors.graph import Op, OpGraph
from predictors.joins import JoinKind, join_of, joins, joins_that, meeting_of, meetings
from predictors.operators import kind_of, kinds
from predictors.registry import Registry
from tests.predictors.networks import convolution, efficientnet_b5, resnet50, small_resnet
from tests.scheduler.delegates.graphs import KIND_NAMES, graphs

INPUT = Op("x", "input", attrs={"shape": (1, 8, 4, 4)})


def conv(source="x", **changed):
    return Op("c", "conv", (source,), dict(convolution("c", source, 4, bias=True).attrs) | changed)


@pytest.mark.parametrize("make", [resnet50, efficientnet_b5, small_resnet])
def test_graph_survives_json_and_has_its_published_cost(make):
    graph = make()
    assert OpGraph.from_json(graph.to_json()) == graph
    # torchvision states 4.09 GFLOPS (multiply-accumulates) and 25 557 032 parameters.
    assert make is not resnet50 or (graph.params, round(graph.macs / 1e9, 2)) == (25_557_032, 4.09)


@pytest.mark.parametrize(
    ("ops", "output", "message"),
    [
        ([INPUT, INPUT], "x", "`x`.*twice"),
        ([INPUT, conv(source="y")], "c", "reads `y`"),
        ([INPUT, Op("a", "add", ("x",))], "a", "2 inputs"),
        ([INPUT, conv(groups=3)], "c", "`c`.*3 groups"),
        ([INPUT, conv(groups=0)], "c", "`c`.*wrong attribute"),
        ([INPUT, conv(kernel=3)], "c", "`c`.*wrong attribute"),
        ([INPUT, Op("c", "conv", ("x",), {})], "c", "lacks or has a wrong attribute"),
        ([INPUT, conv(kernel=(9, 9))], "c", "has the empty output shape"),
        ([INPUT], "y", "output `y`"),
        ([Op("z", "input", attrs={"shape": (1, 1)})], ["z", "z"], "none twice.*z, z"),
        ([INPUT], [], "output.*none"),
        ([], [], "needs an output"),
    ],
)
def test_bad_graph_is_refused_by_name(ops, output, message):
    with pytest.raises(StretchError, match=message):
        OpGraph.build("g", ops, output)


def test_graph_of_several_inputs_and_outputs_lists_them_in_order_and_refuses_access_to_a_single_one():
    other = Op("y", "input", attrs={"shape": (1, 8, 4, 4)})
    graph = OpGraph.build("g", [INPUT, other, Op("s", "add", ("x", "y")), conv(source="s")], ["c", "s"])
    assert ([op.name for op in graph.inputs], graph.outputs) == (["x", "y"], ("c", "s"))
    assert (OpGraph.from_json(graph.to_json()), graph.params) == (graph, 8 * 4 + 4)
    for end in ("input", "output"):
        with pytest.raises(StretchError, match=f"`g` has 2 {end}s, and only one is supported here"):
            getattr(graph, end)
    with pytest.raises(StretchError, match="4 rows"):
        graph.op_rows(graph.by_name["s"], 4, 9)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": 3, "ops": [], "outputs": ["x"]}', None])
def test_json_that_is_no_graph_or_states_wrong_shapes_is_refused(text):
    raw = json.loads(small_resnet().to_json())
    raw["ops"][1]["shape"] = [1, 999, 4, 4]
    with pytest.raises(StretchError, match="states shapes" if text is None else "is not an operator graph"):
        OpGraph.from_json(json.dumps(raw) if text is None else text)


@given(st.sampled_from(KIND_NAMES), st.data())
def test_kernel_of_any_operator_has_a_known_kind_and_computes_its_whole_output(name, data):
    graph, _, _ = data.draw(graphs(name))
    op = graph.by_name["y"]
    work = kind_of(name).work(graph.input_shapes(op), op.attrs, op.shape)
    assert work.kind in KERNEL_KINDS
    assert min(work[1:]) >= 1
    assert work.pixels * work.out_channels * work.groups == max(1, prod(op.shape))


@given(st.sampled_from(KIND_NAMES), st.data())
def test_operator_scaled_to_its_own_width_is_unchanged(name, data):
    from predictors.channels import Narrowed

    graph, _, _ = data.draw(graphs(name))
    op = graph.by_name["y"]
    channels = graph.input_shapes(op)[0][1]
    unchanged = Narrowed(channels, channels, op.shape[1], lambda channel: channel)
    assert dict(kind_of(name).scaled(op.attrs, unchanged)) == dict(op.attrs)


def test_second_registration_of_a_name_is_refused():
    registry = Registry("tool")
    registry.register("axe")(len)
    with pytest.raises(StretchError, match="axe"):
        registry.register("axe")(max)
    assert registry.get("axe") is len
    with pytest.raises(UnknownNameError) as caught:
        registry.get("eax")
    assert "`axe`" in caught.value.hint


def test_only_registered_joins_may_be_written_in_files():
    for name in joins:
        assert msgspec.convert(name, JoinKind) == name
    with pytest.raises(msgspec.ValidationError, match="'glue'"):
        msgspec.convert("glue", JoinKind)


def test_every_meeting_has_an_operator_a_kernel_kind_and_a_join_of_its_name():
    for name in meetings:
        meeting = meetings.get(name)
        assert meeting.operator in kinds
        assert meeting.kernel in KERNEL_KINDS
        assert meeting_of(name) is meeting
    assert "placed" not in joins_that(lambda join: True)
    assert (join_of("none").meets, join_of("none").convolves) == (None, False)
    with pytest.raises(ValueError, match="joins nothing"):
        meeting_of("none")


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.sampled_from([("concat", "NCHW", 1), ("concat", "NHWC", -1), ("rows", "NCHW", 2), ("rows", "NHWC", 1)]),
)
def test_parts_of_fitting_shapes_are_joined_and_can_be_split_again(sizes, case):
    join, layout, axis = case
    meeting = meeting_of(join)
    assert meeting.axis(layout, 4) % 4 == axis % 4
    shape = [1, 2, 3, 2]
    shapes = [tuple(size if place == axis % 4 else other for place, other in enumerate(shape)) for size in sizes]
    parts = [np.full(shape, i) for i, shape in enumerate(shapes)]
    joined = meeting.combine(parts, axis, None)
    place = np.empty_like(joined)
    meeting.combine(parts, axis, place)
    assert np.array_equal(place, joined)
    assert meeting.problem(shapes, joined.shape, layout) is None
    for i, part in enumerate(np.split(joined, np.cumsum(sizes)[:-1], axis)):
        assert np.array_equal(part, parts[i])


@pytest.mark.parametrize(
    ("join", "inputs", "output", "layout", "problem"),
    [
        ("concat", [(1, 2, 3, 3), (1, 2, 3, 3)], (1, 5, 3, 3), "NCHW", r"channels 2 \+ 2 do not give a tensor of shape \[1, 5, 3, 3\]"),
        ("concat", [(1, 2, 3, 3), (1, 2, 3, 4)], (1, 4, 3, 3), "NCHW", "do not give"),
        ("concat", [(1, 2, 3, 3)] * 2, (1, 4, 3, 3), "PHWC4", "cannot be put side by side"),
        ("concat", [(4,), (4,)], (8,), "NC", "without channels"),
        ("rows", [(1, 3, 2, 3), (1, 3, 2, 3)], (1, 3, 5, 3), "NCHW", r"rows 2 \+ 2 do not give a tensor of shape \[1, 3, 5, 3\]"),
        ("rows", [(1, 3, 2, 3), (1, 4, 2, 3)], (1, 3, 4, 3), "NCHW", "do not give"),
        ("rows", [(1, 2, 3, 3)] * 2, (1, 2, 6, 3), "PHWC4", "cannot be put below each other"),
        ("rows", [(1, 4), (1, 4)], (1, 8), "NCHW", "without rows"),
    ],
)
def test_parts_whose_shapes_do_not_give_the_output_are_refused(join, inputs, output, layout, problem):
    assert re.search(problem, meeting_of(join).problem(inputs, output, layout))
