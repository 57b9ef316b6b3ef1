import pytest

from predictors.graph import Op, OpGraph
from predictors.rewrites import rewritten

CONV = {"kernel": (1, 1), "stride": (1, 1), "padding": (0,) * 4, "dilation": (1, 1), "groups": 1, "bias": True}
NAME = "squeeze_excite=none"


def ops(gate="sigmoid", image="conv", swapped=False):
    inputs = ("gate", image) if swapped else (image, "gate")
    return [
        Op("x", "input", attrs={"shape": (1, 8, 6, 6)}),
        Op("conv", "conv", ("x",), {**CONV, "out_channels": 8}),
        Op("mean", "global_avg_pool", ("conv",), {"keepdims": True}),
        Op("fewer", "conv", ("mean",), {**CONV, "out_channels": 2}),
        Op("act", "relu", ("fewer",)),
        Op("more", "conv", ("act",), {**CONV, "out_channels": 8}),
        Op("gate", gate, ("more",)),
        Op("scaled", "mul", inputs),
        Op("last", "conv", ("scaled",), {**CONV, "out_channels": 4}),
    ]


@pytest.mark.parametrize("gate", ["sigmoid", "hard_sigmoid"])
@pytest.mark.parametrize("swapped", [False, True])
def test_factor_goes_with_all_that_works_it_out(gate, swapped):
    before = OpGraph.build("net", ops(gate, swapped=swapped), "last")
    after, done = rewritten(before, [NAME])
    assert done == (NAME,)
    assert [op.name for op in after.ops] == ["x", "conv", "scaled", "last"]
    assert (after.by_name["scaled"].kind, after.by_name["scaled"].inputs) == ("identity", ("conv",))
    assert OpGraph.build("net", after.ops, "last") == after


def test_mean_of_another_image_is_no_squeeze():
    other = [*ops()[:1], Op("conv", "conv", ("x",), {**CONV, "out_channels": 8}), Op("aside", "relu", ("conv",)), *ops(image="aside")[2:]]
    graph = OpGraph.build("net", other, "last")
    assert rewritten(graph, [NAME]) == (graph, ())


@pytest.mark.parametrize("read", ["gate", "mean", "fewer"])
def test_factor_that_something_else_reads_stays(read):
    graph = OpGraph.build("net", [*ops(), Op("other", "tanh", (read,))], ("last", "other"))
    assert rewritten(graph, [NAME]) == (graph, ())


def test_product_of_an_image_with_itself_and_gate_without_a_mean_stay():
    head = ops()[:2]
    for more in ([Op("square", "mul", ("conv", "conv"))], [Op("gate", "sigmoid", ("conv",)), Op("swish", "mul", ("conv", "gate"))]):
        graph = OpGraph.build("net", [*head, *more], more[-1].name)
        assert rewritten(graph, [NAME]) == (graph, ())
