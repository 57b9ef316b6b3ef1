"""Transfers cost what their link says, and nothing within a processor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.communication import LinkModel
from predictors.devices import load_device

MI9 = load_device("mi9")
LINKS = LinkModel(MI9)


def test_tensor_stays_free_of_charge_on_its_processor_whatever_the_core_set():
    assert LINKS.ms("cpu", "cpu[1large]", 10**6, "fp32") == 0
    assert LINKS.ms("gpu", "gpu", 10**6, "fp16") == 0


def test_way_to_the_gpu_is_a_map_and_a_conversion():
    link = MI9.links["gpu"]
    assert LINKS.ms("cpu", "gpu", 10**6, "fp16") == pytest.approx(link.map_ms.value + 2e6 / (link.convert_gbs.value * 1e9) * 1e3)


def test_way_back_is_an_unmap_a_synchronisation_and_a_conversion():
    link = MI9.links["gpu"]
    assert LINKS.ms("gpu", "cpu", 0, "fp16") == pytest.approx(link.unmap_ms.value + link.sync_ms.value)


@given(st.integers(0, 10**8), st.sampled_from(["fp32", "fp16", "int8"]))
def test_two_other_processors_exchange_through_the_cpu(elements, precision):
    through = LINKS.ms("gpu", "cpu", elements, precision) + LINKS.ms("cpu", "dsp", elements, precision)
    assert LINKS.ms("gpu", "dsp", elements, precision) == pytest.approx(through)
