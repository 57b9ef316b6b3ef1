"""The front of a small network: brute force finds no design that is faster at the same loss."""

from functools import cache
from itertools import combinations

import pytest

from predictors.devices import load_device
from predictors.errors import UsageError
from stretch.planning.config import PlanConfig, read_objective
from stretch.planning.cost.makespan import timeline
from stretch.planning.pareto import CRITERIA, Criteria, front, trace_diverse, trace_front
from stretch.planning.plan import PlanningProblem, design_of
from stretch.planning.search.exact import LATENCY, MACS, Measure, SearchResult, measure_of
from stretch.planning.search.space import Totals
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning import spaces
from tests.stretch.planning.cost.measured import GRAPH, made
from tests.stretch.planning.spaces import LOOSE, losses, make_space, waiting

MI9 = specified("mi9")
REQUEST = {"processors": ("cpu", "gpu"), "macs": (0.9, 1.1), "min_width": 0.75, **LOOSE}


def test_front_is_only_the_original_if_branches_are_slower():
    graph = small_resnet()
    result = front(graph, MI9, PlanConfig(**REQUEST), ("latency", "agreement"), 6, made())
    assert [(design.n_meet, design.exact, design.accuracy.agreement) for design in result.designs] == [(0, True, 1)]


PAIRS = list(combinations(("latency", "energy", "macs", "agreement"), 2))
SMALL = {"processors": ("cpu", "gpu"), "macs": (0.9, 1.9), "min_width": 0.9, "min_depth": 1.0, "merge": "never", **LOOSE}
RESNET = small_resnet(96, blocks=(1, 1), mids=(64, 64))


@pytest.mark.parametrize(
    ("graph", "request_", "goals", "count", "message"),
    [
        (GRAPH, REQUEST, ("latency", "agreement"), 5, "predicts the agreement"),
        (GRAPH, REQUEST | {"strategy": "grid"}, ("latency", "macs"), 5, "exact search"),
        (RESNET, SMALL, ("latency",), 4, "two different things"),
        (RESNET, SMALL, ("latency", "latency"), 4, "two different things"),
        (RESNET, SMALL, ("latency", "energy", "macs"), 4, "two different things"),
    ],
)
def test_invalid_front_is_refused(graph, request_, goals, count, message):
    with pytest.raises(UsageError, match=message):
        front(graph, MI9, PlanConfig(**request_), goals, count)


def weigh(criteria, names, result):
    return tuple(criteria.value("loss" if name == "agreement" else name, result) for name in names)


@cache
def small_criteria():
    space = make_space(RESNET, waiting(), min_width=0.9, min_depth=1.0)
    goals = {"latency": LATENCY, "macs": MACS, "loss": Measure(losses)}
    goals["energy"] = measure_of(read_objective("energy"), waiting(), space.processors)
    low, high = round(0.9 * RESNET.macs), round(1.9 * RESNET.macs)
    designs = [(picks, ms, sum(int(o.macs[i]) for o, i in picks)) for picks, ms, _ in spaces.every_design(space, low, high, 0)]
    return Criteria(space, Totals(low, high, 0), goals), [SearchResult(*design, True, 0.0, 0, design[1]) for design in designs]


def brute_force(points):
    """Points that no other beats."""
    return sorted({p for p in points if not any(q != p and all(b <= a + 1e-9 for a, b in zip(p, q, strict=True)) for q in points)})


@pytest.mark.representatives(8)
@pytest.mark.parametrize("names", PAIRS)
def test_front_of_two_criteria_and_its_ends_equal_brute_force(names):
    criteria, every = small_criteria()
    rows = tuple("loss" if name == "agreement" else name for name in CRITERIA if name in names)
    kept = sorted(weigh(criteria, rows, item) for item in criteria.trace(rows, 12))
    expected = brute_force({tuple(round(v, 6) for v in weigh(criteria, rows, item)) for item in every})
    for point in kept:
        assert any(point == pytest.approx(other, rel=1e-5) for other in expected)
    assert (kept[0], kept[-1]) == (pytest.approx(expected[0], rel=1e-5), pytest.approx(expected[-1], rel=1e-5))
    assert len(set(kept)) >= min(len(expected), 6)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("weighed", [("latency", "energy"), ("energy", "macs"), ("macs", "latency")])
def test_front_of_a_request_states_every_criterion_of_each_design(weighed):
    result = front(RESNET, MI9, PlanConfig(**SMALL), weighed, 4)
    assert result.pareto == list(weighed)
    assert 1 <= len(result.designs) <= 4
    assert all(item.peak_bytes > 0 for item in result.designs)
    assert [item.predicted_ms for item in result.designs] == sorted((item.predicted_ms for item in result.designs), reverse=True)


def test_front_of_one_design_is_the_best_in_the_minimized_criterion():
    (one,), several = (front(RESNET, MI9, PlanConfig(**SMALL), ("latency", "energy"), count).designs for count in (1, 5))
    assert one.predicted_ms == min(item.predicted_ms for item in several)


def beats(one, other):
    """Whether a point is no worse than another in time and multiply-accumulates, and better in at least one."""
    pairs = list(zip(one, other, strict=True))
    return all(a <= b * (1 + 1e-9) for a, b in pairs) and any(a < b * (1 - 1e-6) for a, b in pairs)


@pytest.mark.parametrize("merge", ["auto", "always"])
def test_front_ends_at_the_best_design_of_the_same_request_and_has_no_dominated_design(merge):
    graph = small_resnet(64, blocks=(2, 2), mids=(64, 128))
    problem = PlanningProblem.of(graph, load_device("mi9"), PlanConfig(processors=("cpu", "gpu"), alpha=0.5, merge=merge))
    choice, diverse = trace_diverse(problem, 4, 1.1)
    fastest, _, _ = trace_front(problem, ("latency", "macs"), 4)

    def criteria_of(result):
        # multiply-accumulates that bands of rows repeat do not count
        run = timeline(graph, design_of(problem, result), problem.costs)
        return result.ms, run.macs - run.halo_macs

    compared, points = ([criteria_of(result) for result in results] for results in (diverse, fastest))
    assert choice.result.optimal
    assert all(item.optimal for item in fastest)
    assert points[-1][0] == pytest.approx(compared[0][0])
    assert not [(one, other) for one in (*compared, *points) for other in points if beats(one, other)]
