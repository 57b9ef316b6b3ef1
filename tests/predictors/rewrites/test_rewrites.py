import pytest

from predictors.graph import Op, OpGraph
from predictors.rewrites import (
    MAX_PARTS,
    REPLACEMENTS,
    apply_exact_rewrites,
    apply_rewrites,
    inexact_rewrites,
    is_grouped,
    owner_of,
    rewrites,
)
from tests.predictors.networks import convolution


def graph(*kinds):
    ops = [Op("x", "input", attrs={"shape": (1, 8, 4, 4)})]
    for number, kind in enumerate(kinds):
        attrs = {"gelu": {"approximate": "none"}, "elu": {"alpha": 1.0}}.get(kind, {})
        ops.append(Op(f"a{number}", kind, (ops[-1].name,), attrs))
    return OpGraph.build("net", ops, ops[-1].name)


@pytest.mark.representatives(4)
@pytest.mark.parametrize(("kind", "by"), [(kind, by) for kind, others in REPLACEMENTS.items() for by in others])
def test_one_takes_the_place_of_every_other_and_names_and_shapes_stay(kind, by):
    before = graph(kind, "relu", kind)
    after, done = apply_rewrites(before, [f"{kind}={by}"])
    assert done == (f"{kind}={by}",)
    assert [op.kind for op in after.ops] == ["input", by, "relu", by]
    assert OpGraph.build("net", after.ops, after.outputs) == after
    assert [op.name for op in after.ops] == [op.name for op in before.ops]


def test_rewrites_follow_each_other():
    after, done = apply_rewrites(graph("silu"), ["silu=hard_swish", "gelu=relu", "hard_swish=relu6"])
    assert after.by_name["a0"].kind == "relu6"
    assert done == ("silu=hard_swish", "hard_swish=relu6")


def test_graph_without_what_is_rewritten_is_the_same_graph():
    before = graph("relu", "tanh")
    for name in rewrites:
        assert name.startswith("squeeze") or apply_rewrites(before, [name]) == (before, ()), name


NAME = "grouped_conv=parts"
NORM = {"eps": 1e-5, "momentum": 0.1, "affine": True}


def grouped_graph(groups, channels, *, read_twice=False):
    ops = [
        Op("x", "input", attrs={"shape": (1, channels, 6, 6)}),
        convolution("conv", "x", 2 * channels, 3, groups=groups),
        Op("norm", "batch_norm", ("conv",), NORM),
        Op("act", "relu", ("norm",)),
        *([Op("both", "add", ("conv", "act"))] if read_twice else []),
    ]
    return OpGraph.build("net", ops, ops[-1].name)


def test_norm_and_activation_go_along_and_the_result_keeps_its_name():
    before = grouped_graph(4, 8)
    after, done = apply_rewrites(before, [NAME])
    assert done == (NAME,)
    assert [op.kind for op in after.ops] == ["input", *["slice", "conv", "batch_norm", "relu"] * 4, "concat"]
    assert after.output == "act"
    assert (after.macs, after.params) == (before.macs, before.params)
    assert {owner_of(op) for op in after.ops if op.kind == "conv"} == {"conv"}
    assert not any(is_grouped(after, op) for op in after.ops)


def test_convolution_that_others_read_too_has_its_norm_behind_the_concat():
    after, _ = apply_rewrites(grouped_graph(4, 8, read_twice=True), [NAME])
    assert after.by_name["conv"].kind == "concat"
    assert after.by_name["norm"].inputs == ("conv",)


@pytest.mark.parametrize(("groups", "channels"), [(1, 8), (8, 8), (MAX_PARTS * 2, MAX_PARTS * 4)])
def test_dense_and_depthwise_ones_those_of_too_many_groups_and_one_whose_parts_names_are_taken_stay(groups, channels):
    before, other = grouped_graph(groups, channels), grouped_graph(4, 8)
    taken = OpGraph.build("net", [*other.ops, Op("conv_slice1", "relu", ("act",))], "conv_slice1")
    assert [apply_rewrites(graph, [NAME]) for graph in (before, taken)] == [(before, ()), (taken, ())]


def test_it_is_exact_and_others_are_not():
    assert inexact_rewrites([NAME, "relu6=relu", "silu=relu"]) == ("relu6=relu", "silu=relu")
    before = grouped_graph(4, 8)
    assert apply_exact_rewrites(before, ["gelu=relu", NAME])[1] == (NAME,)


SQUEEZE_EXCITE = "squeeze_excite=none"


def ops(gate="sigmoid", image="conv", swapped=False):
    inputs = ("gate", image) if swapped else (image, "gate")
    return [
        Op("x", "input", attrs={"shape": (1, 8, 6, 6)}),
        convolution("conv", "x", 8, bias=True),
        Op("mean", "global_avg_pool", ("conv",), {"keepdims": True}),
        convolution("fewer", "mean", 2, bias=True),
        Op("act", "relu", ("fewer",)),
        convolution("more", "act", 8, bias=True),
        Op("gate", gate, ("more",)),
        Op("scaled", "mul", inputs),
        convolution("last", "scaled", 4, bias=True),
    ]


@pytest.mark.parametrize("gate", ["sigmoid", "hard_sigmoid"])
@pytest.mark.parametrize("swapped", [False, True])
def test_factor_goes_with_all_that_works_it_out(gate, swapped):
    before = OpGraph.build("net", ops(gate, swapped=swapped), "last")
    after, done = apply_rewrites(before, [SQUEEZE_EXCITE])
    assert done == (SQUEEZE_EXCITE,)
    assert [op.name for op in after.ops] == ["x", "conv", "scaled", "last"]
    assert (after.by_name["scaled"].kind, after.by_name["scaled"].inputs) == ("identity", ("conv",))
    assert OpGraph.build("net", after.ops, "last") == after


CONVOLVED = convolution("conv", "x", 8, bias=True)


@pytest.mark.parametrize(
    ("made", "ends"),
    [
        # the mean of another image is no squeeze
        ([ops()[0], CONVOLVED, Op("aside", "relu", ("conv",)), *ops(image="aside")[2:]], ("last",)),
        # something else reads a part of what works the factor out
        *(([*ops(), Op("other", "tanh", (read,))], ("last", "other")) for read in ("gate", "mean", "fewer")),
        # a product of an image with itself, and a gate without a mean
        ([*ops()[:2], Op("square", "mul", ("conv", "conv"))], ("square",)),
        ([*ops()[:2], Op("gate", "sigmoid", ("conv",)), Op("swish", "mul", ("conv", "gate"))], ("swish",)),
    ],
)
def test_what_is_no_factor_of_squeeze_and_excitation_alone_stays(made, ends):
    graph = OpGraph.build("net", made, ends)
    assert apply_rewrites(graph, [SQUEEZE_EXCITE]) == (graph, ())
