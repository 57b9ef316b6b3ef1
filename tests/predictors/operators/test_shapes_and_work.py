"""Shapes, work and weights of operators, with torch as the oracle for operators that torch has."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.channels import Narrowed
from predictors.devices import KERNEL_KINDS
from predictors.errors import StretchError
from predictors.fusion import fuse
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.operators.opaque import PRODUCTS
from stretch.planning.network.segments import channel_groups
from tests.predictors.networks import Net, convolution

ATTRS = convolution("y", "x", 12, 3).attrs


@pytest.mark.parametrize(("groups", "expected"), [(1, 1), (4, 2), (8, 4)])
def test_scaled_convolution_keeps_the_size_of_its_groups(groups, expected):
    scaled = kind_of("conv").scaled({**ATTRS, "groups": groups}, Narrowed(before=8, after=4, out=6, position=lambda channel: channel))
    assert (scaled["out_channels"], scaled["groups"]) == (6, expected)
    assert {**scaled, "out_channels": 12, "groups": groups} == {**ATTRS, "groups": groups}


@pytest.mark.torch
@given(st.lists(st.tuples(st.sampled_from([1, 3]), st.sampled_from([1, 4])), min_size=2, max_size=2))
def test_addition_broadcasts_as_torch_does(sizes):
    import torch

    shapes = [(1, a, b, 1) for a, b in sizes]
    assert kind_of("add").shape(shapes, {}) == torch.broadcast_shapes(*shapes)


IMAGE, WINDOW = (1, 6, 4, 8), {"kernel": (2, 2), "stride": (2, 2), "padding": (0,) * 4}


@pytest.mark.parametrize(
    ("kind", "ins", "attrs", "reason"),
    [
        ("max_pool", [(1, 6)], WINDOW, "N×C×H×W"),
        ("global_avg_pool", [(1, 6)], {"keepdims": True}, "N×C×H×W"),
        ("add", [(1, 3, 4, 4), (1, 2, 4, 4)], {}, "differ"),
        ("mul", [(1, 3), (1, 3, 1, 1)], {}, "ranks"),
        ("concat", [(1, 3, 4, 4), (1, 5, 4, 2)], {}, "channels"),
        *[("slice", [IMAGE], {"start": start, "stop": stop}, "are not in") for start, stop in ((-1, 3), (3, 3), (2, 7))],
        *[("slice_rows", [(1, 3, 8, 4)], {"start": start, "stop": stop}, "are not in") for start, stop in ((-1, 3), (3, 3), (2, 9))],
        ("concat_rows", [(1, 3, 3, 4), (1, 4, 5, 4)], {}, "rows"),
        ("channel_shuffle", [(1, 6, 4, 4)], {"groups": 4}, "4 groups"),
        ("unflatten", [(1, 6, 1, 1)], {}, "N×C tensor"),
        ("view", [(1, 6)], {"shape": (1, 9)}, "cannot be seen as"),
        ("rearrange", [IMAGE], {"split": (4, 5), "order": (0, 1), "pixels": (4, 8)}, "are neither"),
        ("rearrange", [IMAGE], {"split": (4, 8), "order": (0, 0), "pixels": (4, 8)}, "is no order"),
        ("rearrange", [IMAGE], {"split": (4, 8), "order": (1, 0), "pixels": (4, 7)}, "are neither"),
        ("roll", [IMAGE], {"shift": (4, 0)}, "is beyond"),
        ("subsample", [IMAGE], {"start": (0, 0), "stop": (5, 8), "step": (1, 1)}, "are not among"),
        ("subsample", [IMAGE], {"start": (0, 0), "stop": (4, 8), "step": (0, 1)}, "are not among"),
        ("channels_first", [(6, 5, 8)], {"rows": 4}, "is no 4 rows"),
    ],
)
def test_inputs_and_attributes_that_do_not_fit_are_refused(kind, ins, attrs, reason):
    with pytest.raises(ValueError, match=reason):
        kind_of(kind).shape(ins, attrs)


STATED = {"shape": (1, 7, 12), "kernel": "linear", "variant": "einsum", "in_channels": 4, "out_channels": 12, "groups": 1, "taps": 1}
STATED |= {"pixels": 7, "weights": 48}


def graph(**changes):
    net = Net(1, 7, 4)
    net.add("opaque", **STATED | changes)
    net.add("view", shape=(1, 84))
    return net.graph("g")


def test_stated_work_is_one_kernel_and_a_view_needs_no_kernel():
    (kernel,) = fuse(graph(), "tflite_cpu")
    assert (kernel.ops, kernel.macs) == (("opaque_1",), 4 * 12 * 7)
    assert (kernel.cost.kind, kernel.cost.reads, kernel.cost.writes, kernel.cost.weights) == ("linear", 28, 84, 48)


@given(
    st.sampled_from(KERNEL_KINDS),
    st.tuples(*[st.integers(1, 50)] * 5),
    st.integers(0, 1000),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_graph_with_any_stated_operator_survives_json(kernel, work, weights, shape):
    named = dict(zip(("in_channels", "out_channels", "groups", "taps", "pixels"), work, strict=True))
    net = Net(1, 3)
    net.add("opaque", **STATED | named | {"kernel": kernel, "weights": weights, "shape": tuple(shape)})
    built = net.graph("g")
    assert OpGraph.from_json(built.to_json()) == built
    assert (built.macs, built.params) == (prod(work) if kernel in PRODUCTS else 0, weights)


def attention_graph(widths=(8, 8, 12), **attrs):
    """Queries, keys and values with `widths` channels and four heads, attention and a projection."""
    parts = [convolution(name, "x", width) for name, width in zip("qkv", widths, strict=True)]
    heads = Op("y", "attention", ("q", "k", "v"), {"heads": 4, "keys": 5, "scale": 0.5, **attrs})
    return OpGraph.build("net", [Op("x", "input", attrs={"shape": (1, 6, 2, 5)}), *parts, heads, convolution("out", "y", 6)], "out")


def test_attention_head_is_one_unit_of_queries_keys_and_values_and_its_work_is_two_products():
    graph = attention_graph()
    groups = channel_groups(graph)
    ((unit, per),) = groups.pieces["y"]
    assert (groups.units[unit], per) == (4, 3)
    assert groups.pieces["q"] == groups.pieces["k"] == ((unit, 2),)
    assert unit not in groups.frozen
    assert graph.op_macs(graph.by_name["y"]) == 2 * 5 * 5 * (8 + 12)
    # channels of tokens that become pixels are frozen
    tokens = Net(2, 5, 8)
    groups = channel_groups(OpGraph.build("net", [tokens.ops[0], Op("y", "channels_first", ("input",), {"rows": 2})], "y"))
    assert groups.pieces["y"][0][0] in groups.frozen


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (graph, {"kernel": "magic"}, "conv1x1"),
        (graph, {"taps": 0}, "`taps` is 0"),
        (graph, {"pixels": 1 << 60}, "`pixels`"),
        (graph, {"weights": -1}, "`weights` is -1"),
        (graph, {"groups": "two"}, "whole number"),
        (graph, {"variant": 3}, "name"),
        (graph, {"shape": (1, 0, 12)}, "empty"),
        (attention_graph, {"widths": (8, 12, 12)}, "heads do not divide"),
        (attention_graph, {"widths": (6, 6, 12)}, "heads do not divide"),
        (attention_graph, {"keys": 4}, "4 keys"),
        (attention_graph, {"bias": (3, 1, 5, 5)}, "bias"),
        (attention_graph, {"mask": (1, 5, 5)}, "mask"),
    ],
)
def test_inconsistent_statement_of_an_operator_is_refused(make, changes, message):
    with pytest.raises(StretchError, match=message):
        make(**changes)


def test_norm_over_the_image_keeps_channels_and_the_mean_over_channels_freezes_none():
    net = Net(1, 6, 2, 5)
    net.add("div", (length := net.add("global_l2_norm", keepdims=True)), net.add("channel_mean"))
    graph = net.graph("net")
    assert [op.shape for op in graph.ops[1:]] == [(1, 6, 1, 1), (1, 1, 1, 1), (1, 6, 1, 1)]
    groups = channel_groups(graph)
    assert groups.pieces[graph.output] == groups.pieces[length] == groups.pieces["input"]
    assert groups.input_group not in groups.frozen
