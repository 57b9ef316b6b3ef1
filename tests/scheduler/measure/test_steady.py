import os
import threading
import time

import pytest

from scheduler.measure.steady import MOST, UNSTEADY, Steady, preferred, time_steadily


def work(turns: int) -> int:
    return sum(i * i for i in range(turns))


@pytest.mark.slow
def test_work_that_differs_from_run_to_run_is_told_to_be_unsteady():
    runs = iter(range(10_000))
    found = time_steadily({"wild": lambda: work(2_000 if next(runs) % 2 else 60_000)}, serial=True)["wild"]
    assert found.unsteady
    assert found.spread > UNSTEADY
    assert found.runs == MOST


def test_no_round_is_begun_after_the_end_and_too_few_rounds_tell_nothing():
    runs = []
    assert time_steadily({"late": lambda: runs.append(0)}, end=time.monotonic() - 1) == {}
    assert runs == []
    end = time.monotonic() + 0.05
    assert time_steadily({"slow": lambda: (runs.append(0), time.sleep(0.03))}, end=end) == {}
    assert len(runs) <= 3


@pytest.mark.slow
def test_contestants_take_turns_and_each_has_its_own_time():
    order = []
    found = time_steadily(
        {"short": lambda: (order.append("short"), work(2_000)), "long": lambda: (order.append("long"), work(60_000))}, serial=True
    )
    assert found["long"].ms > 5 * found["short"].ms
    assert abs(order.count("short") - order.count("long")) == 0
    assert all(set(order[i : i + 2]) == {"short", "long"} for i in range(0, len(order), 2))


def test_a_thread_that_computes_beside_one_run_does_not_shorten_the_others():
    runs = iter(range(10_000))

    def run() -> None:
        other = threading.Thread(target=work, args=(200_000 if next(runs) == 4 else 0,))
        other.start()
        time.sleep(0.02)
        other.join()

    assert time_steadily({"waits": run}, serial=True)["waits"].ms >= 19


def test_rounds_stay_between_their_bounds():
    count = []
    time_steadily({"x": lambda: count.append(work(1_000))}, least=3, most=4)
    assert 3 <= len(count) - 2 <= 4


def test_spread_is_that_of_the_quartiles():
    assert Steady(10.0, 1.0, 20, 0).spread == pytest.approx(0.1349)
    assert not Steady(10.0, 1.0, 20, 0).unsteady


def test_preference_is_given_back():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with preferred():
        assert os.getpriority(os.PRIO_PROCESS, 0) <= before
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
