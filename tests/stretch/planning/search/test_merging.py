"""Merged stages are more designs of the same network, with the costs they state."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretch.planning.cost.makespan import timeline
from stretch.planning.design.scale import scaled_graph
from stretch.planning.network.segments import split_segments
from stretch.planning.search.exact import search_exact
from stretch.planning.search.merging import merge_stages
from stretch.planning.search.rules import Rules
from tests.effort import examples
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bottleneck", "inverted"])
@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_merging_never_makes_the_fastest_design_slower(name, processors):
    graph, space, merged = spaces(name, processors, min_width=0.25)
    for low, high in ((0.97, 1.03), (0.8, 1.2), (1.1, 1.4)):
        alone = search_exact(space, round(low * graph.macs), round(high * graph.macs), 1)
        together = search_exact(merged, round(low * graph.macs), round(high * graph.macs), 1)
        assert together is not None
        assert alone is None or together.ms <= alone.ms + 1e-9
    assert merged.size_log10 > space.size_log10


@pytest.mark.slow
@given(st.data(), st.sampled_from(["bottleneck", "inverted"]), st.sampled_from(["project", "sum"]))
@settings(max_examples=examples(40))
def test_option_of_merged_stages_costs_what_the_timeline_of_its_design_says(data, name, join):
    graph, _, merged = spaces(name, ("cpu", "gpu", "dsp"), join=join)
    first = data.draw(st.sampled_from([i for i, options in enumerate(merged.options) if any(o.span > 1 for o in options)]))
    options = data.draw(st.sampled_from([o for o in merged.options[first] if o.span > 1]))
    index = data.draw(st.integers(0, len(options.macs) - 1))
    wholes = [merged.options[i][0].design(0, merged.costs) for i in range(len(merged.segments))]
    parts = [*wholes[:first], options.design(index, merged.costs), *wholes[first + options.span :]]
    design = as_design(graph, parts)
    run = timeline(graph, design, merged.costs)
    row = run.segments[first]
    assert row.design.join == join
    assert sum(b.macs for b in row.branches) == options.macs[index]
    assert sum(b.params for b in row.branches) == options.params[index]
    assert row.ms == pytest.approx(options.ms[merged.holders.index("cpu"), index])
    assert scaled_graph(graph, design).macs == run.macs


@pytest.mark.parametrize("processors", [("cpu", "dsp"), ("cpu", "gpu", "dsp")])
def test_predicted_makespan_of_merged_stages_is_that_of_the_design(processors):
    graph, _, merged = spaces("bottleneck", processors, min_width=0.25)
    found = search_exact(merged, round(0.97 * graph.macs), round(1.03 * graph.macs), 1)
    run = timeline(graph, as_design(graph, found.segments(merged.costs)), merged.costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert (run.macs, run.params) == (found.macs, found.params)
    assert any(options.span > 1 for options, _ in found.picks), "an exchange costs more than these stages: one of them must go"


@pytest.mark.slow
def test_every_run_of_stages_is_offered_and_stem_and_head_stay_out():
    _, space, merged = spaces("bottleneck")
    assert [s.name for s in space.segments] == ["stem", "s1", "s2", "s3", "head"]
    names = [[o.segment.name for o in options if o.span > 1] for options in merged.options]
    assert names == [[], ["s1_to_s2", "s1_to_s3"], ["s2_to_s3"], [], []]
    for first, options in enumerate(merged.options):
        for o in options:
            assert o.segment.end == space.segments[first + o.span - 1].end
            assert o.segment.graph.macs == sum(s.graph.macs for s in space.segments[first : first + o.span])


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


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("model", ["tiny_resnet", "tiny_mobilenet"])
def test_module_built_from_merged_stages_is_the_graph_that_was_predicted(captured, model):
    capture = pytest.importorskip("stretch.capture").capture
    build = pytest.importorskip("stretch.transform").build
    found = captured(model)
    space = make_space(found.graph, processors=("cpu", "gpu", "dsp"), min_width=0.25)
    merged = merge_stages(found.graph, space)
    runs = [(i, o) for i, options in enumerate(merged.options) for o in options if o.span > 1 and len(o.candidates) == 3]
    longest = max(runs, key=lambda run: run[1].span)
    wholes = [merged.options[i][0].design(0, merged.costs) for i in range(len(merged.segments))]
    for first, options in (runs[0], longest):
        index = len(options.macs) // 3
        parts = [*wholes[:first], options.design(index, merged.costs), *wholes[first + options.span :]]
        design = as_design(found.graph, parts)
        module = build(found, design)
        assert capture(module, found.graph.input.shape, found.graph.name).graph == scaled_graph(found.graph, design)


@pytest.mark.slow
def test_meeting_points_of_a_merged_design_cut_the_network_again():
    graph, _, merged = spaces("bottleneck", min_width=0.25)
    found = search_exact(merged, round(0.97 * graph.macs), round(1.03 * graph.macs), 1)
    ends = [s.end for s in found.segments(merged.costs)[1:-1]]
    again = split_segments(graph, ends)
    assert [(s.start, s.end) for s in again] == [(s.start, s.end) for s in found.segments(merged.costs)]
