import pytest

from predictors.errors import UnknownNameError, UsageError
from predictors.fitting.formula import load_formula
from predictors.fusion import load_rules
from scheduler.cores import available_cores
from stretch.profiling.places import RULES, find_places


def test_the_cpu_has_a_place_for_one_core_and_for_all():
    places = find_places(["cpu"])
    assert places[0].cores == available_cores()[:1]
    assert places[0].serial
    assert places[-1].cores == available_cores()
    assert {place.family for place in places} == {"cpu"}
    assert len({place.core_set for place in places}) == len(places)


def test_one_core_set_can_be_asked_for():
    [place] = find_places(["cpu[1core]"])
    assert place.name == "cpu[1core]"


@pytest.mark.opencl
def test_a_device_with_threads_of_its_own_is_not_called_from_their_cores():
    gpu = find_places(["gpu", "cpu"])[-1]
    assert gpu.family == "gpu"
    assert not set(gpu.caller) & set(gpu.cores)


@pytest.mark.parametrize(
    ("names", "error", "told"),
    [
        (["gpu"], UsageError, "needs the processor `cpu`"),
        (["cpu", "cpu"], UsageError, "`cpu` is named twice"),
        (["cpu[9cores]"], UnknownNameError, r"unknown core set `cpu\[9cores\]`"),
        (["cpu", "npu"], UnknownNameError, "unknown processor to measure `npu`"),
        (["cpu=onnx"], UnknownNameError, "unknown delegate to measure `onnx`"),
    ],
)
def test_what_cannot_be_measured_is_refused(names, error, told):
    with pytest.raises(error, match=told):
        find_places(names)


def test_every_delegate_that_is_measured_has_fusion_rules_and_a_formula():
    for backend in RULES.values():
        assert load_rules(backend).id == backend
        assert load_formula(backend).kernels
