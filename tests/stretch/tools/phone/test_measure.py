"""A bundle measured on a phone: adb, finding the phone, single signatures, parsed output, and the whole bundle."""

import base64
import dataclasses
import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import PROFILE_FOLDER, load_device
from predictors.errors import MissingBackendError, StretchError, UsageError
from predictors.fusion import fuse
from predictors.graph import Op, OpGraph
from predictors.measurements.litert import ProfiledOperator, read_op_profile
from predictors.measurements.networks import load_measurements
from scheduler.bundle.load import load_bundle
from scheduler.runtime.session import Session
from stretch.tools.phone import PhoneRequest
from stretch.tools.phone.measure import (
    BenchmarkOutput,
    Phone,
    PhoneProcessor,
    SignatureWork,
    find_phone,
    mask_of,
    measure,
    open_table,
    pair,
    parse_benchmark_output,
    phone_processors,
    signature_tasks,
    workspace,
)
from tests.scheduler.bundles import edit, two_branches
from tests.stretch.cli.commands import call
from tests.stretch.tools.phone.adb import Player, shell
from tests.stretch.tools.phone.bundles import BENCHMARK, END, SERIAL, START, command, made, ms_of, profile, spoken, timed, xnnpack

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
    program = tmp_path / "benchmark_model"
    program.write_text("benchmark_model of a release")
    return PhoneRequest(None, program, None, None, tmp_path / "phone.measurements", None, None, None, 50, 5, 60.0, None)


def x_of(bundle):
    return np.ones(bundle.manifest.model.input_shape, np.float32)


def successful_calls(bundle):
    """Return the calls of a measurement without failures."""
    calls = [*START, *BENCHMARK]
    for sub in bundle.manifest.subgraphs:
        calls += timed(sub, CPU, THREADS, CPU_SPEED)
        calls += timed(sub, GPU, 1, GPU_SPEED, delegate="GPU")
    return [*calls, *END]


@pytest.mark.slow
def test_every_signature_is_timed_on_cpu_and_gpu_and_kept_as_measurements(bundle, adb, phone_request):
    adb.plays(successful_calls(bundle))
    answer = measure(bundle, phone_request, x_of(bundle))
    adb.ended()
    assert (answer.phone, answer.system, answer.serial, answer.tested) == ("Pixel-6", "Android 16", "R5CT", False)
    assert len(answer.signatures) == 2 * len(bundle.manifest.subgraphs)
    macs = {sub.name: sub.macs for sub in bundle.manifest.subgraphs}
    for row in answer.signatures:
        speed = CPU_SPEED if row.processor.startswith("cpu") else GPU_SPEED
        assert row.ms == pytest.approx(ms_of(macs[row.signature], speed), rel=1e-4)
        assert (row.kernels, row.reason) == (1, None)
    table = load_measurements(phone_request.measurements)
    assert {row.device for row in table.latencies} == {"Pixel-6"}
    assert {(row.processor, row.precision) for row in table.latencies} == {("cpu", "fp32"), ("gpu", "fp16")}
    assert (len(table.graphs), len(set(table.families.values()))) == (len(bundle.manifest.subgraphs), 4)
    assert len(table.kernels) == len(answer.signatures)


def test_signature_that_does_not_run_fully_on_the_gpu_is_reported_and_not_kept(bundle, adb, phone_request):
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


def test_missing_files_and_wrong_options_are_refused_before_the_phone_is_used(bundle, adb, phone_request, tmp_path):
    adb.plays([])
    for change, error, answer in (
        ({"benchmark": None}, UsageError, "needs something to run"),
        ({"benchmark": tmp_path / "none"}, StretchError, "--benchmark-model: there is no file"),
        ({"runner": tmp_path / "none"}, StretchError, "--runner: there is no file"),
        ({"libraries": tmp_path}, StretchError, "no folder with libraries"),
        ({"cores": "x"}, UsageError, "names no cores"),
        ({"core_set": "x"}, UsageError, "no core set `x`"),
        *(({"serial": serial}, UsageError, "no serial") for serial in ("-d", "a;reboot", "a\nb")),
    ):
        with pytest.raises(error, match=answer):
            measure(bundle, dataclasses.replace(phone_request, **change), x_of(bundle))
    assert adb.log == []


TRACE = '{"traceEvents":[]}\n'


@pytest.fixture(scope="module")
def left(bundle, tmp_path_factory):
    """The input and files as a runner leaves them, made from the record and output of a session."""
    folder = tmp_path_factory.mktemp("left")
    x = np.random.default_rng(0).standard_normal(bundle.manifest.model.input_shape).astype(np.float32)
    with Session(bundle, dict.fromkeys(("cpu", "gpu", "dsp"), "litert"), record=folder / "record.jsonl") as session:
        np.save(folder / "output_0.npy", session(x))
    sha256 = bundle.manifest.files["model.tflite"].sha256
    times = {"sha256": sha256, "median_ms": 1.25, "runs": 50, "on_cpu": ["s1.gpu"], "steps": {}}
    (folder / "times.json").write_text(json.dumps(times))
    (folder / "trace.json").write_text(TRACE)
    return x, {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def runner_request(tmp_path):
    program = tmp_path / "runner"
    program.write_text("runner of a bundle")
    return PhoneRequest(None, None, program, None, tmp_path / "phone.measurements", None, None, "4-6", 50, 5, 60.0, tmp_path / "trace.json")


def runner_call(*options):
    arguments = ["{folder}/runner", "{folder}/model.tflite", "--input", "{folder}/input.npy", "--out", "{folder}/results"]
    arguments += ["--repeat=50", "--warmup=5", "--time-limit=60", "--threads=cpu=3", "--cores=cpu=4+5+6", *options]
    return shell(["env", "LD_LIBRARY_PATH={folder}", *arguments])


def calls(files, *options, libraries=(), ended=None):
    result = [*START, *({"call": ["-s", SERIAL, "push", "{here}", f"{{folder}}/{name}"]} for name in libraries)]
    result += [
        {"call": ["-s", SERIAL, "push", "{here}", "{folder}/runner"], "takes": "runner"},
        {"call": shell(["chmod", "755", "{folder}/runner"])},
    ]
    result += [{"call": ["-s", SERIAL, "push", "{here}", "{folder}/input.npy"]}, {"call": runner_call(*options), **(ended or {})}]
    if ended is None:
        for name in ("times.json", "trace.json", "record.jsonl", "output_0.npy"):
            content = base64.b64encode(files[name]).decode()
            result.append({"call": ["-s", SERIAL, "pull", f"{{folder}}/results/{name}", "{here}"], "gives64": content})
    return [*result, *END]


@pytest.mark.slow
def test_branches_run_in_parallel_and_their_output_is_compared_with_the_whole_model(bundle, left, adb, runner_request):
    x, files = left
    adb.plays(calls(files))
    answer = measure(bundle, runner_request, x)
    adb.ended()
    runner = answer.runner
    assert (answer.signatures, answer.measurements, runner.median_ms, runner.runs, runner.on_cpu) == ([], None, 1.25, 50, ["s1.gpu"])
    assert runner.max_error < 1e-5
    assert runner_request.trace.read_text() == TRACE
    assert not runner_request.measurements.exists()


def test_accelerators_are_chosen_by_the_given_libraries(bundle, left, adb, runner_request, tmp_path):
    folder = tmp_path / "libraries"
    folder.mkdir()
    names = ("libLiteRt.so", "libLiteRtClGlAccelerator.so", "libLiteRtDispatch_Qualcomm.so")
    for name in names:
        (folder / name).write_text("library")
    adb.plays(calls(left[1], "--accelerator=dsp=npu,gpu=gpu", "--dispatch-folder={folder}", libraries=names))
    measure(bundle, dataclasses.replace(runner_request, libraries=folder), left[0])
    adb.ended()


@pytest.mark.parametrize("ends", [{"inputs": ("x", "y")}, {"outputs": ("x", "y")}])
def test_runner_of_several_inputs_or_outputs_is_refused_before_the_phone_is_used(bundle, adb, runner_request, ends):
    several = dataclasses.replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, **ends))
    adb.plays([])
    with pytest.raises(UsageError, match="one input and one output"):
        measure(several, runner_request, np.zeros(1))


def test_different_output_is_reported_as_an_error(bundle, left, adb, runner_request):
    adb.plays(calls(left[1]))
    assert measure(bundle, runner_request, np.ones_like(left[0])).runner.max_error > 1e-3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda files: files.update({"times.json": b"{"}), "times cannot be read"),
        (lambda files: files.update({"times.json": files["times.json"].replace(b"1.25", b"-1")}), "no measurement gives"),
        (lambda files: files.update({"times.json": files["times.json"].replace(b'"sha256": "', b'"sha256": "0')}), "of another file"),
        (lambda files: files.update({"record.jsonl": files["record.jsonl"].replace(b'"RunInline"', b'"Submit"')}), "the state machine"),
        (lambda files: files.update({"output_0.npy": b"no array"}), "output"),
    ],
)
def test_invalid_result_of_the_runner_is_refused_and_leaves_nothing(bundle, left, adb, runner_request, change, sentence):
    files = dict(left[1])
    change(files)
    adb.plays(calls(files))
    with pytest.raises(StretchError, match=sentence):
        measure(bundle, runner_request, left[0])
    assert not runner_request.trace.exists()
    assert adb.log[-1][-1].startswith("rm -rf ")


def test_time_counts_for_a_gpu_only_if_the_whole_signature_ran_there():
    assert parse_benchmark_output(spoken(1.0, delegate="GPU"), "gpu").elsewhere is None
    assert "in 2 pieces" in parse_benchmark_output(spoken(1.0, delegate="GPU", partly=True), "gpu").elsewhere
    assert "does not say" in parse_benchmark_output(spoken(1.0), "gpu").elsewhere
    nothing = spoken(1.0) + "Though NPU delegate is explicitly applied, the model graph will not be executed by the delegate.\n"
    assert "no part of it" in parse_benchmark_output(nothing, "npu").elsewhere


@pytest.mark.parametrize(
    "text", ["", "Segmentation fault\n", "INFO: count=50 first=1 avg=nan std=0\n", "Inference (avg): -5\n", "Inference (avg): 1e99\n"]
)
def test_output_without_a_plausible_time_is_refused(text):
    with pytest.raises(StretchError, match=r"no time|no measurement"):
        parse_benchmark_output(text, "cpu")


WINDOW = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}

GRAPH = OpGraph.build(
    "net",
    [
        Op("x", "input", attrs={"shape": (1, 3, 8, 8)}),
        Op("a", "conv", ("x",), WINDOW | {"groups": 1, "out_channels": 8, "bias": True}),
        Op("r", "relu", ("a",)),
        Op("b", "conv", ("r",), WINDOW | {"groups": 8, "out_channels": 8, "bias": True}),
        Op("s", "add", ("b", "r")),
        Op("g", "global_avg_pool", ("s",), {"keepdims": False}),
        Op("y", "linear", ("g",), {"out_features": 5, "bias": True}),
    ],
    "y",
)

ORDER = ["a", "b", "s", "g", "y"]
KERNELS = fuse(GRAPH, "tflite_cpu")


def test_operators_of_the_runtime_are_matched_by_their_output_tensors(tmp_path):
    rows = [
        ("CONV_2D", 1.0, "[r]:0"),
        ("DEPTHWISE_CONV_2D", 2.0, "[b]:1"),
        ("ADD", 0.5, "[s]:2"),
        ("MEAN", 0.25, "[g]:3"),
        ("FULLY_CONNECTED", 0.125, "[y]:4"),
    ]
    (tmp_path / "profile.csv").write_text(profile(rows))
    result = pair(read_op_profile(tmp_path / "profile.csv"), KERNELS, ORDER)
    assert {kernel.name: ms for kernel, ms in result} == {"a": 1.0, "b": 2.0, "s": 0.5, "g": 0.25, "y": 0.125}


@given(st.lists(st.sampled_from(["conv", "depthwise", "linear", "pool", "elementwise"]), max_size=8))
def test_all_kernels_with_multiplications_get_times_or_none_does(kinds):
    lines = [ProfiledOperator(word, 1.0, name) for word, _, name in xnnpack([(kind, 1.0) for kind in kinds])]
    result = pair(lines, KERNELS, ORDER) if lines else []
    assert len(result) in (0, 3)
    multiplying = [kind for kind in kinds if kind in ("conv", "depthwise", "linear")]
    # a matrix product may run as a convolution of one pixel
    assert (len(result) == 3) == (multiplying in (["conv", "depthwise", "linear"], ["conv", "depthwise", "conv"]))


def test_each_signature_is_measured_on_processors_with_its_precision(tmp_path):
    path = two_branches(tmp_path / "bundle", 1, ("cpu", "gpu", "dsp"))
    edit(path, lambda data: [sub.update(precision="int8") for sub in data["subgraphs"] if sub["processor"] == "dsp"])
    result = signature_tasks(load_bundle(path), phone_processors(load_device("mi9"), None, npu=True))
    pairs = {(work.signature, work.place.family, work.precision) for work in result}
    assert {item for item in pairs if item[0] == "s1.cpu"} == {("s1.cpu", "cpu", "fp32"), ("s1.cpu", "gpu", "fp16")}
    assert {item for item in pairs if item[0] == "s1.dsp"} == {("s1.dsp", "cpu", "int8"), ("s1.dsp", "dsp", "int8")}
    assert not any(signature.endswith("join") for signature, _, _ in pairs)


def test_core_ranges_become_masks_and_invalid_ranges_are_refused():
    assert (mask_of("4-6"), mask_of("0,7"), mask_of(None)) == (0x70, 0x81, 0)
    for text in ("", "a", "6-4", "4-", "64", "-1", "1,,2", "²"):
        with pytest.raises(UsageError, match="names no cores"):
            mask_of(text)


def test_times_are_stored_with_the_release_of_the_benchmark_program(tmp_path):
    bundle, program = load_bundle(two_branches(tmp_path / "bundle")), tmp_path / "benchmark_model"
    work = SignatureWork("stem", "stem", "tiny:stem", "fp32", PhoneProcessor("cpu", "cpu", "3med", 3))
    for release, times in (("one", (1.5, 0.1)), ("another", (1.2, None))):
        program.write_text(f"{release} release")
        open_table(tmp_path / "m", "Pixel-6", program, [work]).add(bundle, work, BenchmarkOutput(*times, None), [])
    rows = load_measurements(tmp_path / "m").latencies
    assert [(row.ms, row.std_ms) for row in rows] == [(1.5, 0.1), (1.2, None)]
    assert len({row.runtime for row in rows}) == 2


@pytest.mark.slow
def test_output_says_that_phones_are_untested_and_how_to_fit(capsys, bundle, adb, phone_request, tmp_path):
    adb.plays(successful_calls(bundle))
    options = ("--serial", "R5CT", "--benchmark-model", phone_request.benchmark, "--measurements", tmp_path / "mine")
    result = call(capsys, "run", bundle.path, "--adb", *options)
    assert "not tried on a phone yet" in result.err
    assert "s1.gpu" in result.out
    assert "stretch profile fit" in result.out


def test_core_set_of_a_custom_profile_names_the_times(capsys, bundle, adb, phone_request, tmp_path):
    text = (PROFILE_FOLDER / "mi9.toml").read_text().replace('id = "mi9"', 'id = "mine"').replace('"3med"', '"1large"')
    (tmp_path / "mine.toml").write_text(text)
    first = bundle.manifest.subgraphs[0]
    adb.plays([*START, *BENCHMARK, {"call": command(first.name, CPU, 1), "err": "adb: error: closed\n", "code": 1}, *END])
    arguments = ("run", bundle.path, "--adb", "--benchmark-model", phone_request.benchmark, "--profile")
    assert "cpu[1large]" in call(capsys, *arguments, tmp_path / "mine.toml", "--measurements", tmp_path / "m").message
    adb.ended()
    assert call(capsys, *arguments, "mine9").code == 3


@pytest.fixture
def phone(adb):
    return Phone(str(adb.folder / "adb"), "R5CT", 60.0)


@pytest.mark.parametrize(
    ("transcript", "error", "sentence"),
    [
        ("none.json", StretchError, "adb sees no device"),
        ("several.json", UsageError, "adb sees 2 devices: R5CT, emulator-5554"),
        ("unauthorized.json", StretchError, "`R5CT` does not trust this computer yet"),
        ("offline.json", StretchError, "`R5CT` is offline"),
        ("no_permissions.json", StretchError, "may not be opened by this user"),
        ("no_server.json", StretchError, "cannot list devices: failed to check server version: cannot connect to daemon"),
    ],
)
def test_reason_for_no_ready_phone_is_reported_in_one_sentence(adb, transcript, error, sentence):
    adb.plays(transcript)
    with pytest.raises(error, match=sentence) as caught:
        find_phone(None, 60)
    assert "\n" not in caught.value.message
    adb.ended()


def test_only_device_or_named_device_is_used(adb):
    adb.plays([{"call": ["devices"], "out": "List of devices attached\nR5CT\tdevice\nemulator-5554\toffline\n\n", "often": True}])
    assert find_phone("R5CT", 60).serial == "R5CT"
    with pytest.raises(StretchError, match="`emulator-5554` is offline"):
        find_phone("emulator-5554", 60)
    with pytest.raises(StretchError, match="sees no device `other`"):
        find_phone("other", 60)


def test_missing_adb_is_refused_naming_the_package_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingBackendError, match="no program `adb`") as caught:
        find_phone(None, 60)
    assert caught.value.exit_code == 5
    assert "platform tools" in caught.value.hint


def test_arguments_of_a_command_are_quoted_for_the_phone(adb, phone):
    shell_call = {"call": ["-s", "R5CT", "shell", "echo 'a b' ';rm -rf x' '$HOME'"], "out": "said\n"}
    adb.plays([shell_call, shell_call])
    arguments = ["echo", "a b", ";rm -rf x", "$HOME"]
    assert (phone.shell(arguments), phone.attempt(arguments, "say it").stdout) == ("said\n", "said\n")
    adb.ended()


def test_folder_on_the_phone_is_removed_after_an_error_or_is_named(adb, phone):
    for error in (StretchError("broken"), KeyboardInterrupt()):
        adb.plays([{"call": shell(["mkdir", "{folder}"])}, {"call": shell(["rm", "-rf", "{folder}"])}])
        with pytest.raises(type(error)), workspace(phone):
            raise error
        adb.ended()
    gone = {"err": "adb: error: device 'R5CT' not found\n", "code": 1}
    adb.plays([{"call": shell(["mkdir", "{folder}"])}, {"call": shell(["ls"]), **gone}, {"call": shell(["rm", "-rf", "{folder}"]), **gone}])
    with pytest.raises(StretchError, match="the device is gone") as caught, workspace(phone):
        phone.shell(["ls"])
    assert phone.folder in caught.value.hint
    adb.ended()


def test_pulled_file_is_complete_or_absent(adb, phone, tmp_path):
    pull = ["-s", "R5CT", "pull", f"{phone.folder}/times.csv", "{here}"]
    gone = {"call": pull, "gives": "half", "err": "adb: error: device offline\n", "code": 1}
    adb.plays([gone, {"call": pull, "gives": "whole"}, {"call": pull}])
    with pytest.raises(StretchError, match="the device is gone"):
        phone.pull("times.csv", tmp_path / "times.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["adb"]
    phone.pull("times.csv", tmp_path / "times.csv")
    assert (tmp_path / "times.csv").read_text() == "whole"
    with pytest.raises(StretchError, match="it is not here"):
        phone.pull("times.csv", tmp_path / "other.csv")
    adb.ended()


def test_call_that_hangs_is_ended_at_the_limit(adb, phone):
    adb.plays([{"call": shell(["ls"]), "hangs": True}])
    with pytest.raises(StretchError, match="did not end within 2 s"):
        phone.shell(["ls"], limit=2.0)
