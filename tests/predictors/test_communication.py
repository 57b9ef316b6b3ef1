"""Transfers cost what their link says, and nothing within a processor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.predictor import LinkModel
from predictors.devices import load_device

MI9 = load_device("mi9")
LINKS = LinkModel(MI9)
names = st.sampled_from(["cpu", "gpu", "dsp", "cpu[1large]"])


def test_tensor_stays_free_of_charge_on_its_processor_whatever_the_core_set():
    assert LINKS.ms("cpu", "cpu[1large]", 10**6, "fp32") == 0
    assert LINKS.ms("gpu", "gpu", 10**6, "fp16") == 0


def test_way_to_the_gpu_is_a_map_and_a_conversion():
    link = MI9.links["gpu"]
    assert LINKS.ms("cpu", "gpu", 10**6, "fp16") == pytest.approx(link.map_ms.value + 2e6 / (link.convert_gbs.value * 1e9) * 1e3)


def test_way_back_is_an_unmap_a_synchronisation_and_a_conversion():
    link = MI9.links["gpu"]
    assert LINKS.ms("gpu", "cpu", 0, "fp16") == pytest.approx(link.unmap_ms.value + link.sync_ms.value)


def test_an_exchange_with_the_gpu_takes_about_one_millisecond():
    # Paper 003, section 1.
    elements = 256 * 28 * 28
    for device in ("mi9", "pixel6"):
        links = LinkModel(load_device(device))
        assert 0.8 < links.ms("cpu", "gpu", elements, "fp16") + links.ms("gpu", "cpu", elements, "fp16") < 1.3


@given(st.integers(0, 10**8), st.sampled_from(["fp32", "fp16", "int8"]))
def test_two_other_processors_exchange_through_the_cpu(elements, precision):
    through = LINKS.ms("gpu", "cpu", elements, precision) + LINKS.ms("cpu", "dsp", elements, precision)
    assert LINKS.ms("gpu", "dsp", elements, precision) == pytest.approx(through)


@given(names, names, st.integers(0, 10**7))
def test_more_elements_or_wider_ones_never_take_less_time(source, target, elements):
    times = [LINKS.ms(source, target, elements, p) for p in ("int8", "fp16", "fp32")]
    assert times == sorted(times)
    assert LINKS.ms(source, target, elements + 1, "fp32") >= times[-1]
