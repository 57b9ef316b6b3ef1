"""Benchmarks of bundles, their verdict and their traces; measurements of contestants that take turns, and how sure they are."""

import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.checks.verify import random_input
from scheduler.delegates import get_delegate
from scheduler.measure.benchmark import Benchmark, Effort, Timing, benchmark, ideal_ms, judge_speed
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
from scheduler.runtime.session import Session
from stretch.tools.profiling.places import write_network
from stretch.tools.profiling.run import computing, handed


def measured(path, mapping=None, rounds=3, **options):
    with Session(path, mapping, **options) as session:
        return benchmark(session, random_input(session.bundle), Effort(rounds, warmup=1))


def test_every_contestant_is_measured_as_often_and_checked(bundle_dir):
    result = measured(bundle_dir)
    assert result.runs == 3
    assert {len(times) for times in result.rounds.values()} == {3}
    assert len(result.traces) == 3
    assert result.error < 1e-5
    assert result.sequential.name.startswith("original, ")
    assert result.same_macs.name.startswith("sequential_same_macs, ")
    assert result.ratio == pytest.approx(result.sequential.median_ms / result.branched.median_ms)
    assert set(result.alone_ms) == {"stem", "s1.cpu", "s1.gpu", "s2.cpu", "s2.gpu", "head"}


def test_ideal_is_the_sum_over_segments_of_the_slowest_branch(bundle_dir):
    with Session(bundle_dir) as session:
        alone = {"stem": 1.0, "s1.cpu": 2.0, "s1.gpu": 3.0, "s2.cpu": 5.0, "s2.gpu": 4.0, "head": 0.5}
        assert ideal_ms(session, alone) == 1 + 3 + 5 + 0.5


def test_rounds_go_on_until_ratios_are_known_or_the_time_is_over(bundle_dir):
    with Session(bundle_dir) as session:
        x = random_input(session.bundle)
        easy = benchmark(session, x, Effort(rounds=4, warmup=0, width=1e9, least_seconds=0.0))
        late = benchmark(session, x, Effort(rounds=4, warmup=0, width=0.0, seconds=0.0))
        more = benchmark(session, x, Effort(rounds=4, warmup=0, width=0.0, seconds=0.5))
        least = benchmark(session, x, Effort(rounds=4, warmup=0, width=1e9, least_seconds=0.5))
    assert (easy.runs, late.runs) == (4, 4)
    assert more.runs > 4
    assert more.seconds >= 0.5
    assert least.runs > 4
    assert least.seconds >= 0.5


NAMES = ("branched", "original, 2 threads", "sequential_same_macs, 1 thread", "same net as one graph, 2 threads")


def contestants(times, noise=0.01, rounds=40, controls=True):
    """A benchmark in which the four contestants take `times` ms, but for noise."""
    rng = np.random.default_rng(0)
    series = {name: tuple(t * rng.lognormal(0, noise, rounds)) for name, t in zip(NAMES, times, strict=True)}
    timing = {name: Timing(name, float(np.median(v)), float(np.percentile(v, 90))) for name, v in series.items()}
    original, same, whole = (timing[name] for name in NAMES[1:])
    return Benchmark(
        timing["branched"],
        original if controls else None,
        same if controls else None,
        whole,
        (),
        (0, 1),
        series,
        {},
        1.0,
        None,
        None,
        (),
        np.zeros(1),
        1.0,
    )


@pytest.mark.parametrize(
    ("times", "message", "winner"),
    [
        ((10, 9, 9, 9), "branching loses here: 0.90×", "sequential"),
        (
            (10, 9, 8, 9),
            "branching loses here: 0.80× (0.80–0.80) the speed of the best sequential run (sequential_same_macs, 1 thread:",
            "sequential",
        ),
        ((10, 12, 11, 13), "branching wins here: 1.10×", "branched"),
        ((10, 12, 11, 9), "loses to a sequential control on the same 2 cores: same net as one graph, 2 threads takes 9.00", "sequential"),
        ((10, 12, 8, 9), "loses to a sequential control on the same 2 cores: sequential_same_macs, 1 thread takes 8.00", "sequential"),
        ((10, 10, 8, 12), "branching is no clear winner over the original here", "sequential"),
        ((10, 10, 11, 12), "no clear winner: branching has", None),
        ((10, 12, 10, 13), "no clear winner against sequential_same_macs, 1 thread", None),
    ],
)
def test_verdict_names_the_fastest_way(times, message, winner):
    result = judge_speed(contestants(times, noise=0.001))
    assert message in result.text
    assert result.winner == winner


@pytest.mark.parametrize("times", [(10, 9.5, 9.6, 9.7), (10.5, 10, 10.1, 10.2)])
def test_verdict_is_withheld_inside_the_interval_and_gives_it(times):
    result = contestants(times, noise=0.3)
    outcome = judge_speed(result)
    ratio = outcome.ratios[result.best_sequential.name]
    assert ratio.low < 1 < ratio.high
    assert outcome.winner is None
    assert f"({ratio.low:.2f}–{ratio.high:.2f})" in outcome.text


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
