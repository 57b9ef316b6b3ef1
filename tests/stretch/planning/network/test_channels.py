"""Groups of channels that change together, and where a segment can be divided by channels."""

import pytest

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.slices import Channels
from stretch.planning.divisions.channels import divided_tensor, find_hidden, needed_channels
from stretch.planning.network.segments import channel_groups
from tests.predictors.networks import Net


def conv(name, source, out, groups=1, kernel=1):
    pad = kernel // 2
    attrs = {
        "out_channels": out,
        "kernel": (kernel, kernel),
        "stride": (1, 1),
        "padding": (pad,) * 4,
        "dilation": (1, 1),
        "groups": groups,
        "bias": False,
    }
    return Op(name, "conv", (source,), attrs)


def groups_of(*ops, output=None, channels=8):
    graph = OpGraph.build("net", [Op("input", "input", attrs={"shape": (1, channels, 6, 6)}), *ops], output or ops[-1].name)
    return channel_groups(graph)


def test_addition_ties_the_channels_of_both_sides():
    groups = groups_of(conv("a", "input", 16), conv("b", "a", 16), Op("sum", "add", ("a", "b")))
    assert groups.pieces["a"] == groups.pieces["b"] == groups.pieces["sum"]


def test_depthwise_convolution_keeps_the_group_of_its_input():
    groups = groups_of(conv("a", "input", 16), conv("dw", "a", 16, groups=16, kernel=3))
    assert groups.pieces["dw"] == groups.pieces["a"]


def test_depthwise_convolution_with_multiplier_has_more_channels_per_unit():
    groups = groups_of(conv("a", "input", 16), conv("dw", "a", 32, groups=16))
    ((group, per),) = groups.pieces["dw"]
    assert (group, 1) == groups.pieces["a"][0]
    assert per == 2


def test_grouped_convolution_coarsens_units_to_whole_convolution_groups():
    groups = groups_of(conv("a", "input", 24), conv("g", "a", 12, groups=4))
    ((group, before),) = groups.pieces["a"]
    assert groups.pieces["g"] == ((group, 3),)
    assert (groups.units[group], before) == (4, 6)


def test_gate_over_pooled_vector_is_tied_to_what_it_scales():
    groups = groups_of(
        conv("a", "input", 16),
        Op("pool", "global_avg_pool", ("a",), {"keepdims": True}),
        conv("fc", "pool", 16),
        Op("gate", "mul", ("a", "fc")),
    )
    assert groups.pieces["fc"] == groups.pieces["a"] == groups.pieces["gate"]


def test_concatenation_puts_groups_side_by_side_and_slice_takes_one_out():
    groups = groups_of(
        conv("a", "input", 8),
        conv("b", "input", 12),
        Op("cat", "concat", ("a", "b")),
        Op("cut", "slice", ("cat",), {"start": 8, "stop": 20}),
    )
    assert groups.pieces["cat"] == groups.pieces["a"] + groups.pieces["b"]
    assert groups.pieces["cut"] == groups.pieces["b"]


def test_slice_through_the_middle_of_a_group_freezes_it():
    groups = groups_of(conv("a", "input", 16), Op("cut", "slice", ("a",), {"start": 3, "stop": 9}))
    assert groups.pieces["a"][0][0] in groups.frozen
    assert groups.pieces["cut"][0][0] in groups.frozen


def test_addition_of_differently_divided_tensors_freezes_both():
    groups = groups_of(
        conv("a", "input", 8),
        conv("b", "input", 8),
        Op("cat", "concat", ("a", "b")),
        conv("c", "input", 16),
        Op("sum", "add", ("cat", "c")),
    )
    assert all(group in groups.frozen for name in ("a", "b", "c") for group, _ in groups.pieces[name])


def inverted(*, gate=False, groups=24, relu=False, skip=True):
    net = Net(1, 8, 10, 10)
    net.conv(24)
    middle = net.conv(24, 3, groups=groups)
    if gate:
        net.add("global_avg_pool", keepdims=True)
        net.conv(6)
        net.conv(24, act="sigmoid")
        net.add("mul", middle, net.last)
    net.conv(8, act=None)
    if skip:
        net.add("add", "input", net.last)
    if relu:
        net.add("relu")
    return net.graph("block")


def test_hidden_tensor_of_an_inverted_residual_is_what_its_projection_reads():
    graph = inverted()
    hidden = find_hidden(graph)
    assert graph.by_name[hidden.tensor].shape[1] == 24
    assert graph.by_name[hidden.projection].shape[1] == 8
    assert [graph.by_name[name].kind for name in hidden.tail] == ["batch_norm", "add"]
    assert divided_tensor(graph, hidden=True) == hidden.tensor


def test_of_several_terms_the_one_that_takes_most_work_is_divided():
    net = Net(1, 8, 10, 10)
    body = net.conv(8, 3, act=None, source=net.conv(32, 3))
    graph_of = net.add("add", net.conv(8, act=None, source="input"), body)
    graph = net.graph("block")
    assert graph_of == graph.output
    assert graph.by_name[find_hidden(graph).tensor].shape[1] == 32


@pytest.mark.parametrize(
    ("graph", "hidden", "reason"),
    [
        (inverted(relu=True), True, r"`relu_\d+` \(relu\) needs the whole sum"),
        (inverted(gate=True), True, r"`conv_8` \(conv\) mixes the channels of `mul_\d+`"),
        (inverted(gate=True, skip=False), True, "mixes the channels"),
        (Net(1, 8, 4, 4).graph("nothing"), True, "without a convolution or linear layer"),
    ],
)
def test_what_is_in_the_way_of_a_division_is_named(graph, hidden, reason):
    with pytest.raises(StretchError, match=reason) as caught:
        divided_tensor(graph, hidden=hidden)
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["softmax", "layer_norm", "channel_shuffle"])
def test_operator_that_mixes_the_output_is_named(kind):
    net = Net(1, 8, 10, 10)
    net.conv(12)
    name = net.add(kind, **{"layer_norm": {"eps": 1e-6, "affine": True}, "channel_shuffle": {"groups": 3}}.get(kind, {}))
    with pytest.raises(StretchError, match=f"`{name}` \\({kind}\\) mixes the channels of `{name}`"):
        divided_tensor(net.graph("mixed"), hidden=False)


def test_gate_at_the_end_is_named():
    net = Net(1, 8, 10, 10)
    start = net.conv(12)
    net.add("global_avg_pool", keepdims=True)
    net.conv(12, act="sigmoid")
    net.add("mul", start, net.last)
    with pytest.raises(StretchError, match=r"`conv_5` \(conv\) mixes the channels of `mul_\d+`"):
        divided_tensor(net.graph("gated"), hidden=False)


def test_sum_that_is_read_elsewhere_is_not_divided():
    net = Net(1, 8, 10, 10)
    total = net.conv(8, act=None)
    net.add("add", total, net.add("relu", total))
    with pytest.raises(StretchError, match="is read before its sum is complete"):
        find_hidden(net.graph("twice"))
    net = Net(1, 8, 10, 10)
    total = net.conv(8, act=None)
    net.add("add", total, total)
    with pytest.raises(StretchError, match="is read before its sum is complete"):
        find_hidden(net.graph("doubled"))


def test_what_a_dense_convolution_reads_is_needed_whole():
    graph = inverted()
    need = needed_channels(graph, {graph.output: Channels(2, 5)})
    hidden = find_hidden(graph)
    assert need[hidden.tensor] == Channels(0, 24)
    assert need[hidden.projection] == Channels(2, 5)
    assert need["input"] == Channels(0, 8)
