"""Counters of energy, on trees of files like those of Linux."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.measure.energy import CounterError, Rapl, Supply, measure_energy, read_number, zones

MOST_UJ = 262_143_328_850


@pytest.fixture
def rapl(tmp_path):
    """Two packages with what lies within them, and the platform that holds both: energy in µJ by folder."""
    zones = {
        "intel-rapl:0": ("package-0", 1_000),
        "intel-rapl:0:0": ("core", 500),
        "intel-rapl:0:1": ("dram", 300),
        "intel-rapl:1": ("package-1", MOST_UJ - 1_000),
        "intel-rapl:2": ("psys", 9_000),
        "intel-rapl-mmio:0": ("package-0", 7),
    }
    for folder, (name, energy) in zones.items():
        path = tmp_path / "powercap" / folder
        path.mkdir(parents=True)
        write(path, name=name, energy_uj=energy, max_energy_range_uj=MOST_UJ)
    (tmp_path / "powercap" / "intel-rapl").mkdir()
    return tmp_path


@pytest.fixture
def battery(tmp_path):
    """A battery that gives 4 V × 1.5 A, and a charger that gives nothing."""
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
    """Let a counter go on; where it would be larger than it can be, it begins anew."""
    most = int((path.parent / "max_energy_range_uj").read_text())
    path.write_text(f"{(int(path.read_text()) + number) % most}\n")


@pytest.mark.parametrize("text", ["", "NaN", "1.5", "N/A", "0x10"])
def test_what_is_no_whole_number_is_refused(tmp_path, text):
    (tmp_path / "it").write_text(text)
    with pytest.raises(CounterError, match="which is no whole number"):
        read_number(tmp_path / "it")


def test_energy_of_an_inference_is_what_it_moved_the_counter_by(rapl):
    result = measure_energy(lambda: add(rapl / "powercap" / "intel-rapl:0" / "energy_uj", 2_500), rapl, loops=3)
    assert result.mj == pytest.approx(2.5)
    assert result.reason is None
    assert result.counter.startswith("RAPL")


def test_counter_that_never_moves_is_a_reason(rapl):
    result = measure_energy(lambda: None, rapl)
    assert result.mj is None
    assert "has not moved" in result.reason


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


def bat(root):
    return root / "power_supply" / "BAT0"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=st.lists(st.tuples(st.floats(0.001, 10), st.integers(1, 10**8), st.booleans()), min_size=1, max_size=6))
def test_energy_is_the_integral_of_power_whatever_the_sign(battery, samples):
    at = [0.0]
    meter = Supply(battery, clock=lambda: round(at[0] * 1e9))
    seconds, watts = [0.0], [6.0]
    mj = 0.0
    for wait, microwatts, negative in samples:
        at[0] += wait
        write(bat(battery), power_now=-microwatts if negative else microwatts)
        mj = meter.read_mj()
        seconds.append(at[0])
        watts.append(microwatts / 1e6)
    (bat(battery) / "power_now").unlink()
    assert mj == pytest.approx(1e3 * np.trapezoid(watts, seconds), rel=1e-6)


@pytest.mark.parametrize("status", ["Charging", "Full", "Not charging"])
def test_battery_that_is_charged_is_refused(battery, status):
    write(bat(battery), status=status)
    with pytest.raises(CounterError, match="not discharging"):
        Supply(battery)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"current_now": 0}, "a power of 0 W"),
        ({"current_now": "NaN"}, "no whole number"),
        ({"voltage_now": ""}, "no whole number"),
        ({"power_now": 2_000_000_000_000}, "which no battery gives"),
    ],
)
def test_bad_numbers_are_sentences(battery, values, what):
    meter = Supply(battery)
    write(bat(battery), **values)
    with pytest.raises(CounterError, match=what):
        meter.read_mj()
