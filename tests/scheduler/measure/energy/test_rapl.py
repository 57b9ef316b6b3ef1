"""RAPL's counters are added up over packages and memory, also where they run over."""

import os
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.measure.energy.counters import CounterError
from scheduler.measure.energy.loop import Rapl, zones
from tests.scheduler.measure.energy.trees import MOST_UJ, add, rapl, write

__all__ = ["rapl"]


def test_packages_and_memory_count_once_each(rapl):
    meter = Rapl(rapl)
    for path in zones(rapl):
        add(path / "energy_uj", 100_000)
    assert meter.read_mj() == pytest.approx(300.0)  # two packages and one memory
    assert meter.name == "RAPL: package-0, dram, package-1"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.integers(0, MOST_UJ - 1), max_size=6))
def test_a_counter_that_runs_over_loses_nothing(rapl, steps):
    meter, seen = Rapl(rapl), [0.0]
    for step in steps:
        add(rapl / "powercap" / "intel-rapl:1" / "energy_uj", step)
        seen.append(meter.read_mj())
    assert seen[-1] == pytest.approx(sum(steps) / 1e3)
    assert all(after >= before for before, after in pairwise(seen))


@pytest.mark.parametrize(("value", "what"), [("NaN", "no whole number"), ("-5", "energy is not negative"), ("", "no whole number")])
def test_bad_counter_is_a_sentence(rapl, value, what):
    meter = Rapl(rapl)
    write(rapl / "powercap" / "intel-rapl:0", energy_uj=value)
    with pytest.raises(CounterError, match=what):
        meter.read_mj()
    with pytest.raises(CounterError, match=what):
        Rapl(rapl)


def test_counter_that_went_back_beyond_its_range_is_refused(rapl):
    meter = Rapl(rapl)
    write(rapl / "powercap" / "intel-rapl:1", energy_uj=5, max_energy_range_uj=10)
    with pytest.raises(CounterError, match="went back from"):
        meter.read_mj()


def test_vanished_counter_is_refused(rapl):
    meter = Rapl(rapl)
    (rapl / "powercap" / "intel-rapl:0" / "energy_uj").unlink()
    with pytest.raises(CounterError, match="cannot be read"):
        meter.read_mj()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_counter_without_permission_says_how_to_get_it(rapl):
    (rapl / "powercap" / "intel-rapl:0" / "energy_uj").chmod(0)
    with pytest.raises(CounterError, match="may not be read") as caught:
        Rapl(rapl)
    assert "chmod" in caught.value.hint


def test_machine_without_packages_is_refused(tmp_path):
    with pytest.raises(CounterError, match="no counter of a package"):
        Rapl(tmp_path)
