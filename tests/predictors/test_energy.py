import dataclasses

import msgspec
import pytest

from predictors.devices import NotNegative, load_device
from predictors.energy import EnergyModel
from predictors.errors import UnknownNameError


def test_energy_is_power_times_time():
    device = load_device("pixel6")
    power = device.processor("cpu").cores.power_w.value
    assert EnergyModel(device).mj("cpu", 10.0) == pytest.approx(power * 10)


def test_core_set_without_a_power_figure_has_no_energy():
    assert EnergyModel(load_device("mi9")).mj("cpu[1large]", 1.0) is None


def test_unknown_processor_is_named():
    with pytest.raises(UnknownNameError, match="npu"):
        EnergyModel(load_device("mi9")).mj("npu", 1.0)


def test_energy_of_a_run_is_that_of_its_processors_while_they_compute():
    device = load_device("mi9")
    one = {name: device.processor(name).cores.power_w.value for name in ("gpu", "dsp")}
    assert EnergyModel(device).plan_mj({"gpu": 10.0, "dsp": 4.0}, 12.0) == pytest.approx(10 * one["gpu"] + 4 * one["dsp"])
    assert EnergyModel(device).plan_mj({"gpu": 10.0, "cpu[1large]": 4.0}, 12.0) is None


def test_processors_that_wait_take_the_power_that_the_profile_states_for_it():
    device = load_device("mi9")
    gpu = msgspec.structs.replace(device.processors["gpu"], idle_w=NotNegative(0.5, "x"))
    waiting = dataclasses.replace(device, processors={**device.processors, "gpu": gpu})
    busy = {"gpu": 10.0, "dsp": 4.0}
    assert EnergyModel(waiting).plan_mj(busy, 12.0) - EnergyModel(device).plan_mj(busy, 12.0) == pytest.approx(2.0 * 0.5)
