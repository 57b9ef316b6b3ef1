"""Energy of an inference is what the counter moves by, over the inferences that moved it."""

import pytest

from scheduler.measure.energy.loop import find_meter, measure_energy
from scheduler.measure.energy.loop import Rapl
from scheduler.measure.energy.supply import Supply
from tests.scheduler.measure.energy.trees import add, battery, rapl

__all__ = ["battery", "rapl"]


def test_rapl_comes_before_the_battery(rapl, battery):
    assert isinstance(find_meter(rapl), Rapl)


def test_battery_counts_where_there_is_no_rapl(battery):
    assert isinstance(find_meter(battery), Supply)


def test_energy_of_an_inference_is_what_it_moved_the_counter_by(rapl):
    runs = []

    def run():
        runs.append(1)
        add(rapl / "powercap" / "intel-rapl:0" / "energy_uj", 2_500)

    found = measure_energy(run, rapl, loops=3)
    assert found.mj == pytest.approx(2.5)
    assert (found.inferences, found.reason) == (len(runs), None)
    assert found.counter.startswith("RAPL")


def test_counter_that_moves_seldom_is_waited_for(rapl):
    runs = []

    def run():
        runs.append(1)
        if len(runs) % 50 == 0:
            add(rapl / "powercap" / "intel-rapl:0" / "energy_uj", 50_000)

    found = measure_energy(run, rapl, loops=1)
    assert found.mj == pytest.approx(1.0, rel=50 / len(runs))


def test_counter_that_never_moves_is_a_reason(rapl):
    found = measure_energy(lambda: None, rapl)
    assert found.mj is None
    assert "has not moved" in found.reason


def test_counter_that_vanishes_meanwhile_is_a_reason(rapl):
    def run():
        (rapl / "powercap" / "intel-rapl:0" / "energy_uj").unlink(missing_ok=True)

    found = measure_energy(run, rapl)
    assert (found.mj, found.counter) == (None, None)
    assert "cannot be read" in found.reason


def test_machine_without_counters_says_so_in_one_sentence_and_runs_nothing(tmp_path):
    found = measure_energy(lambda: 1 / 0, tmp_path)
    assert (found.mj, found.inferences) == (None, 0)
    assert "neither counters of RAPL" in found.reason
