"""Starts and rounds, with contenders that note when they run."""

import numpy as np
import pytest

from predictors.errors import StretchError, UsageError
from scheduler.measure.bench.interval import MOST_STARTS
from scheduler.measure.bench.rounds import LEAST_STARTS, WINDOW, Effort, holds, play
from scheduler.measure.bench.runtimes import Ready


class Noting(Ready):
    """A contender that writes down its runs and takes as long as it is told."""

    def __init__(self, name, log, ns=lambda run: 1000):
        self.name, self.log, self.ns, self.runs = name, log, ns, 0
        log.append(f"made {name}")

    def time(self):
        self.runs += 1
        self.log.append(self.name)
        return self.ns(self.runs)

    def outputs(self):
        return {"y": np.full(2, self.runs)}

    def close(self):
        self.log.append(f"closed {self.name}")


def test_every_start_makes_all_anew_warms_them_up_and_closes_them():
    log = []
    found = play({name: (lambda name=name: Noting(name, log)) for name in "ab"}, Effort(rounds=3, starts=2), seed=0)
    assert found.ns == {"a": [[1000] * 3] * 2, "b": [[1000] * 3] * 2}
    assert found.warmup == [2 * WINDOW] * 2
    assert found.steady == {"a", "b"}
    assert [word for word in log if " " in word] == ["made a", "made b", "closed b", "closed a"] * 2
    assert log.count("a") == log.count("b") == 2 * (2 * WINDOW + 3)


def test_order_is_drawn_anew_in_each_round_and_is_that_of_the_seed():
    def order(seed):
        log = []
        play({name: (lambda name=name: Noting(name, log)) for name in "abc"}, Effort(rounds=30, starts=1, warmup=0), seed)
        runs = [word for word in log if len(word) == 1]
        return [tuple(runs[i : i + 3]) for i in range(0, len(runs), 3)]

    rounds = order(0)
    assert all(set(each) == set("abc") for each in rounds)
    assert len(set(rounds)) > 3
    assert rounds == order(0) != order(1)


def test_contender_whose_times_never_hold_is_named():
    found = play(
        {"calm": lambda: Noting("calm", []), "wild": lambda: Noting("wild", [], lambda run: 1000 << (run % 2))},
        Effort(rounds=2, starts=1, warmup=20),
        seed=0,
    )
    assert found.warmup == [20]
    assert found.steady == {"calm"}


@pytest.mark.parametrize(("factor", "starts"), [(1.0, LEAST_STARTS), (3.0, MOST_STARTS)])
def test_starts_go_on_until_medians_are_known_to_the_width(factor, starts):
    made = []

    def make():
        made.append(1)
        scale = factor ** (len(made) % 2)
        return Noting("a", [], lambda run: round(1000 * scale))

    found = play({"a": make}, Effort(rounds=2, starts=MOST_STARTS, width=0.02, warmup=0), seed=0)
    assert len(found.ns["a"]) == starts


def test_contenders_that_were_made_are_closed_if_another_cannot_be():
    log = []

    def broken():
        raise StretchError("no")

    with pytest.raises(StretchError):
        play({"a": lambda: Noting("a", log), "b": broken}, Effort(), seed=0)
    assert log == ["made a", "closed a"]


def test_times_hold_once_two_windows_agree():
    assert holds([9000] * 20 + [1000] * 2 * WINDOW)
    assert not holds([1000 - 40 * i for i in range(2 * WINDOW)])
    assert not holds([1000] * WINDOW + [1100] * WINDOW)


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"starts": 0}, {"starts": MOST_STARTS + 1}, {"warmup": -1}, {"width": 0.0}, {"width": float("nan")}]
)
def test_effort_that_is_none_is_refused(wrong):
    with pytest.raises(UsageError):
        Effort(**wrong)
