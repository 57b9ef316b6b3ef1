"""A battery's power is summed up over time, whatever sign its driver gives it."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.measure.energy.counters import CounterError
from scheduler.measure.energy.supply import Supply, supplies
from tests.scheduler.measure.energy.trees import battery, write

__all__ = ["battery"]


def bat(root):
    """The battery's folder."""
    return root / "power_supply" / "BAT0"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=st.lists(st.tuples(st.floats(0.001, 10), st.integers(1, 10**8), st.booleans()), min_size=1, max_size=6))
def test_energy_is_the_integral_of_power_whatever_the_sign(battery, samples):
    at = [0.0]
    meter = Supply(battery, clock=lambda: round(at[0] * 1e9))
    seconds, watts = [0.0], [6.0]
    found = 0.0
    for wait, microwatts, negative in samples:
        at[0] += wait
        write(bat(battery), power_now=-microwatts if negative else microwatts)
        found = meter.read_mj()
        seconds.append(at[0])
        watts.append(microwatts / 1e6)
    (bat(battery) / "power_now").unlink()
    assert found == pytest.approx(1e3 * np.trapezoid(watts, seconds), rel=1e-6)


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


def test_rails_without_a_status_are_read_and_batteries_come_first(battery):
    rail = battery / "power_supply" / "A_rail"
    rail.mkdir()
    write(rail, type="Mains", power_now=3_000_000)
    assert [path.name for path in supplies(battery)] == ["BAT0", "A_rail"]
    for file in bat(battery).iterdir():
        file.unlink()
    assert Supply(battery).name == "power_supply: A_rail"
