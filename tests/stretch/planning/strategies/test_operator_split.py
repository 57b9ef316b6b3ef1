"""The strategy `operator_split` divides every part by itself, and nothing else."""

import pytest

from predictors.errors import UsageError
from stretch.planning.config import PlanConfig
from stretch.planning.plan import evaluate, plan
from stretch.planning.search.banded import with_exact_kinds
from stretch.planning.strategies.operator_split import search
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import make_space

GRAPH = small_resnet(64)
HOST = specified("host")


@pytest.mark.slow
def test_no_segment_covers_several_parts_and_none_is_stretched():
    space = with_exact_kinds(GRAPH, PlanConfig(kinds=("stretch", "rows")), make_space(GRAPH, "host"))
    found = search(space, GRAPH.macs, GRAPH.macs, 2)
    assert found.n_meet >= 2
    assert all(ways.span == 1 and (ways.banded or not ways.branched) for ways, _ in found.picks)


def test_space_without_exact_kinds_has_no_such_design():
    assert search(make_space(GRAPH), 0, 2 * GRAPH.macs, 1) is None


@pytest.fixture(scope="module")
def planned():
    return plan(GRAPH, HOST, PlanConfig(strategy="operator_split"))


@pytest.mark.slow
def test_plan_is_exact_and_the_design_of_the_control(planned):
    assert planned.exact
    assert planned.run.makespan_ms == pytest.approx(planned.operator_split.ms)
    assert planned.answer().operator_split_design == planned.operator_split.design
    assert {segment.kind for segment in planned.answer().segments} <= {"whole", "rows"}


@pytest.mark.slow
def test_design_of_the_control_is_judged_as_it_was_stated(planned):
    again = evaluate(GRAPH, HOST, planned.operator_split.design)
    assert again.run.makespan_ms == pytest.approx(planned.predicted.operator_split_ms)


@pytest.mark.slow
def test_bands_that_may_go_on_over_several_parts_are_not_slower(planned):
    lossless = plan(GRAPH, HOST, PlanConfig(kinds=("rows",)))
    assert lossless.predicted.operator_split_ms == pytest.approx(planned.predicted.operator_split_ms)
    assert lossless.run.makespan_ms <= planned.run.makespan_ms + 1e-9


def test_stretched_segments_are_refused():
    with pytest.raises(UsageError, match="divides a network exactly, and `stretch` segments make another one"):
        PlanConfig(strategy="operator_split", kinds=("stretch", "rows")).checked(HOST)
