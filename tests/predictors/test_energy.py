import pytest

from predictors.devices import load_device
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
