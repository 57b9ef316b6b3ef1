"""Operators written out as several are recognised, and nothing else is."""

import pytest

from predictors.fusion import fuse
from predictors.graph import Op, OpGraph
from predictors.idioms import IDIOMS, recognise

CONV = {"out_channels": 8, "kernel": (1, 1), "stride": (1, 1), "padding": (0,) * 4, "groups": 1, "bias": True}


def graph(*ops, output=None):
    head = [Op("input", "input", (), {"shape": (1, 8, 4, 4)}), Op("conv", "conv", ("input",), CONV)]
    return OpGraph.build("g", [*head, *ops], output or ops[-1].name)


def written_out(shift=3.0, factor=1 / 6, clamp="relu6", multiplied="conv"):
    return [
        Op("shift", "add_scalar", ("conv",), {"value": shift}),
        Op("clamp", clamp, ("shift",)),
        Op("product", "mul", (multiplied, "clamp")),
        Op("sixth", "mul_scalar", ("product",), {"value": factor}),
    ]


def test_hard_swish_that_is_written_out_is_one_operator_of_the_same_name_and_shape():
    before = graph(*written_out())
    seen = recognise(before, IDIOMS)
    assert [op.kind for op in seen.graph.ops] == ["input", "conv", "hard_swish"]
    assert seen.graph.by_name["sixth"].inputs == ("conv",)
    assert seen.names("sixth") == ("shift", "clamp", "product", "sixth")
    assert seen.names("conv") == ("conv",)
    # Built anew, it has the shapes that it carries.
    assert OpGraph.build("g", seen.graph.ops, "sixth") == seen.graph


def test_hard_sigmoid_that_is_written_out_is_recognised():
    shift, clamp, _, _ = written_out()
    seen = recognise(graph(shift, clamp, Op("sixth", "mul_scalar", ("clamp",), {"value": 0.16667})), IDIOMS)
    assert [op.kind for op in seen.graph.ops] == ["input", "conv", "hard_sigmoid"]


@pytest.mark.parametrize("change", [{"shift": 2.0}, {"factor": 0.2}, {"clamp": "relu"}, {"multiplied": "input"}])
def test_what_differs_in_a_number_or_an_operator_stays(change):
    before = graph(*written_out(**change))
    assert recognise(before, IDIOMS).graph is before


def test_idiom_whose_inside_is_read_elsewhere_or_is_the_result_stays():
    read = graph(*written_out(), Op("again", "add", ("clamp", "sixth")))
    assert recognise(read, IDIOMS).graph is read
    result = graph(*written_out()[:3])
    assert recognise(result, IDIOMS).graph is result


def test_kernel_of_an_idiom_names_every_operator_of_the_network():
    (kernel,) = fuse(graph(*written_out()), "tflite_gpu")
    assert kernel.ops == ("conv", "shift", "clamp", "product", "sixth")
    assert [each.ops for each in fuse(graph(*written_out()), "tflite_cpu")] == [("conv",), ("shift", "clamp", "product", "sixth")]


def test_idiom_whose_inside_is_a_result_of_the_graph_stays_written_out():
    inside = graph(*written_out(), output=["sixth", "clamp"])
    assert recognise(inside, IDIOMS).graph == inside
