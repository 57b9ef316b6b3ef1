"""Measurements of contestants that take turns, and how sure they are."""

import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates import get_delegate
from scheduler.measure.steady import (
    BATCHES,
    MOST_GBS,
    T_975,
    Handover,
    LinkTimes,
    Reads,
    fit_link,
    play_round,
    ratio_interval,
    time_reads,
    time_steadily,
    time_together,
)
from stretch.tools.profiling.places import write_network
from stretch.tools.profiling.run import computing, handed


def work(turns: int) -> int:
    return sum(i * i for i in range(turns))


def test_rounds_stay_between_their_bounds():
    count = []
    time_steadily({"x": lambda: count.append(work(1_000))}, least=3, most=4)
    assert 3 <= len(count) - 2 <= 4


def test_works_that_need_the_same_thing_slow_each_other_down():
    # a lock that is held for a fixed time, whatever else this machine does
    lock, never = threading.Lock(), threading.Event()

    def work() -> None:
        with lock:
            never.wait(0.02)
        never.wait(0.002)

    together = time_together(work, work, runs=3, phases=2)
    assert together.first > 1.1
    assert together.second > 1.1


@given(st.integers(1, 6), st.integers(0, 4))
def test_every_contestant_runs_once_a_round_and_is_first_as_often_as_the_others(count, times):
    ran = []
    contestants = {str(i): lambda i=i: ran.append(i) or i for i in range(count)}
    first = []
    for number in range(count * times):
        ran.clear()
        assert play_round(contestants, number) == {str(i): i for i in range(count)}
        assert sorted(ran) == list(range(count))
        first.append(ran[0])
    assert [first.count(i) for i in range(count)] == [times] * count


positive = st.floats(0.01, 100.0)


def test_quantiles_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    assert len(T_975) == BATCHES - 1
    assert [round(float(stats.t.ppf(0.975, df)), 6) for df in range(1, BATCHES)] == list(T_975)


def test_interval_of_one_number_a_batch_is_students_on_logarithms():
    stats = pytest.importorskip("scipy.stats")
    times, others = [3.0, 3.1, 2.9, 3.3, 3.2, 2.8, 3.0, 3.05], [2.0, 2.2, 2.1, 1.9, 2.0, 2.3, 2.1, 2.05]
    logs = np.log(np.array(times) / np.array(others))
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    result = ratio_interval(times, others)
    assert (result.low, result.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)


def covered(draw, truth, trials=300, rounds=40):
    rng = np.random.default_rng(7)
    ratio_intervals = [ratio_interval(*draw(rng, rounds)) for _ in range(trials)]
    return np.mean([item.low <= truth <= item.high for item in ratio_intervals])


def test_interval_holds_the_true_ratio_of_independent_rounds():
    def draw(rng, rounds):
        return 2.0 * rng.lognormal(0, 0.1, rounds), rng.lognormal(0, 0.1, rounds)

    assert covered(draw, 2.0) >= 0.92


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=60))
def test_interval_holds_its_ratio_and_turns_round_with_the_contestants(pairs):
    a, b = zip(*pairs, strict=True)
    one, other = ratio_interval(a, b), ratio_interval(b, a)
    assert one.low <= one.value <= one.high
    assert one.low == pytest.approx(1 / other.high, rel=1e-9)
    assert one.side == -other.side


SIZES = [(1_000, 1_000), (1_000_000, 1_000), (1_000, 1_000_000), (4_000_000, 4_000_000)]


@given(st.floats(0.001, 5), st.floats(0.1, 100), st.floats(0.1, 100))
def test_a_link_without_noise_is_found_again(fixed, to, back):
    runs = [Handover(i, o, fixed + i / (to * 1e6) + o / (back * 1e6)) for i, o in SIZES]
    result = fit_link(runs)
    assert (result.fixed_ms, result.to_gbs, result.back_gbs) == pytest.approx((fixed, to, back), rel=1e-4)


def test_nothing_is_negative_where_large_tensors_are_handed_over_as_fast_as_small_ones():
    result = fit_link([Handover(i, o, 1.0 - i * 1e-8) for i, o in SIZES])
    assert result.fixed_ms > 0
    assert result.to_gbs == MOST_GBS
    assert 0 < result.back_gbs <= MOST_GBS


def test_what_a_link_states_is_an_end_where_both_states_are_dearer():
    assert Reads(10**6, 10**6, (4.5,) * 5, (6.0,) * 5, 20.0, 0.0).spread(LinkTimes(1.0, 1.0, 1.0)) == pytest.approx((1.0, 2.0))


@pytest.mark.opencl
@pytest.mark.torch
def test_a_device_is_measured_in_both_states(tmp_path):
    delegate, invocations = get_delegate("opencl").create_untuned(()), []
    for graph in (handed(16, 32, 1), computing()):
        compiled = delegate.compile(write_network(graph, tmp_path / f"{graph.name}.onnx"))
        invocations.append(
            compiled.bind(*([np.zeros(shape, np.float32) for shape in ends.values()] for ends in (compiled.inputs, compiled.outputs)))
        )
    reads = time_reads(*invocations, (65536, 64), 0.0, turns=3)
    assert (len(reads.idle_ms), len(reads.working_ms)) == (3, 3)
    assert min(*reads.idle_ms, *reads.working_ms) >= 0
    assert reads.kernel_ms > 0
    assert 0 <= reads.feeding <= 1
