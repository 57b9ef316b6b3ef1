"""Shapes, work and weights of operators, with torch as the oracle where it has them."""

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

ATTRS = {"out_channels": 12, "kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "bias": False}


@pytest.mark.parametrize(("groups", "expected"), [(1, 1), (4, 2), (8, 4)])
def test_scaled_convolution_keeps_the_size_of_its_groups(groups, expected):
    scaled = kind_of("conv").scaled(ATTRS | {"groups": groups}, Narrowed(before=8, after=4, out=6, position=lambda channel: channel))
    assert (scaled["out_channels"], scaled["groups"]) == (6, expected)
    assert {**scaled, "out_channels": 12, "groups": groups} == ATTRS | {"groups": groups}


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
        ("concat", [(1, 3, 4, 4), (1, 5, 4, 2)], {}, "more than channels"),
        *[("slice", [IMAGE], {"start": start, "stop": stop}, "are not in") for start, stop in ((-1, 3), (3, 3), (2, 7))],
        *[("slice_rows", [(1, 3, 8, 4)], {"start": start, "stop": stop}, "are not in") for start, stop in ((-1, 3), (3, 3), (2, 9))],
        ("concat_rows", [(1, 3, 3, 4), (1, 4, 5, 4)], {}, "differ in more than rows"),
        ("channel_shuffle", [(1, 6, 4, 4)], {"groups": 4}, "4 groups do not divide 6 channels"),
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
def test_what_does_not_fit_is_refused(kind, ins, attrs, reason):
    with pytest.raises(ValueError, match=reason):
        kind_of(kind).shape(ins, attrs)


def test_channels_of_tokens_as_pixels_are_held_fast():
    graph = OpGraph.build("net", [Op("x", "input", attrs={"shape": (2, 5, 8)}), Op("y", "channels_first", ("x",), {"rows": 2})], "y")
    groups = channel_groups(graph)
    assert groups.pieces["y"][0][0] in groups.frozen


STATED = {
    "shape": (1, 7, 12),
    "kernel": "linear",
    "variant": "einsum",
    "in_channels": 4,
    "out_channels": 12,
    "groups": 1,
    "taps": 1,
    "pixels": 7,
    "weights": 48,
}


def graph(**changes):
    ops = [
        Op("x", "input", attrs={"shape": (1, 7, 4)}),
        Op("y", "opaque", ("x",), STATED | changes),
        Op("z", "view", ("y",), {"shape": (1, 84)}),
    ]
    return OpGraph.build("g", ops, "z")


def test_stated_work_is_the_kernel_and_the_view_launches_none():
    (kernel,) = fuse(graph(), "tflite_cpu")
    assert kernel.ops == ("y",)
    assert kernel.macs == 4 * 12 * 7
    assert (kernel.cost.kind, kernel.cost.reads, kernel.cost.writes, kernel.cost.weights) == ("linear", 28, 84, 48)


@given(
    st.sampled_from(KERNEL_KINDS),
    st.tuples(*[st.integers(1, 50)] * 5),
    st.integers(0, 1000),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_graph_with_any_stated_operator_survives_json(kernel, work, weights, shape):
    named = dict(zip(("in_channels", "out_channels", "groups", "taps", "pixels"), work, strict=True))
    ops = [
        Op("x", "input", attrs={"shape": (1, 3)}),
        Op("y", "opaque", ("x",), STATED | named | {"kernel": kernel, "weights": weights, "shape": tuple(shape)}),
    ]
    built = OpGraph.build("g", ops, "y")
    assert OpGraph.from_json(built.to_json()) == built
    assert built.macs == (prod(work) if kernel in PRODUCTS else 0)
    assert built.params == weights


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel": "magic"}, "none of conv1x1"),
        ({"taps": 0}, "`taps` is 0"),
        ({"pixels": 1 << 60}, "`pixels` is"),
        ({"weights": -1}, "`weights` is -1"),
        ({"groups": "two"}, "not a whole number"),
        ({"variant": 3}, "not a name"),
        ({"shape": (1, 0, 12)}, "empty output shape"),
    ],
)
def test_statement_that_makes_no_sense_is_refused(changes, words):
    with pytest.raises(StretchError, match=words):
        graph(**changes)


CONV = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1, "bias": False}


def attending(widths=(8, 8, 12), **attrs):
    """Queries, keys and values of so many channels, four heads of each, attention and a projection."""
    parts = [Op(name, "conv", ("x",), {**CONV, "out_channels": width}) for name, width in zip("qkv", widths, strict=True)]
    return OpGraph.build(
        "net",
        [
            Op("x", "input", attrs={"shape": (1, 6, 2, 5)}),
            *parts,
            Op("y", "attention", ("q", "k", "v"), {"heads": 4, "keys": 5, "scale": 0.5, **attrs}),
            Op("out", "conv", ("y",), {**CONV, "out_channels": 6}),
        ],
        "out",
    )


def test_head_is_a_unit_of_queries_keys_and_values():
    groups = channel_groups(attending())
    ((unit, per),) = groups.pieces["y"]
    assert (groups.units[unit], per) == (4, 3)
    assert groups.pieces["q"] == groups.pieces["k"] == ((unit, 2),)
    assert unit not in groups.frozen


def test_work_is_that_of_two_products():
    graph = attending()
    assert graph.op_macs(graph.by_name["y"]) == 2 * 5 * 5 * (8 + 12)


@pytest.mark.parametrize(
    ("widths", "attrs", "reason"),
    [
        ((8, 12, 12), {}, "heads do not divide"),
        ((6, 6, 12), {}, "heads do not divide"),
        ((8, 8, 12), {"keys": 4}, "states 4 keys"),
        ((8, 8, 12), {"bias": (3, 1, 5, 5)}, "bias"),
        ((8, 8, 12), {"mask": (1, 5, 5)}, "mask"),
    ],
)
def test_attention_whose_heads_keys_or_bias_do_not_fit_is_refused(widths, attrs, reason):
    with pytest.raises(StretchError, match=reason):
        attending(widths, **attrs)


def test_length_of_channels_keeps_them_and_their_mean_holds_none_of_them():
    graph = OpGraph.build(
        "net",
        [
            Op("x", "input", attrs={"shape": (1, 6, 2, 5)}),
            Op("length", "global_l2_norm", ("x",), {"keepdims": True}),
            Op("mean", "channel_mean", ("length",)),
            Op("y", "div", ("length", "mean")),
        ],
        "y",
    )
    assert [graph.by_name[name].shape for name in ("length", "mean", "y")] == [(1, 6, 1, 1), (1, 1, 1, 1), (1, 6, 1, 1)]
    groups = channel_groups(graph)
    assert groups.pieces["y"] == groups.pieces["x"]
    assert groups.input_group not in groups.frozen
