import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from predictors.install import install_line
from scheduler.placement.mapping import parse_mapping, place_processors, target_placement


def brief(placed):
    return {name: (p.delegate, p.cores, p.dispatch) for name, p in placed.items()}


def test_missing_gpu_gets_the_second_core_and_a_thread_of_its_own():
    placed = place_processors(["cpu", "gpu"], cores=(0, 1))
    assert brief(placed) == {"cpu": ("cpu", (0,), "inline"), "gpu": ("cpu", (1,), "blocking")}
    assert [p.stand_in for p in placed.values()] == [False, True]


def test_missing_dsp_shares_the_last_of_two_cores_one_subgraph_at_a_time():
    placed = place_processors(["cpu", "gpu", "dsp"], cores=(0, 1))
    assert placed["dsp"].queue == placed["gpu"].queue == "cpu1"


def test_gpu_mapped_to_the_cpus_core_runs_inline_after_it():
    placed = place_processors(["cpu", "gpu"], {"gpu": "cpu0", "cpu": "cpu0"}, cores=(0, 1))
    assert {p.queue for p in placed.values()} == {"cpu0"}
    assert {p.dispatch for p in placed.values()} == {"inline"}


def test_target_names_delegate_and_cores():
    placed = place_processors(["cpu", "gpu"], {"cpu": "reference0+1", "gpu": "null_async"}, cores=(0, 1))
    assert brief(placed) == {"cpu": ("reference", (0, 1), "inline"), "gpu": ("null_async", (), "async")}


def test_parse_refuses_a_processor_mapped_twice():
    with pytest.raises(UsageError, match="twice"):
        parse_mapping(["gpu=cpu0", "gpu=cpu1"])


@pytest.mark.parametrize("mapping", [{"gpu": "cpu9"}, {"gpu": "cpu0+9"}, {"gpu": "1"}, {"gpu": "cpu1+"}, {"npu": "cpu1"}])
def test_targets_that_do_not_exist_are_usage_errors(mapping):
    with pytest.raises(UsageError):
        place_processors(["cpu", "gpu"], mapping, cores=(0, 1))


@given(
    st.lists(st.sampled_from(["cpu", "gpu", "dsp", "npu"]), min_size=1, unique=True), st.sets(st.integers(0, 63), min_size=1, max_size=6)
)
def test_every_processor_is_placed_on_a_core_there_is_and_at_most_one_queue_is_inline(processors, cores):
    placed = place_processors(processors, cores=sorted(cores))
    assert list(placed) == processors
    assert all(set(p.cores) <= cores for p in placed.values())
    assert len({p.queue for p in placed.values() if p.dispatch == "inline"}) <= 1
    assert len({(p.queue, p.dispatch) for p in placed.values()}) == len({p.queue for p in placed.values()})


@pytest.mark.qnn
def test_dsp_whose_subgraphs_are_int8_goes_to_its_delegate_and_takes_no_core():
    placed = place_processors(["cpu", "dsp", "gpu"], cores=(0, 1), precisions={"dsp": {"int8"}})
    assert brief(placed) == {"cpu": ("cpu", (0,), "inline"), "dsp": ("dsp", (), "blocking"), "gpu": ("cpu", (1,), "blocking")}


def test_int8_dsp_without_its_package_has_a_stand_in_that_names_the_install_line():
    code = (
        "import sys\nsys.modules['onnxruntime_qnn'] = None\n"
        "from scheduler.placement.mapping import place_processors\n"
        "place = place_processors(['cpu', 'dsp'], cores=(0, 1), precisions={'dsp': {'int8'}})['dsp']\n"
        "print(place.delegate, place.reason)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("cpu ")
    assert install_line("qnn") in said


def test_target_takes_its_place_beside_the_queues_that_are_there():
    core = min(os.sched_getaffinity(0))
    place = target_placement("gpu", f"cpu{core}", {f"cpu{core}": "inline"})
    assert (place.processor, place.delegate, place.cores, place.dispatch) == ("gpu", "cpu", (core,), "inline")
    assert target_placement("gpu", f"cpu{core}", {}).dispatch == "blocking"
    assert target_placement("gpu", "null_async", {}).dispatch == "async"
    assert place.reason == f"mapped to cpu{core}"


@pytest.mark.parametrize("target", ["cpu999", "cpu0+", ""])
def test_target_that_is_none_is_a_usage_error(target):
    with pytest.raises(UsageError):
        target_placement("gpu", target, {})
