"""Designs that divide channels are searched exactly, beside all other kinds."""

from dataclasses import replace
from functools import cache

import pytest

from predictors.errors import InfeasibleError
from predictors.joins import join_of
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.search.banded import BandedSpace, with_exact_kinds, without_stretched
from stretch.planning.search.channelled import MOST_REPEATED, ChannelWays
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


@cache
def mixed(processors=("cpu", "gpu"), kinds=EVERY):
    return space_of(WIDE, processors=processors, kinds=kinds)


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


@pytest.mark.slow
@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_every_option_in_channels_is_one_that_the_timeline_knows(processors):
    """Each, alone in a design of whole parts, costs the same on the timeline."""
    space = mixed(processors=processors, kinds=("channels",))
    wholes = [options[0] for options in space.options]
    seen = set()
    for at, options in enumerate(space.options):
        for ways in channelled(options):
            for index in range(0, len(ways.macs), 3):
                parts = [o.design(0, space.costs) for o in wholes]
                parts[at : at + 1] = ways.designs(index, space.costs)
                run = timeline(WIDE, as_design(WIDE, parts), space.costs)
                row, *tail = run.segments[at : at + len(ways.designs(index, space.costs))]
                assert row.ms + sum(each.ms for each in tail) == pytest.approx(ways.ms[space.holders.index("cpu"), index])
                assert row.communication_ms <= ways.exchange_ms[0, index] + 1e-9
                assert row.params == row.segment.graph.params == ways.params[index]
                assert 0 <= row.repeated_macs <= len(row.branches) * MOST_REPEATED * row.segment.graph.macs
                assert row.halo_macs == 0
                seen.add((ways.join, len(row.branches)))
    assert {("channels", 2), ("partial_sums", 2)} <= seen


@pytest.mark.slow
@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "dsp"), ("cpu", "gpu", "dsp")])
def test_timeline_of_a_mixed_design_says_what_the_search_said(processors):
    space = mixed(processors=processors, kinds=("rows", "channels", "graph"))
    found = search_exact(space, WIDE.macs, WIDE.macs, 4)
    run = timeline(WIDE, as_design(WIDE, found.segments(space.costs)), space.costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert run.macs - run.repeated_macs == found.macs == WIDE.macs
    assert run.params == found.params == WIDE.params


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


@pytest.mark.slow
def test_kind_more_is_never_slower():
    times = [search_exact(mixed(kinds=kinds), WIDE.macs, WIDE.macs, 1).ms for kinds in (("rows", "channels"), ("channels",), ("rows",))]
    assert times[0] <= min(times[1:]) + 1e-9


def test_linear_layers_are_parts_only_where_channels_are_planned():
    space = make_space(WIDE)
    ends = [[part.end for part in BandedSpace(WIDE, space, vectors=vectors).parts] for vectors in (False, True)]
    vectors = {name for name in ends[1] if len(WIDE.by_name[name].shape) == 2} - set(ends[0])
    assert len(vectors) == 2
    assert all(WIDE.by_name[name].kind == "relu" for name in vectors)


@pytest.mark.slow
def test_divisions_are_multiples_of_what_processors_compute_at_a_time():
    space = mixed(processors=("cpu", "dsp"), kinds=("channels",))
    ways = [ways for options in space.options for ways in channelled(options)]
    assert ways
    for each in ways:
        *others, last = each.candidates
        assert all((b.channels[1] - b.channels[0]) % space.costs.align(b.processor) == 0 for some in others for b in some)
        assert len({b.channels[1] for b in last}) == 1


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
