import numpy as np
import pytest

from scheduler.measure.benchmark import Benchmark, Timing
from scheduler.measure.verdict import judge_speed

NAMES = ("branched", "original, 2 threads", "sequential_same_macs, 1 thread", "same net as one graph, 2 threads")


def measured(times, noise=0.01, rounds=40, controls=True):
    """A benchmark in which the four contestants take `times` ms, but for noise."""
    rng = np.random.default_rng(0)
    series = {name: tuple(t * rng.lognormal(0, noise, rounds)) for name, t in zip(NAMES, times, strict=True)}
    timing = {name: Timing(name, float(np.median(v)), float(np.percentile(v, 90)), rounds) for name, v in series.items()}
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
    ("times", "told", "winner"),
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
def test_verdict_names_the_fastest_way(times, told, winner):
    found = judge_speed(measured(times, noise=0.001))
    assert told in found.text
    assert found.winner == winner


@pytest.mark.parametrize("times", [(10, 9.5, 9.6, 9.7), (10.5, 10, 10.1, 10.2)])
def test_verdict_is_withheld_inside_the_interval_and_gives_it(times):
    result = measured(times, noise=0.3)
    found = judge_speed(result)
    ratio = found.ratios[result.best_sequential.name]
    assert ratio.low < 1 < ratio.high
    assert found.winner is None
    assert f"({ratio.low:.2f}–{ratio.high:.2f})" in found.text
