"""Alternatives that a recommendation considers: split operators, networks that need training, parts next to the backbone."""

import copy
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.errors import InfeasibleError
from predictors.graph import Op, OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import HANDOVER_SHARE, computing_spans, parallel_ms
from stretch.planning.pareto import front
from stretch.planning.plan import plan
from stretch.report.plan import figures, plan_bars, plan_page
from stretch.stages.advise import EXACT, _gain, _PlannedKind
from tests.predictors.networks import convolution, resnet50, small_resnet
from tests.predictors.specified import specified

DEVICE = load_device("rk3588")


def towers():
    """Two towers of convolutions with one input each, whose results are multiplied."""
    ops = []
    for tower in "ab":
        ops.append(Op(tower, "input", (), {"shape": (1, 3, 112, 112)}))
        last = tower
        for number, channels in enumerate((32, 64, 64, 128, 128)):
            ops.append(convolution(f"{tower}{number}", last, channels, 3, 1 + number % 2))
            last = ops[-1].name
    return OpGraph.build("towers", [*ops, Op("mul", "mul", ("a4", "b4"), {})], "mul")


@pytest.fixture(scope="module")
def sided():
    return plan(towers(), DEVICE, PlanConfig(processors=("cpu", "gpu"), lossless=True))


@pytest.fixture(scope="module", params=[small_resnet, pytest.param(resnet50, marks=pytest.mark.slow)])
def exact(request):
    return plan(request.param(), specified("mi9"), PlanConfig(processors=("cpu", "gpu"), lossless=True))


def head(result, **values):
    """The lead and the figures of a report on the plan, with other values of cached properties."""
    changed = copy.copy(result)
    vars(changed).update(values)
    return str(plan_page(changed).head), dict(figures(changed))


def test_design_with_parts_outside_its_backbone_is_never_called_optimal(sided):
    assert sided.run.sides
    assert (sided.optimal, sided.gap) == (False, None)
    assert "within the constraints is faster" not in dict(figures(sided))["search"]
    found = front(towers(), DEVICE, PlanConfig(processors=("cpu", "gpu"), lossless=True), ("latency", "macs"), 2)
    assert not found.optimal


def test_probability_of_being_faster_than_all_is_at_most_the_probability_for_each(sided, exact):
    for result in (sided, exact):
        predicted = result.predicted
        assert predicted.probability_faster["all"] <= min(control.probability for control in result.recommendation.compared) + 1e-9


def test_faster_operator_split_is_reported_in_the_lead_and_the_figures(sided):
    predicted = msgspec.structs.replace(sided.predicted, operator_split_ms=0.9 * sided.predicted.makespan_ms, best_single_ms=1e6)
    lead, figures = head(sided, predicted=predicted, recommended="branched")
    assert figures["operators split"].endswith("faster than the design")
    assert "operators split" in lead
    # neither an operator split that is only as fast, nor one processor alone, which is a separate control
    for other in ({"operator_split_ms": predicted.makespan_ms}, {"best_single_ms": predicted.operator_split_ms}):
        changed = msgspec.structs.replace(predicted, **other)
        assert "operators split" not in head(sided, predicted=changed, recommended="branched")[0]


SPANS = st.lists(st.tuples(st.sampled_from(["cpu", "gpu", "dsp"]), st.integers(0, 30), st.integers(0, 10)), max_size=8)


@given(SPANS)
def test_parallel_time_equals_the_count_of_ticks_with_several_busy_processors(spans):
    busy = [{name for name, start, length in spans if start <= tick < start + length} for tick in range(41)]
    assert parallel_ms([(name, start, start + length) for name, start, length in spans]) == sum(len(names) > 1 for names in busy)


def test_bars_of_a_report_have_the_parallel_time_of_the_run(sided, exact):
    for result in (sided, exact):
        bars = [(bar.row, bar.start_ms, bar.start_ms + bar.ms) for bar in plan_bars(result) if bar.kind == "computing"]
        assert parallel_ms(bars) == pytest.approx(parallel_ms(computing_spans(result.run)), abs=1e-6)


def test_gain_without_parallel_work_is_attributed_to_running_parts_where_they_are_fast(exact):
    """The same design, but one of two branches computes nothing."""
    assert parallel_ms(computing_spans(exact.run)) > HANDOVER_SHARE * exact.run.makespan_ms
    assert "one after the other" not in head(exact)[0]
    assert "side by side" not in _gain(EXACT, _PlannedKind(exact))
    idle = [tuple(replace(branch, ms=0.0, contention_ms=0.0) for branch in s.branches[1:]) for s in exact.run.segments]
    segments = tuple(replace(s, branches=(s.branches[0], *rest)) for s, rest in zip(exact.run.segments, idle, strict=True))
    changed = head(exact, run=replace(exact.run, segments=segments))[0]
    assert "parts run one after the other, each where it is fast" in changed


def rowless():
    """Layers on vectors, which have no rows."""
    ops = [Op("input", "input", (), {"shape": (1, 64)})]
    for number in range(3):
        ops.append(Op(f"l{number}", "linear", (ops[-1].name,), {"out_features": 64, "bias": False}))
    return OpGraph.build("rowless", ops, ops[-1].name)


@pytest.mark.parametrize("make", [rowless, lambda: small_resnet(16), lambda: small_resnet(64)])
@pytest.mark.parametrize(("request_", "other", "mention"), [
    ({"lossless": True}, {"kinds": ("stretch",)}, "kinds=("),
    ({"kinds": ("stretch",)}, {"lossless": True}, "lossless"),
])  # fmt: skip
def test_other_kind_of_branches_is_proposed_only_if_it_has_a_design(make, request_, other, mention):
    def hint(options):
        try:
            plan(make(), specified("pixel6"), PlanConfig(processors=("cpu", "gpu"), **options))
        except InfeasibleError as error:
            return error.hint or ""
        return None

    if (proposal := hint(request_)) is not None:
        assert (mention in proposal) == (hint(other) is None)
