import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import NotNegative, load_device
from predictors.energy import EnergyModel
from predictors.errors import UnknownNameError


def test_energy_is_power_times_time():
    device = load_device("pixel6")
    power = device.processor("cpu").cores.power_w.value
    assert EnergyModel(device).mj("cpu", 10.0) == pytest.approx(power * 10)


def test_unknown_processor_is_named():
    with pytest.raises(UnknownNameError, match="npu"):
        EnergyModel(load_device("mi9")).mj("npu", 1.0)


def test_energy_of_a_run_is_that_of_its_processors_while_they_compute():
    device = load_device("mi9")
    one = {name: device.processor(name).cores.power_w.value for name in ("gpu", "dsp")}
    assert EnergyModel(device).plan_mj({"gpu": 10.0, "dsp": 4.0}, 12.0) == pytest.approx(10 * one["gpu"] + 4 * one["dsp"])
    assert EnergyModel(device).plan_mj({"gpu": 10.0, "cpu[1large]": 4.0}, 12.0) is None


def with_power(device, family, **states):
    """A device that states what a processor takes while it does not compute, W."""
    stated = {key: NotNegative(watts, next(iter(device.sources))) for key, watts in states.items()}
    changed = msgspec.structs.replace(device.processors[family], **stated)
    return dataclasses.replace(device, processors={**device.processors, family: changed})


@pytest.mark.parametrize(
    ("states", "watts"), [({"idle_w": 0.5}, 0.5), ({"idle_w": 0.5, "waiting_w": 0.75}, 0.75), ({"waiting_w": 0.25}, 0.25)]
)
def test_processors_that_wait_take_the_power_that_the_profile_states_for_it(states, watts):
    device = load_device("mi9")
    waiting = with_power(device, "gpu", **states)
    busy = {"gpu": 10.0, "dsp": 4.0}
    assert EnergyModel(waiting).plan_mj(busy, 12.0) - EnergyModel(device).plan_mj(busy, 12.0) == pytest.approx(2.0 * watts)


@pytest.mark.slow
@given(
    busy=st.dictionaries(st.sampled_from(["cpu", "gpu", "dsp", "cpu[3med]"]), st.floats(0, 100), min_size=1),
    longer=st.floats(0, 100),
    idle=st.none() | st.floats(0, 10),
)
def test_parts_add_up_to_the_energy_and_cover_the_run_of_every_processor(busy, longer, idle):
    device = load_device("mi9")
    if idle is not None:
        device = with_power(device, "dsp", idle_w=idle)
    makespan = max(busy.values()) + longer
    parts = EnergyModel(device).parts(busy, makespan)
    assert sum(part.mj or 0.0 for part in parts) == pytest.approx(EnergyModel(device).plan_mj(busy, makespan))
    assert {part.processor.partition("[")[0] for part in parts} == {"cpu", "gpu", "dsp"}
    for name in {part.processor for part in parts}:
        assert sum(part.ms for part in parts if part.processor == name) == pytest.approx(makespan)
    assert all((part.mj is None) == (part.power_w is None) == (part.source is None) for part in parts)
