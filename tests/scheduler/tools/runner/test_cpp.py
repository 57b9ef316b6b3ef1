"""The compiled C++ runner: outputs agree with the Python session, and its order with the state machine."""

import shutil

import numpy as np
import pytest

from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input
from scheduler.runtime.record import replay
from scheduler.runtime.session import Session
from tests.scheduler.bundles import two_branches
from tests.scheduler.tools.runner.built import again, build, exported

pytest.importorskip("ai_edge_litert")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("g++") is None or shutil.which("cmake") is None, reason="needs g++ and cmake"),
]

PROCESSORS = ("cpu", "gpu", "dsp")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("bundle"), lambda path: two_branches(path, 1, PROCESSORS))


@pytest.fixture(scope="module")
def built(bundle, tmp_path_factory):
    return build(bundle, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def ran(bundle, built, tmp_path_factory):
    """A run of the runner, with the session's outputs for the same input."""
    return run_with_session(bundle, built, tmp_path_factory.mktemp("ran"))


def run_with_session(bundle, runner, folder, *options, inputs=None):
    """Run the runner and a Python session on one input; the session's outputs are `expected` of the result."""
    arguments = inputs or {bundle.manifest.input: random_input(bundle)}
    paths = []
    for number, name in enumerate(bundle.manifest.inputs):
        paths.append(folder / f"input_{number}.npy")
        np.save(paths[-1], arguments[name])
    with Session(bundle, {sub.processor: "litert" for sub in bundle.manifest.subgraphs}) as session:
        result = session(arguments if len(arguments) > 1 else next(iter(arguments.values())))
    run_result = runner.run(folder / "results", *options, inputs=paths)
    assert run_result.code == 0, run_result.err
    run_result.expected = list(result.values()) if isinstance(result, dict) else [result]
    return run_result


def same(ran):
    assert len(ran.outputs()) == len(ran.expected)
    for got, expected in zip(ran.outputs(), ran.expected, strict=True):
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() <= 1e-6 * max(1.0, float(np.abs(expected).max()))


def test_runner_agrees_with_the_session_and_its_record_with_the_python_state_machine(ran):
    same(ran)
    replayed = replay(ran.folder / "record.jsonl")
    assert (replayed.machines, replayed.finished, replayed.events) == (1, 1, 1 + len(ran.spans()[0]))


@pytest.mark.parametrize(("batch", "precision"), [(1, {"dsp": "int8"}), (3, None)], ids=["int8", "batches"])
def test_runner_agrees_with_the_session_in_int8_and_for_batches(built, tmp_path, batch, precision):
    bundle = exported(tmp_path, lambda path: two_branches(path, batch, PROCESSORS), precision)
    same(run_with_session(bundle, again(bundle, built, tmp_path / "other"), tmp_path))


@pytest.mark.parametrize("options", [("--copies",), ("--threads", "cpu=2,gpu=2"), ("--cores", "cpu=0,dsp=0")])
def test_all_options_give_the_same_outputs(bundle, built, ran, tmp_path, options):
    same(run_with_session(bundle, built, tmp_path, *options))


def test_runner_agrees_with_the_session_for_bands_of_rows(built, tmp_path, warm):
    request = "branch tiny_resnet --device mi9 --processors cpu,gpu --weights none --lossless --precision cpu=int8"
    for command in ((*request.split(), "--out", "floats"), ("export", "floats", "--format", "tflite", "--out", "bundle")):
        assert warm.run("stretch", *command, cwd=tmp_path).returncode == 0
    bundle = load_bundle(tmp_path / "bundle")
    assert any(sub.rows for sub in bundle.manifest.subgraphs)
    same(run_with_session(bundle, again(bundle, built, tmp_path / "bands"), tmp_path))


def refused(ran, code, answer):
    sentences = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert ran.code == code, ran.err
    assert len(sentences) == 1
    assert answer in sentences[0]
    assert not ran.folder.exists() or not list(ran.folder.iterdir())


def test_damaged_files_and_a_file_of_another_plan_are_refused(built, tmp_path):
    content = bytearray(built.model.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "damaged.tflite").write_bytes(content)
    (tmp_path / "short.tflite").write_bytes(content[: len(content) // 2])
    (tmp_path / "empty.tflite").touch()
    other = exported(tmp_path / "other", lambda path: two_branches(path, 1, PROCESSORS, seed=1))
    for path in (tmp_path / "damaged.tflite", tmp_path / "short.tflite", tmp_path / "other" / "bundle" / other.manifest.tflite):
        refused(built.run(tmp_path / "results", model=path), 1, "is not the file that this runner was built for")
    refused(built.run(tmp_path / "results", model=tmp_path / "empty.tflite"), 1, "no file with something in it")
    refused(built.run(tmp_path / "results", model=tmp_path / "missing.tflite"), 1, "cannot read")


@pytest.mark.parametrize(
    ("array", "code", "message"),
    [
        (np.zeros((1, 3, 8, 8)), 1, "elements of type '<f8'"),
        (np.zeros((1, 8, 8, 3), np.float32), 2, "has the shape 1x8x8x3, and input `x` has 1x3x8x8"),
        (np.asfortranarray(np.zeros((1, 3, 8, 8), np.float32)), 1, "Fortran order"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(built, tmp_path, array, code, message):
    np.save(tmp_path / "x.npy", array)
    refused(built.run(tmp_path / "results", inputs=[tmp_path / "x.npy"]), code, message)


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_sanitizers_find_no_race_and_no_memory_error(bundle, tmp_path, sanitizers):
    runner = build(bundle, tmp_path, f"-DRUNNER_SANITIZE={sanitizers}", "-DCMAKE_BUILD_TYPE=Debug")
    ran = runner.run(tmp_path / "results", "--repeat", "50", "--threads", "cpu=2")
    assert ran.code == 0, ran.err
    assert "Sanitizer" not in ran.err
    assert replay(ran.folder / "record.jsonl").finished == 1
