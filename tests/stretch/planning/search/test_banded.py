"""Designs that mix whole, stretched and banded segments are searched exactly."""

from functools import cache

import pytest

from predictors.errors import InfeasibleError
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.search.banded import MAX_HALO, BandedSpace, with_exact_kinds, without_stretched
from stretch.planning.search.exact import search_exact
from tests.predictors.networks import Net, efficientnet, small_resnet
from tests.stretch.planning.spaces import as_design, fastest_by_brute_force, make_space

TINY = small_resnet(96, blocks=(1, 1), mids=(64, 64))
GRAPH = small_resnet(64, blocks=(2, 2), mids=(32, 64))
GATED = efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 2)], 16, 64, 32, se=True, act="silu")


@cache
def mixed(name, device="mi9", processors=("cpu", "gpu"), stretched=True, **changes):
    graph = {"tiny": TINY, "graph": GRAPH, "gated": GATED}[name]
    space = make_space(graph, device, processors, **changes)
    return graph, with_exact_kinds(graph, PlanConfig(kinds=("stretch", "rows")), space if stretched else without_stretched(space))


def kinds(found):
    return {"rows" if o.banded else "stretch" if o.branched else "whole" for o, _ in found.picks}


@pytest.mark.representatives(7)
@pytest.mark.parametrize("n_meet", [0, 1, 2])
@pytest.mark.parametrize("device", ["mi9", "pixel6", "host"])
def test_exact_search_over_all_kinds_equals_brute_force(device, n_meet):
    graph, space = mixed("tiny", device, min_width=0.9, min_depth=1.0)
    low, high = round(0.9 * graph.macs), round(1.9 * graph.macs)
    expected, count = fastest_by_brute_force(space, low, high, n_meet)
    assert count > 1000
    found = search_exact(space, low, high, n_meet)
    assert found.ms == pytest.approx(expected)
    assert found.optimal


@pytest.mark.representatives(1)
@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_every_banded_option_is_one_that_the_timeline_knows(processors):
    """Each option of a run, alone in a design of whole parts, costs the same on the timeline."""
    graph, space = mixed("tiny", processors=processors, stretched=False)
    host = space.holders.index(space.costs.host)
    wholes = [options[0] for options in space.options]
    seen = 0
    for at, options in enumerate(space.options):
        for ways in (o for o in options if o.banded):
            for index in range(0, len(ways.macs), 5):
                parts = [o.design(0, space.costs) for o in wholes[:at]]
                parts += [ways.design(index, space.costs), *(o.design(0, space.costs) for o in wholes[at + ways.span :])]
                row = timeline(graph, as_design(graph, parts), space.costs).segments[at]
                assert row.ms == pytest.approx(ways.ms[host, index])
                assert row.communication_ms <= ways.exchange_ms[host, index] + 1e-9
                assert 0 <= row.halo_macs <= 2 * len(row.branches) * MAX_HALO * row.segment.graph.macs
                seen += 1
    assert seen >= 9


def test_band_on_the_processor_that_holds_its_input_copies_its_rows_where_they_are_not_together():
    graph, space = mixed("graph", stretched=False)
    gpu = space.holders.index("gpu")
    at, ways = next((i, o) for i, options in enumerate(space.options) for o in options if o.banded and i > 0)
    wholes = [next(o for o in options if o.processors == ("gpu",)) for options in space.options]
    parts = [o.design(0, space.costs) for o in wholes[:at]]
    parts += [ways.design(0, space.costs), *(o.design(0, space.costs) for o in wholes[at + ways.span :])]
    assert timeline(graph, as_design(graph, parts), space.costs).segments[at].ms == pytest.approx(ways.ms[gpu, 0])
    assert ways.candidates[1][0].cut_ms > 0


@pytest.mark.parametrize(("divided", "merged"), [(False, False), (False, True), (True, False)])
def test_bands_meet_only_where_they_may(divided, merged):
    space = make_space(GRAPH)
    banded = BandedSpace(GRAPH, space, divided=divided, merged=merged)
    ends = {stage.end for stage in space.segments}
    runs = [banded.parts[a : b + 1] for a, b in banded.runs]
    assert divided or all(part.end in ends for run in runs for part in run)
    assert merged or all(sum(part.end in ends for part in run) <= 1 for run in runs)


def test_network_with_nothing_to_split_is_refused_with_the_operator_that_mixes_rows():
    net = Net(1, 3, 16, 16)
    net.add("global_avg_pool", keepdims=False)
    net.add("linear", out_features=10, bias=True)
    graph = net.graph("pooled")
    with pytest.raises(InfeasibleError, match="`pooled` has no segment that can be split by rows: `global_avg_pool_1`"):
        with_exact_kinds(graph, PlanConfig(kinds=("rows",)), make_space(graph))


def inception():
    """Two blocks of parallel paths that meet side by side, and one whose paths are added."""
    net = Net(1, 3, 96, 96)
    net.conv(32, 3, 2)
    for _ in range(2):
        start = net.last
        ends = [net.conv(64, 3, source=net.conv(48, 1, source=start)), net.conv(64, 5, source=net.conv(32, 1, source=start))]
        net.add("concat", *ends, net.conv(32, 1, source=start))
    start = net.last
    net.add("add", net.conv(64, 3, source=start), net.conv(64, 5, source=start))
    net.conv(64, 3, 2)
    net.head(10)
    return net.graph("inception")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_own_paths_are_searched_beside_bands_and_copies(processors):
    graph = inception()
    space = make_space(graph, processors=processors, min_width=0.9)
    every = with_exact_kinds(graph, PlanConfig(kinds=("stretch", "rows", "graph")), space)
    alone = with_exact_kinds(graph, PlanConfig(kinds=("graph",)), without_stretched(space))
    assert any(o.join == "paths" for options in alone.options for o in options)
    assert not any(o.banded for options in alone.options for o in options)
    low, high = round(0.97 * graph.macs), round(1.03 * graph.macs)
    times = []
    for some in (every, alone):
        found = search_exact(some, low, high, 1)
        run = timeline(graph, as_design(graph, found.segments(some.costs)), some.costs)
        assert run.makespan_ms == pytest.approx(found.ms)
        assert run.macs - run.repeated_macs == found.macs
        assert run.params == found.params
        times.append(found.ms)
    assert times[0] <= times[1] + 1e-9
