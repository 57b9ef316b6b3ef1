"""Benchmarks of bundles and their verdicts, measurement in turns with intervals, and energy counters."""

import math
import threading
from time import perf_counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.checks.verify import random_input
from scheduler.delegates import get_delegate
from scheduler.delegates.base import AsyncInvocation
from scheduler.measure import steady
from scheduler.measure.benchmark import Benchmark, Effort, Timing, benchmark, ideal_ms, judge_speed
from scheduler.measure.energy import Rapl, Supply, measure_energy, zones
from scheduler.runtime.session import Session
from stretch.profile.places import write_network
from stretch.profile.run import compute_bound_network, handover_network


def test_original_is_timed_on_each_computing_processor_with_the_bundles_delegate(bundle_dir):
    names = {}
    for delegate in ("reference", "null_async"):
        with Session(bundle_dir, {"gpu": delegate}) as session:
            names[delegate] = set(benchmark(session, random_input(session.bundle), Effort(3, warmup=1)).rounds)
    assert {"original, gpu on reference", "sequential_same_macs, gpu on reference"} <= names["reference"]
    # a delegate that computes nothing is no baseline
    assert not any("null" in name for name in names["null_async"])


def test_lower_bound_is_the_sum_over_segments_of_the_slowest_branch(bundle_dir):
    with Session(bundle_dir) as session:
        branch_ms = {"stem": 1.0, "s1.cpu": 2.0, "s1.gpu": 3.0, "s2.cpu": 5.0, "s2.gpu": 4.0, "head": 0.5}
        assert ideal_ms(session, branch_ms) == 1 + 3 + 5 + 0.5


def test_rounds_continue_until_the_interval_is_narrow_or_the_time_is_over(bundle_dir):
    with Session(bundle_dir) as session:
        for limits, minimum in (
            *(({"width": 1e9, "least_seconds": 0.0}, True), ({"width": 0.0, "seconds": 0.0}, True)),
            *(({"width": 0.0, "seconds": 0.5}, False), ({"width": 1e9, "least_seconds": 0.5}, False)),
        ):
            result = benchmark(session, random_input(session.bundle), Effort(rounds=4, warmup=0, **limits))
            assert result.runs == 4 if minimum else result.seconds >= 0.5


NAMES = ("branched", "original, 2 threads", "sequential_same_macs, 1 thread", "same net as one graph, 2 threads")


def contestants(times, noise=0.01, rounds=40):
    """A benchmark in which the four networks take `times`, in ms, with noise."""
    rng = np.random.default_rng(0)
    series = {name: tuple(t * rng.lognormal(0, noise, rounds)) for name, t in zip(NAMES, times, strict=True)}
    timing = {name: Timing(name, float(np.median(v)), float(np.percentile(v, 90))) for name, v in series.items()}
    original, matched, whole = (timing[name] for name in NAMES[1:])
    return Benchmark(timing["branched"], original, matched, whole, (), (0, 1), series, {}, 1.0, None, None, (), np.zeros(1), 1.0)


LOSES = ((11, "same net as one graph, 2 threads takes 9.00"), (8, "sequential_same_macs, 1 thread takes 8.00"))


@pytest.mark.parametrize(
    ("times", "message", "winner"),
    [
        ((10, 9, 9, 9), "loses here: 0.90×", "sequential"),
        ((10, 9, 8, 9), "loses here: 0.80× (0.80–0.80) against the best sequential run (sequential_same_macs, 1 thread:", "sequential"),
        ((10, 12, 11, 13), "wins here: 1.10×", "branched"),
        *(((10, 12, same, 9), f"loses to a sequential baseline on the same 2 cores: {name}", "sequential") for same, name in LOSES),
        ((10, 10, 8, 12), "or the original: too close to call", "sequential"),
        *(((10, 10, 11, 12), "too close to call", None), ((10, 12, 10, 13), "too close to call against sequential_same_macs", None)),
    ],
)
def test_verdict_names_the_fastest_network(times, message, winner):
    result = judge_speed(contestants(times, noise=0.001))
    assert message in result.text
    assert result.winner == winner


@pytest.mark.parametrize("times", [(10, 9.5, 9.6, 9.7), (10.5, 10, 10.1, 10.2)])
def test_verdict_has_no_winner_if_the_interval_contains_one(times):
    result = contestants(times, noise=0.3)
    outcome = judge_speed(result)
    ratio = outcome.ratios[result.best_sequential.name]
    assert ratio.low < 1 < ratio.high
    assert outcome.winner is None
    assert f"({ratio.low:.2f}–{ratio.high:.2f})" in outcome.text


def test_number_of_rounds_stays_in_its_bounds():
    count = []
    (time,) = steady.time_steadily({"x": lambda: count.append(sum(range(10_000)))}, min_rounds=3, max_rounds=4).values()
    assert 3 <= time.runs <= 4
    # warm-up runs come before all rounds and before each round
    assert len(count) > 2 * time.runs


def test_two_functions_that_share_a_resource_slow_each_other_down():
    # a lock that is held for a fixed time, independent of the machine's load
    lock, never = threading.Lock(), threading.Event()

    def work() -> None:
        with lock:
            never.wait(0.02)
        never.wait(0.002)

    assert min(steady.time_together(work, work, runs=3, phases=2)) > 1.1


@given(st.integers(1, 6), st.integers(0, 4))
def test_every_network_runs_once_per_round_and_is_first_equally_often(count, times):
    ran = []
    contestants = {str(i): lambda i=i: ran.append(i) or i for i in range(count)}
    first = []
    for number in range(count * times):
        ran.clear()
        assert steady.play_round(contestants, number) == {str(i): i for i in range(count)}
        assert sorted(ran) == list(range(count))
        first.append(ran[0])
    assert [first.count(i) for i in range(count)] == [times] * count


positive = st.floats(0.01, 100.0)


def test_interval_with_one_number_per_batch_is_students_interval_of_logarithms():
    stats = pytest.importorskip("scipy.stats")
    assert [round(float(stats.t.ppf(0.975, df)), 6) for df in range(1, steady.BATCHES)] == list(steady.T_975)
    times, other_times = [3.0, 3.1, 2.9, 3.3, 3.2, 2.8, 3.0, 3.05], [2.0, 2.2, 2.1, 1.9, 2.0, 2.3, 2.1, 2.05]
    logs = np.log(np.array(times) / np.array(other_times))
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    result = steady.ratio_interval(times, other_times)
    assert (result.low, result.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)


def test_interval_covers_the_true_ratio_and_two_contradicting_rounds_give_none():
    rng = np.random.default_rng(7)
    ratio_intervals = [steady.ratio_interval(2.0 * rng.lognormal(0, 0.1, 40), rng.lognormal(0, 0.1, 40)) for _ in range(300)]
    assert np.mean([item.low <= 2.0 <= item.high for item in ratio_intervals]) >= 0.92
    few, many = steady.ratio_interval([1.0, 30.0], [2.0, 2.0]), steady.ratio_interval([1.0, 1.1, 1.0, 1.1], [1.0] * 4)
    assert few.low < 0.01 < 100 < few.high
    assert str(few) == str(steady.ratio_interval([1.0], [2.0])) == "too few rounds for an interval"
    assert str(many) == f"{many.low:.2f}–{many.high:.2f}"


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=60))
def test_interval_contains_its_ratio_and_inverts_with_the_order(pairs):
    a, b = zip(*pairs, strict=True)
    one, other = steady.ratio_interval(a, b), steady.ratio_interval(b, a)
    assert one.low <= one.value <= one.high
    assert (one.low, one.side) == (pytest.approx(1 / other.high, rel=1e-9), -other.side)


SIZES = [(1_000, 1_000), (1_000_000, 1_000), (1_000, 1_000_000), (4_000_000, 4_000_000)]


@given(st.floats(0.001, 5), st.floats(0.1, 100), st.floats(0.1, 100))
def test_fit_recovers_a_link_without_noise(fixed, to, back):
    runs = [steady.Handover(i, o, fixed + i / (to * 1e6) + o / (back * 1e6)) for i, o in SIZES]
    result = steady.fit_link(runs)
    assert (result.fixed_ms, result.to_gbs, result.back_gbs) == pytest.approx((fixed, to, back), rel=1e-4)


def test_link_has_no_negative_number_and_its_spread_includes_the_stated_time():
    # large tensors are transferred as fast as small ones
    result = steady.fit_link([steady.Handover(i, o, 1.0 - i * 1e-8) for i, o in SIZES])
    assert result.fixed_ms > 0
    assert 0 < result.back_gbs <= result.to_gbs == steady.MAX_GBS
    assert steady.TransferTimes(10**6, 10**6, (4.5,) * 5, (6.0,) * 5, 20.0, 0.0).spread(steady.LinkTimes(1.0, 1.0, 1.0)) == pytest.approx(
        (1.0, 2.0)
    )


@pytest.mark.opencl
@pytest.mark.torch
def test_device_is_measured_idle_and_working(tmp_path):
    delegate, invocations = get_delegate("opencl").create_untuned(()), []
    for graph in (handover_network(16, 32, 1), compute_bound_network()):
        compiled = delegate.compile(write_network(graph, tmp_path / f"{graph.name}.onnx"))
        ends = ([np.zeros(shape, np.float32) for shape in ends.values()] for ends in (compiled.inputs, compiled.outputs))
        invocations.append(compiled.bind(*ends))
    reads = steady.time_reads(*invocations, (65536, 64), 0.0, turns=3)
    assert (len(reads.idle_ms), len(reads.working_ms)) == (3, 3)
    assert min(*reads.idle_ms, *reads.working_ms) >= 0
    assert reads.kernel_ms > 0
    assert 0 <= reads.feeding <= 1


class Spinning(AsyncInvocation):
    """Device work of `ms` milliseconds, for which the driver waits in a busy loop."""

    def __init__(self, ms):
        self.ms = ms

    def enqueue(self):
        self.end = perf_counter() + self.ms / 1e3

    def wait(self):
        while perf_counter() < self.end:
            pass


def test_driver_that_waits_in_a_busy_loop_has_a_low_feeding_share():
    assert steady.time_reads(Spinning(0.1), Spinning(5.0), (1, 1), 0.0, turns=5).feeding < 0.5


MOST_UJ = 262_143_328_850


@pytest.fixture
def rapl(tmp_path):
    """Folder with RAPL counters, in µJ: two packages, a core and a memory zone, and the platform."""
    zones = {"intel-rapl:0": ("package-0", 1_000), "intel-rapl:0:0": ("core", 500), "intel-rapl:0:1": ("dram", 300)}
    zones |= {"intel-rapl:1": ("package-1", MOST_UJ - 1_000), "intel-rapl:2": ("psys", 9_000), "intel-rapl-mmio:0": ("package-0", 7)}
    for folder, (name, energy) in zones.items():
        path = tmp_path / "powercap" / folder
        path.mkdir(parents=True)
        write(path, name=name, energy_uj=energy, max_energy_range_uj=MOST_UJ)
    (tmp_path / "powercap" / "intel-rapl").mkdir()
    return tmp_path


@pytest.fixture
def battery(tmp_path):
    """Folder with a battery that supplies 4 V × 1.5 A, and a disconnected charger."""
    folder = tmp_path / "power_supply" / "BAT0"
    folder.mkdir(parents=True)
    write(folder, type="Battery", status="Discharging", current_now=-1_500_000, voltage_now=4_000_000)
    (tmp_path / "power_supply" / "AC").mkdir()
    write(tmp_path / "power_supply" / "AC", type="Mains", online=0)
    return tmp_path


def write(folder, **values):
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


def add(path, number):
    """Increase a counter, which wraps around at its maximum."""
    most = int((path.parent / "max_energy_range_uj").read_text())
    path.write_text(f"{(int(path.read_text()) + number) % most}\n")


def test_energy_of_an_inference_is_the_counters_difference_or_has_a_reason(rapl):
    result = measure_energy(lambda: add(rapl / "powercap" / "intel-rapl:0" / "energy_uj", 2_500), rapl, loops=3)
    assert (result.mj, result.reason, result.counter[:4]) == (pytest.approx(2.5), None, "RAPL")
    idle = measure_energy(lambda: None, rapl)
    assert (idle.mj, "has not moved" in idle.reason) == (None, True)
    # each package and memory zone counts once
    meter = Rapl(rapl)
    for path in zones(rapl):
        add(path / "energy_uj", 100_000)
    assert meter.read_mj() == pytest.approx(300.0)  # two packages and one memory
    assert meter.name == "RAPL: package-0, dram, package-1"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.integers(0, MOST_UJ - 1), max_size=6))
def test_counter_that_wraps_around_loses_no_energy(rapl, steps):
    meter, readings = Rapl(rapl), [0.0]
    for step in steps:
        add(rapl / "powercap" / "intel-rapl:1" / "energy_uj", step)
        readings.append(meter.read_mj())
    assert (readings, readings[-1]) == (sorted(readings), pytest.approx(sum(steps) / 1e3))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(({"energy_uj": text}, "no whole number") for text in ("", "NaN", "1.5", "N/A", "0x10")),
        ({"energy_uj": "-5"}, "energy is not negative"),
        ({"energy_uj": 5, "max_energy_range_uj": 10}, "went back from"),
    ],
)
def test_counter_without_a_number_or_beyond_its_range_is_refused(rapl, values, message):
    meter = Rapl(rapl)
    write(rapl / "powercap" / ("intel-rapl:1" if len(values) > 1 else "intel-rapl:0"), **values)
    with pytest.raises(StretchError, match=message):
        meter.read_mj()
    if len(values) == 1:
        with pytest.raises(StretchError, match=message):
            Rapl(rapl)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=st.lists(st.tuples(st.floats(0.001, 10), st.integers(1, 10**8), st.booleans()), min_size=1, max_size=6))
def test_energy_is_the_integral_of_power_for_either_sign(battery, samples):
    seconds, watts = [0.0], [6.0]
    meter = Supply(battery, clock=lambda: round(seconds[-1] * 1e9))
    for wait, microwatts, negative in samples:
        seconds.append(seconds[-1] + wait)
        write(battery / "power_supply/BAT0", power_now=-microwatts if negative else microwatts)
        mj = meter.read_mj()
        watts.append(microwatts / 1e6)
    (battery / "power_supply/BAT0/power_now").unlink()
    assert mj == pytest.approx(1e3 * np.trapezoid(watts, seconds), rel=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(({"status": status}, "not discharging") for status in ("Charging", "Full", "Not charging")),
        ({"current_now": 0}, "a power of 0 W"),
        ({"current_now": "NaN"}, "no whole number"),
        ({"voltage_now": ""}, "no whole number"),
        ({"power_now": 2_000_000_000_000}, "which no battery gives"),
    ],
)
def test_charging_battery_and_invalid_numbers_are_refused(battery, values, message):
    meter = None if "status" in values else Supply(battery)
    write(battery / "power_supply/BAT0", **values)
    with pytest.raises(StretchError, match=message):
        (Supply(battery) if meter is None else meter).read_mj()
