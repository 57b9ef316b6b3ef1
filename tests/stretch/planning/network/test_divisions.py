"""What may be divided by channels, and what is in the way."""

import pytest

from predictors.errors import StretchError
from predictors.slices import Channels
from stretch.planning.network.divisions import channel_step, divided_tensor, find_hidden, is_between_groups, needed_channels
from tests.predictors.networks import Net


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


def test_linear_layers_have_a_hidden_vector():
    net = Net(1, 8, 4, 4)
    net.add("flatten")
    net.add("linear", out_features=30, bias=True)
    net.add("gelu")
    net.add("linear", out_features=5, bias=True)
    graph = net.graph("ffn")
    assert find_hidden(graph).tensor == "gelu_3"
    assert (channel_step(graph, "gelu_3"), channel_step(graph, "flatten_1")) == (1, 16)


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


def test_groups_stay_together():
    graph = inverted(groups=4)
    tensor = divided_tensor(graph, hidden=True)
    assert channel_step(graph, tensor) == 6
    assert [n for n in range(1, 24) if is_between_groups(graph, tensor, Channels(0, n))] == [6, 12, 18]


def test_what_a_dense_convolution_reads_is_needed_whole():
    graph = inverted()
    need = needed_channels(graph, {graph.output: Channels(2, 5)})
    hidden = find_hidden(graph)
    assert need[hidden.tensor] == Channels(0, 24)
    assert need[hidden.projection] == Channels(2, 5)
    assert need["input"] == Channels(0, 8)


def test_channels_of_an_operator_that_only_states_its_shape_are_not_divided():
    net = Net(1, 8, 4, 4)
    net.conv(24)
    stated = {"kernel": "elementwise", "in_channels": 1, "out_channels": 1, "groups": 1, "taps": 1, "pixels": 1, "weights": 0}
    net.add("opaque", **stated, variant="softmax", shape=(1, 24, 4, 4))
    net.conv(8)
    for hidden in (False, True):
        with pytest.raises(StretchError, match=r"softmax.*only states the shape"):
            divided_tensor(net.graph("block"), hidden=hidden)
