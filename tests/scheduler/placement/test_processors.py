"""What is known of a kind of processor comes from the delegates that drive it."""

import pytest

from scheduler.delegates import CpuDelegate, delegates
from scheduler.placement.processors import device_dispatch, is_integer_only


@pytest.fixture
def npu(monkeypatch):
    """A delegate for a kind of processor that none here drives."""

    class Npu(CpuDelegate):
        drives = ("npu",)
        precisions = ("int8",)
        asynchronous = True

    monkeypatch.setattr(delegates, "_items", {**delegates._items, "their_npu": Npu})
    return Npu


@pytest.mark.parametrize(
    ("name", "alone"), [("dsp", True), ("dsp[1]", True), ("npu", True), ("gpu", False), ("cpu", False), ("tpu", False)]
)
def test_processor_whose_delegates_run_int8_alone_has_no_floating_point(npu, name, alone):
    assert is_integer_only(name) is alone


@pytest.mark.parametrize(
    ("name", "how"), [("cpu", "inline"), ("cpu[1]", "inline"), ("gpu", "async"), ("dsp", "blocking"), ("npu", "async"), ("tpu", "blocking")]
)
def test_work_reaches_a_processor_as_its_delegate_takes_it(npu, name, how):
    assert device_dispatch(name) == how
