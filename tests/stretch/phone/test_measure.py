import dataclasses

import numpy as np
import pytest

from predictors.errors import StretchError, UsageError
from predictors.measurements.networks import load_measurements
from stretch.phone.measure import PhoneRequest, measure
from tests.scheduler.bundles import two_branches
from tests.stretch.phone.adb import Player
from tests.stretch.phone.bundles import BENCHMARK, END, START, command, made, ms_of, timed

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch

CPU, GPU = ("--use_xnnpack=true",), ("--use_gpu=true",)
#: The Mi 9's default core set, 3med, has three cores.
THREADS = 3
CPU_SPEED, GPU_SPEED = 4000.0, 9000.0


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return made(tmp_path_factory.mktemp("phone"))


@pytest.fixture
def adb(monkeypatch, tmp_path):
    return Player(monkeypatch, tmp_path / "adb")


@pytest.fixture
def phone_request(tmp_path):
    return request_of(tmp_path)


def request_of(folder):
    program = folder / "benchmark_model"
    program.write_text("benchmark_model of a release")
    return PhoneRequest(None, program, None, None, folder / "phone.measurements", None, None, None, 50, 5, 60.0, None)


def x_of(bundle):
    return np.ones(bundle.manifest.model.input_shape, np.float32)


def everything(bundle):
    """A phone on which all goes well."""
    calls = [*START, *BENCHMARK]
    for sub in bundle.manifest.subgraphs:
        calls += timed(sub, CPU, THREADS, CPU_SPEED)
        calls += timed(sub, GPU, 1, GPU_SPEED, delegate="GPU")
    return [*calls, *END]


@pytest.fixture(scope="module")
def measured(bundle, tmp_path_factory):
    """What a phone said on which all goes well, and the folder that it was kept in."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        adb = Player(patch, folder / "adb")
        adb.plays(everything(bundle))
        answer = measure(bundle, request_of(folder), x_of(bundle))
        adb.ended()
    return answer, folder / "phone.measurements"


@pytest.mark.slow
def test_every_signature_is_timed_on_cpu_and_gpu_and_kept_as_measurements(bundle, measured):
    answer, folder = measured
    assert (answer.phone, answer.system, answer.serial, answer.tested) == ("Pixel-6", "Android 16", "R5CT", False)
    assert len(answer.signatures) == 2 * len(bundle.manifest.subgraphs)
    macs = {sub.name: sub.macs for sub in bundle.manifest.subgraphs}
    for row in answer.signatures:
        speed = CPU_SPEED if row.processor.startswith("cpu") else GPU_SPEED
        assert row.ms == pytest.approx(ms_of(macs[row.signature], speed), rel=1e-4)
        assert (row.kernels, row.reason) == (1, None)
    table = load_measurements(folder)
    assert {row.device for row in table.latencies} == {"Pixel-6"}
    assert {(row.processor, row.precision) for row in table.latencies} == {("cpu", "fp32"), ("gpu", "fp16")}
    assert len(table.graphs) == len(bundle.manifest.subgraphs)
    assert len(set(table.families.values())) == 7
    assert len(table.kernels) == len(answer.signatures)


def test_what_does_not_run_as_a_whole_is_told_and_not_kept(adb, phone_request, tmp_path):
    bundle = made(tmp_path / "small", lambda path: two_branches(path, 1, ("cpu", "gpu")))
    calls = [*START, *BENCHMARK]
    for number, sub in enumerate(bundle.manifest.subgraphs):
        calls += timed(sub, CPU, THREADS, CPU_SPEED)
        if number == 0:
            calls += [{"call": command(sub.name, GPU, 1), "err": "ERROR: Failed to apply GPU delegate.\n", "code": 1}]
        elif number == 1:
            calls += timed(sub, GPU, 1, GPU_SPEED)[:1]
        else:
            calls += timed(sub, GPU, 1, GPU_SPEED, delegate="GPU")
    adb.plays([*calls, *END])
    rows = measure(bundle, phone_request, x_of(bundle)).signatures
    adb.ended()
    gpu = [row for row in rows if row.processor.startswith("gpu")]
    assert gpu[0].reason == "benchmark_model failed: ERROR: Failed to apply GPU delegate."
    assert "does not say that all of it ran there" in gpu[1].reason
    assert all(row.ms is None for row in gpu[:2])
    kept = [row.network for row in load_measurements(phone_request.measurements).latencies if row.processor == "gpu"]
    assert len(kept) == len(gpu) - 2


@pytest.mark.slow
def test_cores_runs_and_core_set_reach_the_phone(bundle, adb, phone_request):
    one = bundle.manifest.subgraphs[0]
    how = {"runs": 7, "warmup": 1, "mask": ("taskset", "80")}
    gone = {"call": command(one.name, CPU, 1, **how), "err": "adb: error: device offline\n", "code": 1}
    adb.plays([*START, *BENCHMARK, gone, *END])
    with pytest.raises(StretchError, match=f"cannot measure {one.name} on cpu.1large.: the device is gone"):
        measure(bundle, dataclasses.replace(phone_request, runs=7, warmup=1, cores="7", core_set="1large"), x_of(bundle))
    adb.ended()


@pytest.mark.parametrize(("transcript", "told"), [("no_space.json", "no space left there"), ("gone.json", "the device is gone")])
def test_nothing_is_written_here_where_nothing_was_measured(bundle, adb, phone_request, transcript, told):
    adb.plays(transcript)
    with pytest.raises(StretchError, match=told):
        measure(bundle, phone_request, x_of(bundle))
    adb.ended()
    assert not phone_request.measurements.exists()


def test_files_are_looked_for_before_the_phone(bundle, adb, phone_request, tmp_path):
    adb.plays([])
    for change, error, told in (
        ({"benchmark": None}, UsageError, "needs something to run"),
        ({"benchmark": tmp_path / "none"}, StretchError, "--benchmark-model: there is no file"),
        ({"runner": tmp_path / "none"}, StretchError, "--runner: there is no file"),
        ({"libraries": tmp_path}, StretchError, "no folder with libraries"),
        ({"cores": "x"}, UsageError, "names no cores"),
        ({"core_set": "x"}, UsageError, "no core set `x`"),
        ({"serial": "-x"}, UsageError, "no serial"),
    ):
        with pytest.raises(error, match=told):
            measure(bundle, dataclasses.replace(phone_request, **change), x_of(bundle))
    assert adb.log == []


@pytest.mark.slow
def test_libraries_go_beside_the_program_and_let_an_npu_be_measured(adb, phone_request, tmp_path):
    bundle = made(tmp_path / "small", lambda path: two_branches(path, 1, ("cpu", "dsp")), {"dsp": "int8"})
    folder = tmp_path / "libraries"
    folder.mkdir()
    (folder / "libLiteRtDispatch_Qualcomm.so").write_text("library")
    npu = ("--use_npu=true", "--dispatch_library_path={folder}", "--compiler_plugin_library_path={folder}")
    calls = [*START, {"call": ["-s", "R5CT", "push", "{here}", "{folder}/libLiteRtDispatch_Qualcomm.so"], "takes": "library"}, *BENCHMARK]
    for sub in bundle.manifest.subgraphs:
        calls += timed(sub, CPU, THREADS, CPU_SPEED)
        calls += timed(sub, npu, 1, GPU_SPEED, delegate="NPU") if sub.precision == "int8" else timed(sub, GPU, 1, GPU_SPEED, delegate="GPU")
    adb.plays([*calls, *END])
    measure(bundle, dataclasses.replace(phone_request, libraries=folder), x_of(bundle))
    adb.ended()
    found = {(row.network, row.processor, row.precision) for row in load_measurements(phone_request.measurements).latencies}
    assert ("tiny:s1.dsp", "dsp", "int8") in found
    assert ("tiny:s1.cpu", "dsp", "int8") not in found


def test_a_name_that_a_shell_would_obey_is_one_word_on_the_phone(adb, phone_request, tmp_path):
    evil = "s1;reboot"

    def make(path):
        from tests.scheduler.bundles import Builder

        b = Builder(path)
        b.conv("stem", "stem", "cpu", "x", "t0", 6)
        b.conv(evil, "s1", "cpu", "t0", "t1", 6)
        b.head("head", "head", "cpu", "t1", "y", 5)
        return b.write("y")

    bundle = made(tmp_path / "evil", make)
    first = bundle.manifest.subgraphs[0]
    calls = [*START, *BENCHMARK, *timed(first, CPU, THREADS, CPU_SPEED), *timed(first, GPU, 1, GPU_SPEED, delegate="GPU")]
    gone = {"call": command(evil, CPU, THREADS), "err": "adb: error: closed\n", "code": 1}
    adb.plays([*calls, gone, *END])
    with pytest.raises(StretchError, match="the device is gone"):
        measure(bundle, phone_request, x_of(bundle))
    adb.ended()
    assert "'--signature_to_run_for=s1;reboot'" in adb.log[-2][-1]
