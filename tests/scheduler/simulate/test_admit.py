from math import inf, nan

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.simulate.admit import Demand, admit
from scheduler.simulate.networks import Network
from tests.effort import examples
from tests.scheduler.simulate.plans import chain, single


def whole(name, processor, ms):
    return Network(name, *single(processor, ms))


def test_rates_that_leave_time_are_held_and_the_busiest_processor_is_named():
    found = admit([whole("a", "cpu", 4.0), whole("b", "gpu", 2.0)], [Demand(100, 20.0), Demand(100, 20.0)])
    assert found.holds
    assert found.busy == pytest.approx({"cpu0": 0.4, "gpu": 0.2})
    assert "the busiest is `cpu0`, 40 %" in found.reason
    assert found.factor == pytest.approx(2.5)
    assert {name: each.missed for name, each in found.kept.items()} == {"a": 0, "b": 0}


def test_more_work_than_time_is_refused_without_a_simulation():
    found = admit([whole("a", "cpu", 6.0), whole("b", "cpu", 6.0)], [Demand(100), Demand(100)])
    assert not found.holds
    assert found.reason == "`cpu0` would have 1.20 times as much to do as there is time"
    assert not found.kept
    assert 0.7 < found.factor <= 1 / 1.2 + 1e-9


def test_deadline_that_the_network_alone_misses_is_refused_and_named():
    found = admit([whole("a", "cpu", 6.0)], [Demand(10, 5.0)])
    assert not found.holds
    assert found.reason == "an inference of `a` takes 6.00 ms without a concurrent workload, more than its deadline of 5 ms"
    assert found.factor == 0


def test_deadline_that_is_shorter_than_somebody_else_s_subgraph_is_refused_and_named():
    """A subgraph is not interrupted: a request that comes while a long one runs waits for it."""
    found = admit([whole("long", "cpu", 30.0), whole("short", "cpu", 1.0)], [Demand(10), Demand(30, 5.0)])
    assert not found.holds
    assert "requests of `short` miss the deadline of 5 ms" in found.reason
    assert found.kept["long"].missed == 0
    assert found.kept["short"].worst_ms > 5


@pytest.mark.slow
def test_without_a_deadline_there_has_to_be_room_for_the_next_request():
    assert admit([whole("a", "cpu", 9.9)], [Demand(100)]).holds
    assert not admit([Network("a", *chain([{"cpu": (0, 9, 0)}, {"gpu": (0, 9, 0)}, {"dsp": (0, 9, 0)}]))], [Demand(100)], in_flight=2).holds
    assert admit([Network("a", *chain([{"cpu": (0, 9, 0)}, {"gpu": (0, 9, 0)}, {"dsp": (0, 9, 0)}]))], [Demand(90)], in_flight=3).holds


@pytest.mark.slow
def test_a_hundred_per_second_for_the_first_does_not_starve_the_rare_one():
    found = admit([whole("often", "cpu", 5.0), whole("rare", "cpu", 20.0)], [Demand(100, 40.0), Demand(2, 300.0)])
    assert found.holds
    assert found.kept["rare"].requests >= 90


@pytest.mark.slow
@settings(max_examples=examples(8), phases=(Phase.explicit, Phase.generate))
@given(st.integers(1, 8), st.integers(1, 8), st.integers(30, 90), st.integers(30, 90))
def test_what_is_held_is_held_at_the_factor_too_and_busy_is_work_over_time(one, other, first, second):
    networks = [whole("a", "cpu", one), whole("b", "cpu", other)]
    demands = [Demand(first, 60.0), Demand(second, 60.0)]
    found = admit(networks, demands)
    assert found.busy["cpu0"] == pytest.approx((one * first + other * second) / 1e3)
    if found.busy["cpu0"] > 1.001:
        assert not found.holds
    if found.factor:
        assert admit(networks, [each.times(found.factor) for each in demands]).holds
    if found.holds:
        assert found.factor >= 1


@pytest.mark.parametrize("numbers", [{"per_second": 0}, {"per_second": -1}, {"per_second": inf}, {"per_second": nan}])
def test_rate_that_is_none_is_refused(numbers):
    with pytest.raises(UsageError, match="no rate"):
        Demand(**numbers)


def test_what_makes_no_sense_is_refused():
    own = whole("a", "cpu", 1.0)
    with pytest.raises(UsageError, match="distinct names"):
        admit([own, own], [Demand(1), Demand(1)])
    with pytest.raises(UsageError, match="distinct names"):
        admit([], [])
    with pytest.raises(UsageError, match="do not go together"):
        admit([own], [])
    with pytest.raises(UsageError, match="deadline"):
        Demand(1, 0.0)
    with pytest.raises(UsageError, match="priority"):
        Demand(1, priority=101)
