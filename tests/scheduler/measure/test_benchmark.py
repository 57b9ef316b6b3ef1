import numpy as np
import pytest

from scheduler.checks.verify import random_input
from scheduler.cores import available_cores
from scheduler.delegates.null import NullCompiled, NullDelegate, NullInvocation
from scheduler.measure.benchmark import Effort, benchmark, ideal_ms, shares_a_core, used_cores
from scheduler.runtime.session import Session

#: A core that this process may use.
CORE = available_cores()[0]


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


def test_sequential_is_the_faster_of_one_thread_and_all(bundle_dir):
    result = measured(bundle_dir)
    originals = [t for t in (result.sequential, *result.others) if t.name.startswith("original")]
    assert result.sequential.median_ms == min(t.median_ms for t in originals)


def test_bundle_without_controls_has_no_ratio(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m.update(controls={}, control_macs={}))
    result = measured(bundle_dir)
    assert result.sequential is None
    assert result.same_macs is None
    assert result.ratio is None
    assert result.whole.runs == 3


def test_output_is_not_judged_where_a_delegate_computes_nothing(bundle_dir):
    assert measured(bundle_dir, {"gpu": "null"}).error is None


def test_efficiency_is_not_given_where_processors_share_a_core(bundles, tmp_path):
    result = measured(bundles.two_branches(tmp_path / "b"), {"cpu": f"cpu{CORE}", "gpu": f"cpu{CORE}"})
    assert result.efficiency is None
    assert result.ideal_ms > 0


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


class SlowAlone(NullDelegate):
    """Takes longer where the subgraph before it has not just run, as one whose caches are cold."""

    def __init__(self):
        super().__init__()
        self.last = None

    def compile(self, model):
        owner, stem = self, model.stem

        class Compiled(NullCompiled):
            def bind(self, inputs, outputs):
                class Call(NullInvocation):
                    def enqueue(self):
                        self._seconds = 0.03 if owner.last == stem else 0.001
                        owner.last = stem
                        super().enqueue()

                return Call(0.0)

        shapes = super().compile(model)
        return Compiled(shapes.inputs, shapes.outputs, 0.0)


@pytest.mark.slow
def test_efficiency_is_at_most_one_although_subgraphs_are_slower_alone(bundles, tmp_path):
    delegate = SlowAlone()
    with Session(bundles.two_branches(tmp_path / "b"), {"cpu": "null", "gpu": "null"}, delegates={"null": delegate}) as session:
        x = random_input(session.bundle)
        alone = session.time_alone

        def twice(name):
            alone(name)
            return alone(name)

        session.time_alone = twice
        result = benchmark(session, x, Effort(5, warmup=0))
    assert sum(result.alone_ms.values()) > 150
    assert 0 < result.efficiency <= 1
    assert result.ideal_ms <= result.branched.median_ms


def test_every_contestant_has_a_time_in_every_round(bundle_dir):
    result = measured(bundle_dir, rounds=4)
    names = {result.branched.name, result.whole.name, result.sequential.name, result.same_macs.name, *(t.name for t in result.others)}
    assert result.rounds.keys() == names
    assert {len(values) for values in result.rounds.values()} == {4}
    assert result.sequential.median_ms == pytest.approx(np.median(result.rounds[result.sequential.name]))


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


def test_sharing_is_seen_from_the_queues(bundle_dir):
    with Session(bundle_dir, {"cpu": f"cpu{CORE}", "gpu": f"cpu{CORE}"}) as session:
        assert shares_a_core(session)
        assert used_cores(session) == (CORE,)
    with Session(bundle_dir, {"cpu": "null", "gpu": "null"}) as session:
        assert not shares_a_core(session)
        assert used_cores(session) == available_cores()


def test_input_is_the_same_for_one_seed_and_of_the_models_shape(bundle_dir):
    with Session(bundle_dir) as session:
        x = random_input(session.bundle, 7)
        assert x.shape == (1, 3, 8, 8)
        assert x.dtype == np.float32
        assert np.array_equal(x, random_input(session.bundle, 7))
