import pytest

from predictors.graph import Op, OpGraph
from predictors.rewrites import changing, laid_out, rewritten
from predictors.rewrites.grouped import MOST_PARTS, is_grouped, owner_of

NAME = "grouped_conv=parts"
NORM = {"eps": 1e-5, "momentum": 0.1, "affine": True}


def graph(groups, channels, *, read_twice=False):
    conv = {"out_channels": channels * 2, "kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "bias": False}
    ops = [
        Op("x", "input", attrs={"shape": (1, channels, 6, 6)}),
        Op("conv", "conv", ("x",), {**conv, "groups": groups}),
        Op("norm", "batch_norm", ("conv",), NORM),
        Op("act", "relu", ("norm",)),
        *([Op("both", "add", ("conv", "act"))] if read_twice else []),
    ]
    return OpGraph.build("net", ops, ops[-1].name)


def test_norm_and_activation_go_along_and_the_result_keeps_its_name():
    before = graph(4, 8)
    after, done = rewritten(before, [NAME])
    assert done == (NAME,)
    assert [op.kind for op in after.ops] == ["input", *["slice", "conv", "batch_norm", "relu"] * 4, "concat"]
    assert after.output == "act"
    assert (after.macs, after.params) == (before.macs, before.params)
    assert {owner_of(op) for op in after.ops if op.kind == "conv"} == {"conv"}
    assert not any(is_grouped(after, op) for op in after.ops)


def test_convolution_that_others_read_too_has_its_norm_behind_the_concat():
    after, _ = rewritten(graph(4, 8, read_twice=True), [NAME])
    assert after.by_name["conv"].kind == "concat"
    assert after.by_name["norm"].inputs == ("conv",)


@pytest.mark.parametrize(("groups", "channels"), [(1, 8), (8, 8), (MOST_PARTS * 2, MOST_PARTS * 4)])
def test_dense_and_depthwise_ones_and_those_of_too_many_groups_stay(groups, channels):
    before = graph(groups, channels)
    assert rewritten(before, [NAME]) == (before, ())


def test_name_that_is_taken_leaves_the_convolution_whole():
    before = graph(4, 8)
    taken = OpGraph.build("net", [*before.ops, Op("conv_slice1", "relu", ("act",))], "conv_slice1")
    assert rewritten(taken, [NAME]) == (taken, ())


def test_it_is_exact_and_others_are_not():
    assert changing([NAME, "relu6=relu", "silu=relu"]) == ("relu6=relu", "silu=relu")
    before = graph(4, 8)
    assert laid_out(before, ["gelu=relu", NAME])[1] == (NAME,)
