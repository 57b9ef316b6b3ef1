import pytest

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.slices import Channels
from stretch.planning.network.channels import channel_groups

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


def test_some_heads_read_their_queries_keys_and_values_and_have_their_rows_of_a_bias():
    graph = attending(bias=(4, 1, 5, 5), mask=(1, 2, 5, 5))
    part = graph.op_slice(graph.by_name["y"], Channels(3, 7))
    assert part.reads == (Channels(2, 6), Channels(2, 6), Channels(3, 9))
    assert part.computes == Channels(3, 9)
    assert (part.attrs["heads"], part.attrs["bias"], part.attrs["mask"]) == (2, (2, 1, 5, 5), (1, 2, 5, 5))


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
def test_what_does_not_fit_is_refused(widths, attrs, reason):
    with pytest.raises(StretchError, match=reason):
        attending(widths, **attrs)
