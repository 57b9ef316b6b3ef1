"""Options of a design space are real designs with the costs they state."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchScale, SegmentDesign
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import as_design, make_space

GRAPH = small_resnet()
SPACES = {join: make_space(GRAPH, processors=("cpu", "gpu", "dsp"), join=join) for join in ("project", "sum")}


def whole(segment):
    return SegmentDesign(segment.name, segment.start, segment.end, (BranchScale("cpu", segment.depth, segment.width),))


@given(st.data(), st.sampled_from(["project", "sum"]))
def test_option_costs_what_the_timeline_of_its_design_says(data, join):
    space = SPACES[join]
    at = data.draw(st.sampled_from([1, 2]))
    options = data.draw(st.sampled_from(space.options[at]))
    index = data.draw(st.integers(0, len(options.macs) - 1))
    parts = [whole(s) for s in space.segments]
    parts[at] = options.design(index, space.costs)
    run = timeline(GRAPH, as_design(GRAPH, parts), space.costs)
    row = run.segments[at]
    assert sum(b.macs for b in row.branches) == options.macs[index]
    assert sum(b.params for b in row.branches) == options.params[index]
    assert row.ms == pytest.approx(options.ms[space.holders.index("cpu"), index])
    if len(row.branches) > 1:
        assert row.design.join == join
        assert max(b.ms + b.contention_ms for b in row.branches) == pytest.approx(options.slowest_ms[index])
        assert row.communication_ms <= options.exchange_ms[0, index] + 1e-9


def test_every_subset_of_the_processors_may_run_a_segment():
    space = SPACES["project"]
    assert [o.processors for o in space.options[1]] == [
        ("cpu",), ("gpu",), ("dsp",), ("cpu", "gpu"), ("cpu", "dsp"), ("gpu", "dsp"), ("cpu", "gpu", "dsp"),
    ]  # fmt: skip
    assert [o.processors for o in space.options[0]] == [("cpu",), ("gpu",), ("dsp",)]


def test_output_that_the_host_does_not_hold_has_to_go_there():
    space = make_space(GRAPH, processors=("gpu", "dsp"))
    assert space.leaving_ms("cpu") == 0
    for holder in ("gpu", "dsp"):
        *before, last = [whole(segment) for segment in space.segments]
        design = as_design(GRAPH, [*before, replace(last, branches=(replace(last.branches[0], processor=holder),))])
        assert 0 < space.leaving_ms(holder) == pytest.approx(timeline(GRAPH, design, space.costs).output_ms)


def test_allowed_options_are_exactly_those_that_meet_every_rule():
    space = make_space(GRAPH, "pixel6", alpha=0.6, beta=1.1, balance=0.5)
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


def test_size_counts_every_combination():
    space = make_space(GRAPH)
    count = 1
    for options in space.options:
        count *= sum(len(o.macs) for o in options)
    assert space.size_log10 == pytest.approx(np.log10(count))


def test_partitions_of_a_project_join_fill_the_trunk():
    space = SPACES["project"]
    options = space.options[1][-1]
    for index in (0, len(options.macs) // 2, len(options.macs) - 1):
        design = options.design(index, space.costs)
        assert sum(b.partition for b in design.branches) == options.segment.width
