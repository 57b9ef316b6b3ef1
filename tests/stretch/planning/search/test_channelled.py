"""Designs that divide channels are searched exactly, beside all other kinds."""

from dataclasses import replace

import pytest

from predictors.errors import InfeasibleError
from predictors.joins import join_of
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.search.banded import BandedSpace, with_exact_kinds, without_stretched
from stretch.planning.search.channelled import ChannelWays
from stretch.planning.search.exact import search_exact
from tests.predictors.networks import Net, efficientnet
from tests.stretch.planning.spaces import as_design, fastest_by_brute_force, make_space

EVERY = ("stretch", "rows", "channels", "graph")


def small_network():
    """One of each: an inverted residual, paths, and linear layers."""
    net = Net(1, 16, 8, 8)
    net.conv(512, act="relu6")
    net.conv(512, 3, groups=512, act="relu6")
    net.add("add", "input", net.conv(16, act=None))
    start = net.last
    net.add("concat", net.conv(128, 3, source=start), net.conv(128, 3, source=start))
    net.add("flatten")
    net.add("linear", out_features=256, bias=True)
    net.add("relu")
    net.add("linear", out_features=10, bias=True)
    return net.graph("small")


def wide_network(size=24, blocks=2):
    """Inverted residuals of many hidden channels, convolutions large enough to be divided, paths, and linear layers."""
    net = Net(1, 3, size, size)
    net.conv(64, 3, 2)
    for _ in range(blocks):
        start = net.last
        net.conv(768, act="relu6")
        net.conv(768, 3, groups=768, act="relu6")
        net.add("add", start, net.conv(64, act=None))
    start = net.last
    net.add("concat", net.conv(256, 3, source=start), net.conv(256, 3, source=start))
    net.add("max_pool", kernel=(2, 2), stride=(2, 2), padding=(0, 0, 0, 0), ceil_mode=False)
    net.conv(512, 3)
    net.add("flatten")
    net.add("linear", out_features=1024, bias=True)
    net.add("relu")
    net.add("linear", out_features=512, bias=True)
    net.add("relu")
    net.add("linear", out_features=10, bias=True)
    return net.graph("wide")


WIDE = wide_network()
GATED = efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 2)], 16, 64, 32, se=True, act="silu")


def space_of(graph, device="mi9", processors=("cpu", "gpu"), kinds=EVERY):
    space = make_space(graph, device, processors, min_width=0.9, min_depth=1.0)
    return with_exact_kinds(graph, PlanConfig(kinds=kinds), space if "stretch" in kinds else without_stretched(space))


def channelled(options):
    return [o for o in options if join_of(o.join).channels]


@pytest.mark.parametrize(("device", "n_meet"), [("mi9", 0), ("mi9", 2), ("host", 1)])
def test_exact_search_over_all_kinds_equals_brute_force(device, n_meet):
    graph = small_network()
    space = space_of(graph, device)
    found = {o.join for options in space.options for o in options}
    assert {"channels", "partial_sums", "rows", "paths", "project"} <= found
    # few enough to follow all of their sequences
    space.options = [[thinned(o) for o in options] for options in space.options]
    low, high = round(0.9 * graph.macs), round(1.9 * graph.macs)
    expected, count = fastest_by_brute_force(space, low, high, n_meet)
    assert count > 500
    answer = search_exact(space, low, high, n_meet)
    assert answer.ms == pytest.approx(expected)
    assert answer.optimal


def thinned(ways):
    """Of the ways with one sequence of processors, the fastest from the first holder and the slowest."""
    allowed = ways.allowed.copy()
    order = ways.ms[0].argsort(kind="stable")
    allowed[:, order[1:-1]] = False
    return replace(ways, allowed=allowed)


def test_sum_before_a_rectifier_is_followed_by_it_on_the_host():
    """A residual block ends with a ReLU, which needs the whole sum."""
    net = Net(1, 64, 14, 14)
    for _ in range(2):
        start = net.last
        net.conv(512, 3)
        net.add("add", start, net.conv(64, 3, act=None))
        net.add("relu")
    net.head(10)
    graph = net.graph("basic")
    space = space_of(graph, kinds=("channels",))
    sums = [ways for options in space.options for ways in channelled(options) if ways.join == "partial_sums" and ways.tail]
    assert sums
    for ways in sums:
        assert graph.by_name[ways.segment.end].kind == "add"
        assert [op.kind for op in ways.tail.graph.ops] == ["input", "relu"]
    found = search_exact(space, graph.macs, graph.macs, 1)
    segments = found.segments(space.costs)
    assert len(segments) > len(found.picks)
    run = timeline(graph, as_design(graph, segments), space.costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert run.macs - run.repeated_macs == graph.macs
    gone = space_of(graph, processors=("gpu", "dsp"), kinds=("graph", "rows", "channels"))
    assert not any(ways.tail for options in gone.options for ways in options)


def test_linear_layers_are_parts_only_where_channels_are_planned():
    space = make_space(WIDE)
    ends = [[part.end for part in BandedSpace(WIDE, space, vectors=vectors).parts] for vectors in (False, True)]
    vectors = {name for name in ends[1] if len(WIDE.by_name[name].shape) == 2} - set(ends[0])
    assert len(vectors) == 2
    assert all(WIDE.by_name[name].kind == "relu" for name in vectors)


def test_parts_that_are_built_alike_are_costed_once():
    space = make_space(WIDE)
    ways = ChannelWays(WIDE, space)
    parts = [part for part in BandedSpace(WIDE, space).parts if any(op.attrs.get("groups") == 768 for op in part.graph.ops)]
    assert len(parts) == 2
    first, second = (ways.of(part, [5.0, 5.0]) for part in parts)
    assert [id(a.candidates) for a in first] == [id(b.candidates) for b in second]
    assert first
    assert [each.segment for each in second] == [parts[1]] * len(second)


def test_squeeze_and_excitation_keeps_a_block_in_one_piece():
    space = make_space(GATED)
    ways = ChannelWays(GATED, space)
    parts = BandedSpace(GATED, space).parts
    gated = [part for part in parts if any(op.kind == "sigmoid" and op.shape[2:] == (1, 1) for op in part.graph.ops)]
    assert gated
    assert not any(each.join == "partial_sums" for part in gated for each in ways.of(part, [100.0, 100.0]))


def test_network_with_nothing_to_divide_is_refused():
    net = Net(1, 3, 16, 16)
    net.add("max_pool", kernel=(2, 2), stride=(2, 2), padding=(0, 0, 0, 0), ceil_mode=False)
    net.add("softmax")
    graph = net.graph("pooled")
    with pytest.raises(InfeasibleError, match="`pooled` has no segment whose division by channels might pay"):
        with_exact_kinds(graph, PlanConfig(kinds=("channels",)), make_space(graph))
