"""The exact search against brute force, over stages that are merged or cut and with concatenated joins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.network.segments import split_segments
from stretch.planning.search.exact import LATENCY, Measure, search_concat, search_exact
from stretch.planning.search.parts import merge_stages
from stretch.planning.search.space import DesignSpace, Rules, Totals
from tests.predictors.networks import resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.designs import whole
from tests.stretch.planning.spaces import as_design, every_design, losses, make_space

GRAPH = small_resnet(blocks=(2, 2))


@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_design_that_must_use_a_processor_is_the_fastest_that_uses_it(processors):
    space = make_space(GRAPH, processors=processors, min_width=0.85)
    low, high = round(0.9 * GRAPH.macs), round(1.6 * GRAPH.macs)
    for name in processors:
        forced = []
        for at in range(len(space.options)):
            one = space.replace_options(
                [[o for o in group if name in o.processors] if i == at else group for i, group in enumerate(space.options)]
            )
            search_result = search_exact(one, Totals(low, high, 1)) if one.options[at] else None
            forced.append(np.inf if search_result is None else search_result.ms)
        search_result = search_exact(space, Totals(low, high, 1), required=lambda o, name=name: name in o.processors)
        assert search_result.ms == pytest.approx(min(forced))
        assert any(name in options.processors for options, _ in search_result.picks)


def test_search_within_a_loss_bound_and_search_for_the_least_loss_equal_brute_force():
    space = make_space(GRAPH, min_width=0.85)
    low, high = round(0.9 * GRAPH.macs), round(1.6 * GRAPH.macs)
    designs = every_design(space, low, high, 1)
    every = np.array([(ms, sum(float(losses(o)[i]) for o, i in picks)) for picks, ms, _ in designs])
    for most in np.quantile(every[:, 1], [0.0, 0.1, 0.5, 0.9]):
        search_result = search_exact(space, Totals(low, high, 1), loss_bound=(Measure(losses), float(most)))
        assert search_result.optimal
        assert search_result.ms == pytest.approx(every[every[:, 1] <= most + 1e-9, 0].min())
    for budget in np.quantile(every[:, 0], [0.0, 0.2, 0.7]):
        search_result = search_exact(space, Totals(low, high, 1), Measure(losses), (LATENCY, float(budget)))
        assert sum(float(losses(o)[i]) for o, i in search_result.picks) == pytest.approx(every[every[:, 0] <= budget + 1e-9, 1].min())
        assert search_result.ms <= budget + 1e-9
    free = search_exact(space, Totals(low, high, 1), Measure(losses))
    assert sum(float(losses(o)[i]) for o, i in free.picks) == pytest.approx(every[:, 1].min())
    assert search_exact(space, Totals(low, high, 1), Measure(losses), (LATENCY, float(every[:, 0].min()) * 0.99)) is None
    assert search_exact(space, Totals(low, high, 1), loss_bound=(Measure(losses), float(every[:, 1].min()) - 1e-3)) is None


MERGING_GRAPH = small_resnet(16, blocks=(2, 2, 2), mids=(8, 16, 32))


def test_blocks_of_merged_stages_are_dropped_evenly():
    merged = merge_stages(MERGING_GRAPH, make_space(MERGING_GRAPH))
    options = next(o for o in merged.options[1] if o.segment.name == "s1_to_s3")
    assert (options.segment.depth, sorted({b.depth for b in options.candidates[0]})) == (6, [3, 4, 5, 6])
    widths = [b.width for b in options.candidates[0]]
    assert min(widths) >= 0.5 * options.segment.width
    assert max(widths) == options.segment.width


def most_branched(space, at=0):
    """Maximum number of branched segments over every division of the stages from `at` on."""
    if at == len(space.segments):
        return 0
    return max((len(o.candidates) > 1 and bool(o.allowed.any())) + most_branched(space, at + o.span) for o in space.options[at])


@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_most_meetings_counts_segments_that_can_branch_in_one_design(processors):
    space = make_space(MERGING_GRAPH, processors=processors, min_width=0.25)
    merged = merge_stages(MERGING_GRAPH, space)
    assert space.max_meetings == most_branched(space)
    assert merged.max_meetings == most_branched(merged) >= space.max_meetings
    nothing = merged.replace_rules(Rules({"alpha": 1e-6}))
    assert nothing.max_meetings == 0


@pytest.mark.representatives(1)
@pytest.mark.parametrize("device", ["mi9", "pixel6"])
def test_found_design_takes_the_time_of_its_timeline(device):
    graph = small_resnet()
    space = make_space(graph, device)
    low, high = round(0.95 * graph.macs), round(1.05 * graph.macs)

    def builder(arriving):
        return DesignSpace.of(space.segments, space.processors, space.costs, space.rules, "concat", arriving)

    concat = search_concat(builder, Totals(low, high, 1))
    run = timeline(graph, as_design(graph, concat.segments(space.costs)), space.costs)
    assert run.makespan_ms == pytest.approx(concat.ms)
    assert low <= run.macs == concat.macs <= high
    assert run.params == concat.params
    assert any(len(p.branches) > 1 and p.join == "concat" for p in run.design.segments)
    assert not concat.optimal


SPACE_GRAPH = small_resnet()
SPACES = {join: make_space(SPACE_GRAPH, processors=("cpu", "gpu", "dsp"), join=join) for join in ("project", "sum")}


@given(st.data(), st.sampled_from(["project", "sum"]))
def test_option_takes_the_time_of_its_design_on_the_timeline(data, join):
    space = SPACES[join]
    at = data.draw(st.sampled_from([1, 2]))
    options = data.draw(st.sampled_from(space.options[at]))
    index = data.draw(st.integers(0, len(options.macs) - 1))
    parts = [whole(s) for s in space.segments]
    parts[at] = options.design(index, space.costs)
    run = timeline(SPACE_GRAPH, as_design(SPACE_GRAPH, parts), space.costs)
    row = run.segments[at]
    assert sum(b.macs for b in row.branches) == options.macs[index]
    assert sum(b.params for b in row.branches) == options.params[index]
    assert row.ms == pytest.approx(options.ms[space.holders.index("cpu"), index])
    if len(row.branches) > 1:
        assert row.design.join == join
        assert max(b.ms + b.contention_ms for b in row.branches) == pytest.approx(options.slowest_ms[index])
        assert row.communication_ms <= options.exchange_ms[0, index] + 1e-9


def test_output_on_another_processor_is_transferred_to_the_host():
    space = make_space(SPACE_GRAPH, processors=("gpu", "dsp"))
    assert space.finish_ms("cpu") == 0
    for holder in ("gpu", "dsp"):
        *before, last = space.segments
        design = as_design(SPACE_GRAPH, [*map(whole, before), whole(last, holder)])
        assert 0 < space.finish_ms(holder) == pytest.approx(timeline(SPACE_GRAPH, design, space.costs).output_ms)


def test_exactly_the_options_that_meet_every_rule_are_allowed():
    space = make_space(SPACE_GRAPH, "pixel6", alpha=0.6, beta=1.1, balance=0.5)
    checked = 0
    for options in space.options[1]:
        if len(options.candidates) == 1:
            assert options.allowed.all()
            continue
        limit = space.alone_ms(options)
        for index in range(len(options.macs)):
            meets = (
                options.slowest_ms[index] <= 1.1 * limit
                and options.fastest_ms[index] >= 0.5 * options.slowest_ms[index]
                and options.macs[index] >= 0.9 * options.segment.graph.macs
            )
            for holder in range(len(space.holders)):
                assert options.allowed[holder, index] == (meets and options.exchange_ms[holder, index] <= 0.6 * limit)
                checked += 1
    assert checked > 100


def test_many_widths_are_thinned_to_even_ratios_with_floor_and_original_kept():
    s4, legal = next(s for s in split_segments(resnet50()) if s.name == "s4"), list(range(8, 2049, 8))
    offered = Rules.of(PlanConfig().resolve(specified("pixel6"))).widths(s4, legal)
    assert set(offered) <= set(legal)
    assert (offered[0], offered[-1], len(offered)) == (1024, 2048, 17)
    assert max(np.diff(offered)) <= 2048 / 32 + 8
