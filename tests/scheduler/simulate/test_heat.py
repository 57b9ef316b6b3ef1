from dataclasses import replace
from math import exp, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import UsageError
from predictors.thermal import Thermal, Throttle
from scheduler.simulate.scene import Heat, Power, powers, thermal_of
from tests.effort import examples
from tests.predictors.specified import specified

STEPS = (Throttle(40.0, 0.8), Throttle(50.0, 0.5))
CHIP = Thermal("assumed", 10.0, 60.0, 25.0, STEPS, 3.0, 1.0, {"gpu": 4.0, "cpu": 2.0})
GPU = {"gpu": Power(4.0, 0.0)}


def test_temperature_follows_the_formula_of_one_body():
    heat = Heat(replace_steps(()), GPU)
    heat.set({"gpu": 1.0})
    heat.advance(60_000.0)
    assert heat.temperature_c == pytest.approx(25 + 40 * (1 - exp(-1)))
    assert heat.processors_mj == pytest.approx(240_000)
    heat.set({})
    heat.advance(120_000.0)
    assert heat.temperature_c == pytest.approx(25 + 40 * (1 - exp(-1)) * exp(-1))
    assert (heat.until, heat.changes, heat.speed) == (inf, 0, 1.0)


def replace_steps(steps):
    return Thermal("assumed", 10.0, 60.0, 25.0, steps, 3.0, 1.0, {"gpu": 4.0})


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.floats(1, 1e5), st.floats(0, 1)), min_size=1, max_size=20))
def test_moment_of_a_step_is_when_the_temperature_gets_there_and_agrees_with_small_steps(phases):
    heat, now, small = Heat(CHIP, GPU), 0.0, 25.0
    for length, share in phases:
        end = now + length
        while now < end:
            heat.set({"gpu": share})
            speed, until = heat.speed, min(end, heat.until)
            watts, steps = 4.0 * share * speed, 200
            for _ in range(steps):  # Euler's method, as an independent sum
                small += (25 + 10 * watts - small) * (until - now) / steps / 60_000
            heat.advance(until)
            assert heat.temperature_c == pytest.approx(small, abs=0.15)
            if until == heat.until and until < end:
                heat.change()
            now = until
    assert 25 - 1e-9 <= heat.temperature_c <= 65


def test_power_is_the_profiles_else_the_descriptions():
    mi9 = specified("mi9")
    stated = mi9.processor("cpu").cores.power_w
    assert stated is not None
    assert powers(mi9, CHIP, ["cpu"])["cpu"].computing_w == stated.value
    pixel6 = specified("pixel6")
    if pixel6.processor("gpu").cores.power_w is None:
        assert powers(pixel6, CHIP, ["gpu"])["gpu"].computing_w == 4.0
    bare = replace(mi9, processors={**mi9.processors})
    assert thermal_of(replace(bare, thermal=CHIP)) is CHIP
    with pytest.raises(UsageError, match="says nothing of heat"):
        thermal_of(mi9)
