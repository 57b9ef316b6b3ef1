"""Designs that are best in one thing within bounds on others."""

import pytest

from stretch.planning.search.criteria import undominated
from tests.stretch.planning.test_pareto import small_criteria, weigh

NAMES = ("latency", "energy", "macs", "memory", "loss")


@pytest.mark.parametrize("name", NAMES)
def test_design_of_least_of_one_thing_equals_brute_force(name):
    criteria, every = small_criteria()
    assert criteria.value(name, criteria.least(name, {})) == pytest.approx(min(criteria.value(name, each) for each in every))


@pytest.mark.parametrize("bounded", [("macs", "memory"), ("memory", "energy"), ("macs", "loss"), ("macs", "memory", "energy")])
def test_several_bounds_are_kept_at_once(bounded):
    criteria, every = small_criteria()
    ends = {name: sorted(criteria.value(name, each) for each in every) for name in bounded}
    bounds = {name: values[len(values) // 2] for name, values in ends.items()}
    able = [each for each in every if all(criteria.value(name, each) <= most for name, most in bounds.items())]
    found = criteria.least("latency", bounds)
    assert all(criteria.value(name, found) <= most + 1e-6 for name, most in bounds.items())
    assert found.ms == pytest.approx(min(each.ms for each in able))
    assert criteria.least("latency", {name: values[0] * 0.5 - 1 for name, values in ends.items()}) is None


def test_two_bounds_on_what_adds_up_are_refused():
    criteria, _ = small_criteria()
    with pytest.raises(ValueError, match="energy and loss cannot be bounded at once"):
        criteria.least("latency", {"energy": 1.0, "loss": 1.0})


def test_best_in_one_thing_is_of_all_such_the_best_in_another():
    criteria, every = small_criteria()
    found = criteria.best(("latency", "macs"), {})
    fastest = min(each.ms for each in every)
    assert found.ms == pytest.approx(fastest)
    assert found.macs == min(each.macs for each in every if each.ms <= fastest + 1e-9)


def test_designs_that_another_beats_and_copies_of_one_are_left_out():
    criteria, every = small_criteria()
    some = [*every[:200], every[0]]
    values = [weigh(criteria, ("latency", "macs"), each) for each in some]
    kept = undominated(some, values)
    for number in range(len(some)):
        beaten = any(all(b <= a + 1e-9 for a, b in zip(values[number], values[k], strict=True)) for k in kept)
        assert beaten
    assert len({values[k] for k in kept}) == len(kept)
