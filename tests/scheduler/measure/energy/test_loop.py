"""Energy of an inference is what the counter moves by, over the inferences that moved it."""

import pytest

from scheduler.measure.energy.loop import measure_energy
from tests.scheduler.measure.energy.trees import add, battery, rapl

__all__ = ["battery", "rapl"]


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
