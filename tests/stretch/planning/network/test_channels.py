from predictors.graph import Op, OpGraph
from stretch.planning.network.channels import channel_groups


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
    found = groups_of(conv("a", "input", 16), conv("b", "a", 16), Op("sum", "add", ("a", "b")))
    assert found.pieces["a"] == found.pieces["b"] == found.pieces["sum"]


def test_depthwise_convolution_keeps_the_group_of_its_input():
    found = groups_of(conv("a", "input", 16), conv("dw", "a", 16, groups=16, kernel=3))
    assert found.pieces["dw"] == found.pieces["a"]


def test_depthwise_convolution_with_multiplier_has_more_channels_per_unit():
    found = groups_of(conv("a", "input", 16), conv("dw", "a", 32, groups=16))
    ((group, per),) = found.pieces["dw"]
    assert (group, 1) == found.pieces["a"][0]
    assert per == 2


def test_grouped_convolution_coarsens_units_to_whole_convolution_groups():
    found = groups_of(conv("a", "input", 24), conv("g", "a", 12, groups=4))
    ((group, before),) = found.pieces["a"]
    assert found.pieces["g"] == ((group, 3),)
    assert (found.units[group], before) == (4, 6)


def test_gate_over_pooled_vector_is_tied_to_what_it_scales():
    found = groups_of(
        conv("a", "input", 16),
        Op("pool", "global_avg_pool", ("a",), {"keepdims": True}),
        conv("fc", "pool", 16),
        Op("gate", "mul", ("a", "fc")),
    )
    assert found.pieces["fc"] == found.pieces["a"] == found.pieces["gate"]


def test_concatenation_puts_groups_side_by_side_and_slice_takes_one_out():
    found = groups_of(
        conv("a", "input", 8),
        conv("b", "input", 12),
        Op("cat", "concat", ("a", "b")),
        Op("cut", "slice", ("cat",), {"start": 8, "stop": 20}),
    )
    assert found.pieces["cat"] == found.pieces["a"] + found.pieces["b"]
    assert found.pieces["cut"] == found.pieces["b"]


def test_slice_through_the_middle_of_a_group_freezes_it():
    found = groups_of(conv("a", "input", 16), Op("cut", "slice", ("a",), {"start": 3, "stop": 9}))
    assert found.pieces["a"][0][0] in found.frozen
    assert found.pieces["cut"][0][0] in found.frozen


def test_addition_of_differently_divided_tensors_freezes_both():
    found = groups_of(
        conv("a", "input", 8),
        conv("b", "input", 8),
        Op("cat", "concat", ("a", "b")),
        conv("c", "input", 16),
        Op("sum", "add", ("cat", "c")),
    )
    assert all(group in found.frozen for name in ("a", "b", "c") for group, _ in found.pieces[name])
