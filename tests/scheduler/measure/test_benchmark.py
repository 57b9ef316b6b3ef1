import pytest

from scheduler.checks.verify import random_input
from scheduler.delegates.null import NullDelegate
from scheduler.measure.benchmark import Effort, benchmark, ideal_ms
from scheduler.runtime.session import Session


def measured(path, mapping=None, rounds=3, **options):
    with Session(path, mapping, **options) as session:
        return benchmark(session, random_input(session.bundle), Effort(rounds, warmup=1))


def test_every_contestant_is_measured_as_often_and_checked(bundle_dir):
    result = measured(bundle_dir)
    assert result.branched.runs == result.whole.runs == result.sequential.runs == 3
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


@pytest.mark.slow
def test_efficiency_is_ideal_over_measured_in_the_same_round_and_both_are_at_least_the_known_costs(bundle_dir):
    cost = NullDelegate({"stem": 0.02, "s1.cpu": 0.02, "s1.gpu": 0.04, "s2.cpu": 0.03, "s2.gpu": 0.01})
    result = measured(bundle_dir, {"cpu": "null", "gpu": "null"}, rounds=1, delegates={"null": cost})
    assert result.ideal_ms >= 90
    assert result.efficiency == pytest.approx(result.ideal_ms / result.branched.median_ms)
    assert result.branched.median_ms >= 90


def test_rounds_go_on_until_ratios_are_known_or_the_time_is_over(bundle_dir):
    with Session(bundle_dir) as session:
        x = random_input(session.bundle)
        easy = benchmark(session, x, Effort(rounds=4, warmup=0, width=1e9, least_seconds=0.0))
        late = benchmark(session, x, Effort(rounds=4, warmup=0, width=0.0, seconds=0.0))
        more = benchmark(session, x, Effort(rounds=4, warmup=0, width=0.0, seconds=0.5))
        least = benchmark(session, x, Effort(rounds=4, warmup=0, width=1e9, least_seconds=0.5))
    assert (easy.branched.runs, late.branched.runs) == (4, 4)
    assert more.branched.runs > 4
    assert more.seconds >= 0.5
    assert least.branched.runs > 4
    assert least.seconds >= 0.5
