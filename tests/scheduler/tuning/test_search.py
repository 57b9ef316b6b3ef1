from hypothesis import given
from hypothesis import strategies as st

from scheduler.tuning.search import HOPELESS, quickest


class Clock:
    """Plays back the times of each candidate, the last one for ever."""

    def __init__(self, times):
        self.times = {key: list(values) for key, values in times.items()}
        self.asked = []

    def __call__(self, candidate):
        self.asked.append(candidate)
        values = self.times[candidate]
        return values.pop(0) if len(values) > 1 else values[0]


def test_least_of_interleaved_times_decides():
    clock = Clock({None: [10.0], "a": [9.0], "b": [11.0, 5.0, 5.0]})
    found = quickest(["a", "b"], clock)
    assert (found.best, found.best_ms, found.default_ms) == ("b", 5.0, 10.0)
    assert clock.asked == [None, "a", "b", None, "a", "b", None, "b"]


def test_default_stays_unless_a_candidate_gains_more_than_noise():
    assert quickest(["a"], Clock({None: [10.0], "a": [9.8]})).best is None
    assert quickest([], Clock({None: [10.0]})).best_ms == 10.0


def test_candidate_that_the_device_refuses_is_passed_over():
    assert quickest(["a", "b"], Clock({None: [10.0], "a": [None], "b": [5.0]})).best == "b"


def test_spent_budget_takes_the_best_of_what_is_known():
    clock = Clock({None: [10.0], "a": [5.0], "b": [1.0]})
    found = quickest(["a", "b"], clock, spent=lambda: "a" in clock.asked)
    assert found.best == "a"
    assert "b" not in clock.asked


@given(st.data())
def test_quickest_is_at_most_as_slow_as_the_default_in_truth_whatever_noise_slows_single_measurements(data):
    """Each candidate has a true time, which the search never sees: a measurement is that time or, on a busy machine, longer."""
    truth = data.draw(st.dictionaries(st.integers(0, 9), st.floats(0.1, 100), max_size=8))
    default = data.draw(st.floats(0.1, 100))
    quiet = data.draw(st.integers(0, 2))
    turns = dict.fromkeys((None, *truth), 0)

    def measure(candidate):
        """Disturbed, except in one turn of the three."""
        turn, turns[candidate] = turns[candidate], turns[candidate] + 1
        slowed = 1 if turn % 3 == quiet else data.draw(st.floats(1, 3))
        return slowed * (default if candidate is None else truth[candidate])

    found = quickest(list(truth), measure)
    if found.best is not None:
        assert truth[found.best] < default
    else:
        # What was measured in every turn and is quicker by more than the margin would have been taken.
        assert all(time > 0.97 * default for time in truth.values() if 3 * time <= HOPELESS * min(default, *truth.values()))
