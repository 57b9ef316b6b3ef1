import pytest

from scheduler.measure.steady import MOST, UNSTEADY, time_steadily


def work(turns: int) -> int:
    return sum(i * i for i in range(turns))


@pytest.mark.slow
def test_work_that_differs_from_run_to_run_is_told_to_be_unsteady():
    runs = iter(range(10_000))
    found = time_steadily({"wild": lambda: work(2_000 if next(runs) % 2 else 60_000)}, serial=True)["wild"]
    assert found.unsteady
    assert found.spread > UNSTEADY
    assert found.runs == MOST


@pytest.mark.slow
def test_contestants_take_turns_and_each_has_its_own_time():
    order = []
    found = time_steadily(
        {"short": lambda: (order.append("short"), work(2_000)), "long": lambda: (order.append("long"), work(60_000))}, serial=True
    )
    assert found["long"].ms > 5 * found["short"].ms
    assert abs(order.count("short") - order.count("long")) == 0
    assert all(set(order[i : i + 2]) == {"short", "long"} for i in range(0, len(order), 2))


def test_rounds_stay_between_their_bounds():
    count = []
    time_steadily({"x": lambda: count.append(work(1_000))}, least=3, most=4)
    assert 3 <= len(count) - 2 <= 4
