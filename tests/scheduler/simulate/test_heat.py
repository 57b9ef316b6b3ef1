from dataclasses import replace
from math import exp, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import UsageError
from predictors.thermal import Thermal, Throttle
from scheduler.simulate.clock import Clock
from scheduler.simulate.heat import Heat, Power, powers, thermal_of
from scheduler.simulate.load import Load
from scheduler.simulate.networks import Network
from scheduler.simulate.scene import Scene
from tests.effort import examples
from tests.predictors.specified import specified
from tests.scheduler.simulate.plans import single

STEPS = (Throttle(40.0, 0.8), Throttle(50.0, 0.5))
CHIP = Thermal("assumed", 10.0, 60.0, 25.0, STEPS, 3.0, 1.0, {"gpu": 4.0, "cpu": 2.0})
GPU = {"gpu": Power(4.0, 0.0)}


def run(heat, scene, network=None):
    return Clock(network or Network("n", *single("gpu", 100.0)), scene, heat=heat).run()


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


@pytest.mark.slow
def test_hot_chip_slows_down_by_steps_and_latency_with_it():
    heat = Heat(CHIP, GPU)
    found = run(heat, Scene(runs=4000))
    rounded = {round(ms, 3) for ms in found.latencies_ms}
    assert {100.0, 125.0} <= rounded
    assert found.latencies_ms[0] == pytest.approx(100.0)
    assert heat.hottest_c == pytest.approx(50.0)
    assert heat.slowest == 0.5
    assert 0 < heat.throttled_ms < found.elapsed_ms
    assert max(found.latencies_ms) <= 200.0 + 1e-6


def test_load_of_others_heats_the_chip_too():
    quiet, busy = (Heat(CHIP, {"gpu": Power(1.0, 0.0), "cpu": Power(8.0, 0.0)}) for _ in range(2))
    network = Network("n", *single("gpu", 100.0))
    run(quiet, Scene(runs=300), network)
    found = Clock((network,), Scene(runs=300), [(Network("c", *single("cpu", 50.0)), Scene(runs=10**6))], heat=busy).run()
    assert busy.hottest_c > quiet.hottest_c + 10
    assert found.latencies_ms[-1] > 100
    loaded = Heat(CHIP, GPU)
    run(loaded, Scene(runs=100, loads=(Load("gpu", 0.5, 0, 1e5),)))
    # others' share is work of the chip as well: it draws its full power all the time
    assert loaded.processors_mj == pytest.approx(4.0 * 1e5 * 0.2, rel=3)


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
