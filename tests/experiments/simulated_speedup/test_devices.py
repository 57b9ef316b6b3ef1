"""A device with one number changed is that device in everything else."""

import pytest

pytest.importorskip("torch")

from experiments.lossless.run import profile
from experiments.simulated_speedup.devices import with_links, with_speed, without_contention
from predictors.predictor import LatencyPredictor
from tests.predictors.networks import small_resnet


@pytest.fixture(scope="module", params=["0.1.0", "fitted"])
def device(request):
    return profile(request.param, "mi9")


def computing(device, processor):
    return LatencyPredictor(device).predict(small_resnet(64), processor).computing_ms


@pytest.mark.parametrize("speed", [2.0])
def test_every_time_of_one_processor_is_divided_by_its_speed(device, speed):
    changed = with_speed(device, "dsp", speed)
    assert computing(changed, "dsp") == pytest.approx(computing(device, "dsp") / speed)
    for other in ("cpu", "gpu"):
        assert computing(changed, other) == computing(device, other)
    assert changed.links == device.links


@pytest.mark.parametrize("factor", [0.5])
def test_every_transfer_takes_its_time_times_the_factor(device, factor):
    before, after = (LatencyPredictor(each).links for each in (device, with_links(device, factor)))
    for there, back in (("cpu", "dsp"), ("dsp", "cpu"), ("gpu", "dsp")):
        for elements in (0, 100_000):
            assert after.ms(there, back, elements, "int8") == pytest.approx(factor * before.ms(there, back, elements, "int8"))
    assert computing(with_links(device, factor), "gpu") == computing(device, "gpu")


def test_without_contention_company_slows_nobody(device):
    found = LatencyPredictor(without_contention(device)).predict(small_resnet(64), "gpu")
    assert found.contended_ms == pytest.approx(found.computing_ms)
