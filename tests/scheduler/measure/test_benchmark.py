"""Benchmarks of bundles, their verdict and their traces."""

import numpy as np
import pytest

from scheduler.checks.verify import random_input
from scheduler.measure.benchmark import Benchmark, Effort, Timing, benchmark, ideal_ms, judge_speed
from scheduler.runtime.session import Session


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
