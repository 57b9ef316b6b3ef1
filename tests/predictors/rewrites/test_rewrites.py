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
from tests.predictors.networks import Net, convolution


def graph(*kinds):
    net = Net(1, 8, 4, 4)
    for kind in kinds:
        net.add(kind, **{"gelu": {"approximate": "none"}, "elu": {"alpha": 1.0}}.get(kind, {}))
    return net.graph("net")


@pytest.mark.representatives(4)
@pytest.mark.parametrize(("kind", "new"), [(kind, new) for kind, new_kinds in REPLACEMENTS.items() for new in new_kinds])
def test_activation_is_replaced_everywhere_and_names_and_shapes_stay(kind, new):
    before = graph(kind, "relu", kind)
    after, done = apply_rewrites(before, [f"{kind}={new}"])
    assert (done, [op.kind for op in after.ops]) == ((f"{kind}={new}",), ["input", new, "relu", new])
    assert OpGraph.build("net", after.ops, after.outputs) == after
    assert [op.name for op in after.ops] == [op.name for op in before.ops]


def test_rewrites_apply_in_order_and_a_graph_without_a_match_stays_unchanged():
    after, done = apply_rewrites(graph("silu"), ["silu=hard_swish", "gelu=relu", "hard_swish=relu6"])
    assert ([op.kind for op in after.ops], done) == (["input", "relu6"], ("silu=hard_swish", "hard_swish=relu6"))
    before = graph("relu", "tanh")
    for name in rewrites:
        assert name.startswith("squeeze") or apply_rewrites(before, [name]) == (before, ()), name


NAME = "grouped_conv=parts"


def grouped_graph(groups, channels, *, read_twice=False):
    ops = [
        Op("x", "input", attrs={"shape": (1, channels, 6, 6)}),
        convolution("conv", "x", 2 * channels, 3, groups=groups),
        Op("norm", "batch_norm", ("conv",), {"eps": 1e-5, "momentum": 0.1, "affine": True}),
        Op("act", "relu", ("norm",)),
        *([Op("both", "add", ("conv", "act"))] if read_twice else []),
    ]
    return OpGraph.build("net", ops, ops[-1].name)


def test_norm_and_activation_move_into_the_parts_and_the_result_keeps_its_name():
    before = grouped_graph(4, 8)
    after, done = apply_rewrites(before, [NAME])
    assert (done, after.output, after.macs, after.params) == ((NAME,), "act", before.macs, before.params)
    assert [op.kind for op in after.ops] == ["input", *["slice", "conv", "batch_norm", "relu"] * 4, "concat"]
    assert {owner_of(op) for op in after.ops if op.kind == "conv"} == {"conv"}
    assert not any(is_grouped(after, op) for op in after.ops)
    # if the convolution has further readers, the norm comes after the concat
    after, _ = apply_rewrites(grouped_graph(4, 8, read_twice=True), [NAME])
    assert (after.by_name["conv"].kind, after.by_name["norm"].inputs) == ("concat", ("conv",))
    # only this rewrite is exact
    assert inexact_rewrites([NAME, "relu6=relu", "silu=relu"]) == ("relu6=relu", "silu=relu")
    assert apply_exact_rewrites(before, ["gelu=relu", NAME])[1] == (NAME,)


@pytest.mark.parametrize(("groups", "channels"), [(1, 8), (8, 8), (MAX_PARTS * 2, MAX_PARTS * 4)])
def test_dense_and_depthwise_convolutions_too_many_groups_and_taken_names_stay_unchanged(groups, channels):
    before, other = grouped_graph(groups, channels), grouped_graph(4, 8)
    taken = OpGraph.build("net", [*other.ops, Op("conv_slice1", "relu", ("act",))], "conv_slice1")
    assert [apply_rewrites(graph, [NAME]) for graph in (before, taken)] == [(before, ()), (taken, ())]


SQUEEZE_EXCITE = "squeeze_excite=none"


def ops(gate="sigmoid", image="conv", swapped=False):
    return [
        Op("x", "input", attrs={"shape": (1, 8, 6, 6)}),
        convolution("conv", "x", 8, bias=True),
        Op("mean", "global_avg_pool", ("conv",), {"keepdims": True}),
        convolution("fewer", "mean", 2, bias=True),
        Op("act", "relu", ("fewer",)),
        convolution("more", "act", 8, bias=True),
        Op("gate", gate, ("more",)),
        Op("scaled", "mul", ("gate", image) if swapped else (image, "gate")),
        convolution("last", "scaled", 4, bias=True),
    ]


@pytest.mark.parametrize("gate", ["sigmoid", "hard_sigmoid"])
@pytest.mark.parametrize("swapped", [False, True])
def test_squeeze_and_excitation_is_removed_with_all_its_operators(gate, swapped):
    before = OpGraph.build("net", ops(gate, swapped=swapped), "last")
    after, done = apply_rewrites(before, [SQUEEZE_EXCITE])
    assert (done, [op.name for op in after.ops]) == ((SQUEEZE_EXCITE,), ["x", "conv", "scaled", "last"])
    assert (after.by_name["scaled"].kind, after.by_name["scaled"].inputs) == ("identity", ("conv",))
    assert OpGraph.build("net", after.ops, "last") == after


@pytest.mark.parametrize(
    ("ops_before", "ends"),
    [
        # the mean of another image is no squeeze
        ([*ops()[:2], Op("aside", "relu", ("conv",)), *ops(image="aside")[2:]], ("last",)),
        # another operator reads an intermediate result of the factor
        *(([*ops(), Op("other", "tanh", (read,))], ("last", "other")) for read in ("gate", "mean", "fewer")),
        # a product of an image with itself, and a gate without a mean
        ([*ops()[:2], Op("square", "mul", ("conv", "conv"))], ("square",)),
        ([*ops()[:2], Op("gate", "sigmoid", ("conv",)), Op("swish", "mul", ("conv", "gate"))], ("swish",)),
    ],
)
def test_operators_similar_to_squeeze_and_excitation_stay_unchanged(ops_before, ends):
    graph = OpGraph.build("net", ops_before, ends)
    assert apply_rewrites(graph, [SQUEEZE_EXCITE]) == (graph, ())
