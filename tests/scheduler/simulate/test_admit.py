import pytest

from predictors.errors import UsageError
from scheduler.simulate.admit import Demand, admit
from scheduler.simulate.networks import Network
from tests.scheduler.simulate.plans import single


def whole(name, processor, ms):
    return Network(name, *single(processor, ms))


def test_rates_that_leave_time_are_held_and_the_busiest_processor_is_named():
    found = admit([whole("a", "cpu", 4.0), whole("b", "gpu", 2.0)], [Demand(100, 20.0), Demand(100, 20.0)])
    assert found.holds
    assert found.busy == pytest.approx({"cpu0": 0.4, "gpu": 0.2})
    assert "the busiest is `cpu0`, 40 %" in found.reason
    assert found.factor == pytest.approx(2.5)
    assert {name: each.missed for name, each in found.kept.items()} == {"a": 0, "b": 0}


def test_deadline_that_the_network_alone_misses_is_refused_and_named():
    found = admit([whole("a", "cpu", 6.0)], [Demand(10, 5.0)])
    assert not found.holds
    assert found.reason == "an inference of `a` takes 6.00 ms without a concurrent workload, more than its deadline of 5 ms"
    assert found.factor == 0


@pytest.mark.slow
def test_a_hundred_per_second_for_the_first_does_not_starve_the_rare_one():
    found = admit([whole("often", "cpu", 5.0), whole("rare", "cpu", 20.0)], [Demand(100, 40.0), Demand(2, 300.0)])
    assert found.holds
    assert found.kept["rare"].requests >= 90


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
