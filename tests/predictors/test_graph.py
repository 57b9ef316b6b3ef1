"""The operator graph checks itself and survives the way through JSON."""

import json
import re

import pytest

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph, tensor_bytes
from tests.predictors.networks import efficientnet_b5, resnet50, small_resnet

INPUT = Op("x", "input", attrs={"shape": (1, 8, 4, 4)})


def conv(name="c", source="x", **changed):
    attrs = {"out_channels": 4, "kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "groups": 1, "bias": True} | changed
    return Op(name, "conv", (source,), attrs)


@pytest.mark.parametrize("make", [resnet50, efficientnet_b5, small_resnet])
def test_graph_survives_the_way_through_json(make):
    graph = make()
    assert OpGraph.from_json(graph.to_json()) == graph


def test_published_cost_of_resnet50():
    graph = resnet50()
    # torchvision states 4.09 GFLOPS (multiply-accumulates) and 25 557 032 parameters.
    assert graph.params == 25_557_032
    assert round(graph.macs / 1e9, 2) == 4.09


@pytest.mark.parametrize("make", [resnet50, efficientnet_b5])
def test_facts_of_operators_add_up_to_those_of_the_graph(make):
    graph = make()
    facts = [graph.op_facts(op) for op in graph.ops]
    assert sum(each.params for each in facts) == graph.params
    assert sum(each.macs for each in facts) == graph.macs
    assert all(graph.op_facts(op) is known for op, known in zip(graph.ops, facts, strict=True))


@pytest.mark.parametrize(
    ("ops", "output", "message"),
    [
        ([INPUT, INPUT], "x", "operator `x` of `g` is there twice"),
        ([INPUT, conv(source="y")], "c", "reads `y`, which no earlier operator writes"),
        ([INPUT, Op("a", "add", ("x",))], "a", "needs 2 inputs, it has 1"),
        ([INPUT, conv(groups=3)], "c", "`c` (conv) does not fit its input: 3 groups divide neither 8 inputs nor 4 outputs"),
        ([INPUT, conv(groups=0)], "c", "`c` (conv) lacks or has a wrong attribute"),
        ([INPUT, conv(kernel=3)], "c", "`c` (conv) lacks or has a wrong attribute"),
        ([INPUT, Op("c", "conv", ("x",), {})], "c", "lacks or has a wrong attribute"),
        ([INPUT, conv(kernel=(9, 9))], "c", "has the empty output shape"),
        ([INPUT], "y", "output `y` of `g` is no operator"),
        ([Op("z", "input", attrs={"shape": (1, 1)})], ["z", "z"], "needs an output, and none twice; it has z, z"),
        ([INPUT], [], "needs an output, and none twice; it has none"),
        ([], [], "needs an output"),
        ([], "x", "output `x` of `g` is no operator"),
    ],
)
def test_bad_graph_is_refused_by_name(ops, output, message):
    with pytest.raises(StretchError, match=re.escape(message)):
        OpGraph.build("g", ops, output)


def test_graph_of_several_inputs_and_outputs_names_them_in_order():
    other = Op("y", "input", attrs={"shape": (1, 8, 4, 4)})
    graph = OpGraph.build("g", [INPUT, other, Op("s", "add", ("x", "y")), conv(source="s")], ["c", "s"])
    assert [op.name for op in graph.inputs] == ["x", "y"]
    assert graph.outputs == ("c", "s")
    assert OpGraph.from_json(graph.to_json()) == graph
    assert graph.params == 8 * 4 + 4


@pytest.mark.parametrize("what", ["input", "output"])
def test_one_end_of_several_is_refused_where_only_one_is_supported(what):
    other = Op("y", "input", attrs={"shape": (1, 8, 4, 4)})
    graph = OpGraph.build("g", [INPUT, other, Op("s", "add", ("x", "y")), conv(source="s")], ["c", "s"])
    with pytest.raises(StretchError, match=f"`g` has 2 {what}s, and only one is supported here"):
        getattr(graph, what)


def test_json_that_states_wrong_shapes_is_refused():
    raw = json.loads(small_resnet().to_json())
    raw["ops"][1]["shape"] = [1, 999, 4, 4]
    with pytest.raises(StretchError, match="states shapes that its operators do not have"):
        OpGraph.from_json(json.dumps(raw))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": 3, "ops": [], "outputs": ["x"]}'])
def test_json_that_is_no_graph_is_refused(text):
    with pytest.raises(StretchError, match="is not an operator graph"):
        OpGraph.from_json(text)


def test_tensor_bytes_count_elements_times_item_size():
    assert tensor_bytes((2, 3, 4), 2) == 48
