import base64
import dataclasses
import json

import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.runtime.session import Session
from stretch.phone.measure import PhoneRequest, measure
from tests.scheduler.bundles import two_branches
from tests.stretch.phone.adb import Player, shell
from tests.stretch.phone.bundles import END, SERIAL, START, made

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch

TRACE = '{"traceEvents":[]}\n'


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runner"), lambda path: two_branches(path, 1, ("cpu", "gpu", "dsp")))


@pytest.fixture(scope="module")
def left(bundle, tmp_path_factory):
    """What a runner would leave: here a session's own record and output."""
    folder = tmp_path_factory.mktemp("left")
    x = np.random.default_rng(0).standard_normal(bundle.manifest.model.input_shape).astype(np.float32)
    with Session(bundle, dict.fromkeys(("cpu", "gpu", "dsp"), "litert"), record=folder / "record.jsonl") as session:
        np.save(folder / "output_0.npy", session(x))
    times = {"sha256": bundle.manifest.files["model.tflite"].sha256, "median_ms": 1.25, "runs": 50, "on_cpu": ["s1.gpu"], "steps": {}}
    (folder / "times.json").write_text(json.dumps(times))
    (folder / "trace.json").write_text(TRACE)
    return x, {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def adb(monkeypatch, tmp_path):
    return Player(monkeypatch, tmp_path / "adb")


@pytest.fixture
def phone_request(tmp_path):
    program = tmp_path / "runner"
    program.write_text("runner of a bundle")
    return PhoneRequest(None, None, program, None, tmp_path / "phone.measurements", None, None, "4-6", 50, 5, 60.0, tmp_path / "trace.json")


def run_of(*options):
    words = ["{folder}/runner", "{folder}/model.tflite", "--input", "{folder}/input.npy", "--out", "{folder}/results"]
    words += ["--repeat=50", "--warmup=5", "--time-limit=60", "--threads=cpu=3", "--cores=cpu=4+5+6", *options]
    return shell(["env", "LD_LIBRARY_PATH={folder}", *words])


def calls(files, *options, libraries=(), ended=None):
    found = [*START, *({"call": ["-s", SERIAL, "push", "{here}", f"{{folder}}/{name}"]} for name in libraries)]
    found += [
        {"call": ["-s", SERIAL, "push", "{here}", "{folder}/runner"], "takes": "runner"},
        {"call": shell(["chmod", "755", "{folder}/runner"])},
    ]
    found += [{"call": ["-s", SERIAL, "push", "{here}", "{folder}/input.npy"]}, {"call": run_of(*options), **(ended or {})}]
    if ended is None:
        for name in ("times.json", "trace.json", "record.jsonl", "output_0.npy"):
            content = base64.b64encode(files[name]).decode()
            found.append({"call": ["-s", SERIAL, "pull", f"{{folder}}/results/{name}", "{here}"], "gives64": content})
    return [*found, *END]


@pytest.mark.slow
def test_branches_run_at_once_and_their_output_is_compared_with_the_whole_model(bundle, left, adb, phone_request):
    x, files = left
    adb.plays(calls(files))
    answer = measure(bundle, phone_request, x)
    adb.ended()
    assert answer.signatures == []
    assert answer.measurements is None
    assert (answer.runner.median_ms, answer.runner.runs) == (1.25, 50)
    assert answer.runner.on_cpu == ["s1.gpu"]
    assert answer.runner.max_error < 1e-5
    assert phone_request.trace.read_text() == TRACE
    assert not phone_request.measurements.exists()


def test_accelerators_are_chosen_by_the_libraries_that_are_there(bundle, left, adb, phone_request, tmp_path):
    folder = tmp_path / "libraries"
    folder.mkdir()
    names = ("libLiteRt.so", "libLiteRtClGlAccelerator.so", "libLiteRtDispatch_Qualcomm.so")
    for name in names:
        (folder / name).write_text("library")
    adb.plays(calls(left[1], "--accelerator=dsp=npu,gpu=gpu", "--dispatch-folder={folder}", libraries=names))
    measure(bundle, dataclasses.replace(phone_request, libraries=folder), left[0])
    adb.ended()


def test_other_numbers_are_told_as_a_difference(bundle, left, adb, phone_request):
    adb.plays(calls(left[1]))
    assert measure(bundle, phone_request, np.ones_like(left[0])).runner.max_error > 1e-3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda files: files.update({"times.json": b"{"}), "times cannot be read"),
        (lambda files: files.update({"times.json": files["times.json"].replace(b"1.25", b"-1")}), "no measurement gives"),
        (lambda files: files.update({"times.json": files["times.json"].replace(b'"sha256": "', b'"sha256": "0')}), "of another file"),
        (lambda files: files.update({"record.jsonl": files["record.jsonl"].replace(b'"RunInline"', b'"Submit"')}), "the state machine"),
        (lambda files: files.update({"output_0.npy": b"no array"}), "output"),
    ],
)
def test_what_cannot_be_a_result_is_refused_and_leaves_nothing(bundle, left, adb, phone_request, change, told):
    files = dict(left[1])
    change(files)
    adb.plays(calls(files))
    with pytest.raises(StretchError, match=told):
        measure(bundle, phone_request, left[0])
    assert not phone_request.trace.exists()
    assert adb.log[-1][-1].startswith("rm -rf ")


def test_a_runner_that_fails_is_told_in_its_own_words(bundle, left, adb, phone_request):
    adb.plays(calls(left[1], ended={"err": "error: model.tflite is not the file that this runner was built for\n", "code": 1}))
    with pytest.raises(StretchError, match=r"the runner failed on the phone: model\.tflite is not the file"):
        measure(bundle, phone_request, left[0])
    adb.ended()
