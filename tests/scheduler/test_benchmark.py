import numpy as np
import pytest

from scheduler.benchmark import benchmark, ideal_ms, shares_a_core, used_cores
from scheduler.cores import available_cores
from scheduler.delegates.null import NullDelegate
from scheduler.session import Session
from scheduler.verify import random_input


def measured(path, mapping=None, **options):
    with Session(path, mapping, **options) as session:
        return benchmark(session, random_input(session.bundle), repeat=3, warmup=1)


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
    result = measured(bundles.two_branches(tmp_path / "b"), {"cpu": "cpu0", "gpu": "cpu0"})
    assert result.efficiency is None
    assert result.ideal_ms > 0


def test_ideal_is_the_sum_over_segments_of_the_slowest_branch(bundle_dir):
    with Session(bundle_dir) as session:
        alone = {"stem": 1.0, "s1.cpu": 2.0, "s1.gpu": 3.0, "s2.cpu": 5.0, "s2.gpu": 4.0, "head": 0.5}
        assert ideal_ms(session, alone) == 1 + 3 + 5 + 0.5


def test_efficiency_is_ideal_over_measured_and_both_are_at_least_the_known_costs(bundle_dir):
    cost = NullDelegate({"stem": 0.02, "s1.cpu": 0.02, "s1.gpu": 0.04, "s2.cpu": 0.03, "s2.gpu": 0.01})
    result = measured(bundle_dir, {"cpu": "null", "gpu": "null"}, delegates={"null": cost})
    assert result.ideal_ms >= 90
    assert result.efficiency == pytest.approx(result.ideal_ms / result.branched.median_ms)
    assert result.branched.median_ms >= 90


def test_sharing_is_seen_from_the_queues(bundle_dir):
    with Session(bundle_dir, {"cpu": "cpu0", "gpu": "cpu0"}) as session:
        assert shares_a_core(session)
        assert used_cores(session) == (0,)
    with Session(bundle_dir, {"cpu": "null", "gpu": "null"}) as session:
        assert not shares_a_core(session)
        assert used_cores(session) == available_cores()


def test_input_is_the_same_for_one_seed_and_of_the_models_shape(bundle_dir):
    with Session(bundle_dir) as session:
        x = random_input(session.bundle, 7)
        assert x.shape == (1, 3, 8, 8)
        assert x.dtype == np.float32
        assert np.array_equal(x, random_input(session.bundle, 7))
