"""Merged stages are more designs of the same network, with the costs they state."""

from functools import cache

import pytest

from stretch.planning.cost.makespan import timeline
from stretch.planning.search.exact import search_exact
from stretch.planning.search.merging import merge_stages
from stretch.planning.search.rules import Rules
from tests.predictors.networks import efficientnet, small_resnet
from tests.stretch.planning.spaces import as_design, fastest_by_brute_force, make_space

GRAPH = small_resnet(16, blocks=(2, 2, 2), mids=(8, 16, 32))
#: Inverted bottlenecks with gates, the blocks of the networks whose stages are short.
INVERTED = efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 2), (4, 5, 2, 40, 2)], 16, 64, 32, se=True, act="silu")


@cache
def spaces(name, processors=("cpu", "gpu"), **changes):
    graph = {"bottleneck": GRAPH, "inverted": INVERTED}[name]
    space = make_space(graph, processors=processors, **changes)
    return graph, space, merge_stages(graph, space)


@pytest.mark.parametrize("n_meet", [0, 1, 2])
@pytest.mark.parametrize("device", ["mi9", "pixel6"])
def test_exact_search_over_merged_stages_equals_brute_force(device, n_meet):
    graph = small_resnet(blocks=(2, 2))
    space = merge_stages(graph, make_space(graph, device, min_width=0.85))
    low, high = round(0.9 * graph.macs), round(1.6 * graph.macs)
    found = search_exact(space, low, high, n_meet)
    best, count = fastest_by_brute_force(space, low, high, n_meet)
    assert found.ms == pytest.approx(best)
    assert found.optimal
    assert found.n_meet >= n_meet
    assert 100 < count <= round(10**space.size_log10)


@pytest.mark.parametrize("processors", [("cpu", "dsp"), ("cpu", "gpu", "dsp")])
def test_predicted_makespan_of_merged_stages_is_that_of_the_design(processors):
    graph, _, merged = spaces("bottleneck", processors, min_width=0.25)
    found = search_exact(merged, round(0.97 * graph.macs), round(1.03 * graph.macs), 1)
    run = timeline(graph, as_design(graph, found.segments(merged.costs)), merged.costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert (run.macs, run.params) == (found.macs, found.params)
    assert any(options.span > 1 for options, _ in found.picks), "an exchange costs more than these stages: one of them must go"


def test_blocks_of_merged_stages_are_dropped_evenly():
    _, _, merged = spaces("bottleneck")
    options = next(o for o in merged.options[1] if o.segment.name == "s1_to_s3")
    assert options.segment.depth == 6
    assert sorted({b.depth for b in options.candidates[0]}) == [3, 4, 5, 6]
    widths = [b.width for b in options.candidates[0]]
    assert min(widths) >= 0.5 * options.segment.width
    assert max(widths) == options.segment.width


def most_branched(space, at=0):
    """Most branched segments in any division of the stages from `at` on, by trying every one."""
    if at == len(space.segments):
        return 0
    return max((len(o.candidates) > 1 and bool(o.allowed.any())) + most_branched(space, at + o.span) for o in space.options[at])


@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_most_meetings_counts_segments_that_can_branch_in_one_design(processors):
    _, space, merged = spaces("bottleneck", processors, min_width=0.25)
    assert space.most_meetings == most_branched(space)
    assert merged.most_meetings == most_branched(merged) >= space.most_meetings
    nothing = merged.under(Rules({"alpha": 1e-6}))
    assert nothing.most_meetings == 0
