import pytest

from predictors.errors import StretchError
from stretch.phone.measure import Request, read_spoken
from tests.stretch.phone.samples import spoken

REQUEST = Request("/p/benchmark_model", "/p/model.tflite", "s1.cpu", "cpu", 3, 50, 5)


def test_a_command_names_signature_threads_and_runs():
    words = REQUEST.command()
    assert words[0] == "/p/benchmark_model"
    assert {"--graph=/p/model.tflite", "--signature_to_run_for=s1.cpu", "--num_threads=3", "--num_runs=50", "--warmup_runs=5"} <= set(words)
    assert not any("profiling" in word for word in words)


def test_cores_are_a_mask_before_the_program():
    masked = Request("/p/benchmark_model", "/p/model.tflite", "s1.cpu", "cpu", 3, 50, 5, 0x70)
    assert masked.command()[:3] == ["taskset", "70", "/p/benchmark_model"]


@pytest.mark.parametrize(("target", "word"), [("cpu", "--use_xnnpack=true"), ("gpu", "--use_gpu=true"), ("npu", "--use_npu=true")])
def test_the_processor_is_one_flag(target, word):
    words = Request("/p/b", "/p/m", "s", target, 1, 1, 0, 0, "/p").command()
    assert [each for each in words if each.startswith("--use_")] == [word]
    assert ("--dispatch_library_path=/p" in words) == (target == "npu")


def test_operators_are_profiled_into_a_file():
    words = REQUEST.command("/p/profile.csv")
    assert {"--enable_op_profiling=true", "--op_profiling_output_mode=csv", "--op_profiling_output_file=/p/profile.csv"} <= set(words)


def test_the_time_is_that_of_measured_runs_not_of_the_warm_up():
    told = read_spoken(spoken(1.5, 0.02), "cpu")
    assert (told.ms, told.std_ms, told.elsewhere) == (pytest.approx(1.5), pytest.approx(0.02), None)


def test_an_older_tool_without_the_summary_is_read_too():
    text = "\n".join(line for line in spoken(1.5).splitlines() if "Inference timings" not in line)
    assert read_spoken(text, "cpu").ms == pytest.approx(1.5)


def test_a_time_counts_for_a_gpu_only_if_all_of_it_ran_there():
    assert read_spoken(spoken(1.0, delegate="GPU"), "gpu").elsewhere is None
    assert "in 2 pieces" in read_spoken(spoken(1.0, delegate="GPU", partly=True), "gpu").elsewhere
    assert "does not say" in read_spoken(spoken(1.0), "gpu").elsewhere
    nothing = spoken(1.0) + "Though NPU delegate is explicitly applied, the model graph will not be executed by the delegate.\n"
    assert "nothing of it" in read_spoken(nothing, "npu").elsewhere


@pytest.mark.parametrize(
    "text", ["", "Segmentation fault\n", "INFO: count=50 first=1 avg=nan std=0\n", "Inference (avg): -5\n", "Inference (avg): 1e99\n"]
)
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(StretchError, match=r"no time|no measurement"):
        read_spoken(text, "cpu")
