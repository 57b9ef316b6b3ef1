"""`stretch compare --measure`: what it prints, checks and refuses."""

import json

import pytest

from scheduler.tools.bench.subject import unavailable
from tests.scheduler.tools.bench.nets import CHANNELS, FILTERS, conv_onnx
from tests.stretch.cli.commands import call, spawn, succeed
from tests.stretch.tools.report.html.reading import checked

SHORT = ("--rounds", 3, "--starts", 2, "--warmup", 4)


def test_json_of_a_measurement_is_confirmed_and_a_changed_one_is_not(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    conv_onnx(tmp_path / "m.onnx")
    page = tmp_path / "m.html"
    done = succeed(
        capsys, "compare", "--measure", "m.onnx", "m.onnx", "--with", "onnxruntime", *SHORT, "--seed", 3, "--html", page, "--json"
    )
    answer = done.data
    assert [item["name"] for item in answer["contenders"]] == ["m.onnx, onnxruntime", "m.onnx (2), onnxruntime"]
    assert answer["contenders"][1]["max_error"] == 0
    assert (answer["seed"], answer["starts"], answer["rounds"]) == (3, 2, 3)
    assert answer["versions"]["onnxruntime"] == answer["contenders"][0]["runtime_version"]
    seen = checked(page.read_text())
    assert "m.onnx (2), onnxruntime" in seen.text
    (tmp_path / "m.json").write_text(done.out)
    right = call(capsys, "verify", "m.json", "--json")
    assert (right.code, json.loads(right.out)["ok"]) == (0, True)
    assert "says what its 12 times of 2 contenders say" in call(capsys, "verify", "m.json").out
    (tmp_path / "m.onnx").write_bytes(b"another")
    wrong = call(capsys, "verify", "m.json")
    assert wrong.code == 1
    assert "problem: m.onnx" in wrong.out


def test_table_names_contenders_machine_and_verdict(capsys, tmp_path):
    done = succeed(capsys, "compare", "--measure", conv_onnx(tmp_path / "m.onnx"), "--with", "onnxruntime", "--cores", 1, *SHORT)
    for word in ("m.onnx, onnxruntime", "processor  ", "governor  ", "temperature", "nothing was compared with it"):
        assert word in done.out


def test_size_that_a_file_leaves_open_is_given(capsys, tmp_path):
    path = conv_onnx(tmp_path / "m.onnx", shape=("n", CHANNELS, "h", "w"), out=("n", FILTERS, "h", "w"))
    refused = call(capsys, "compare", "--measure", path, "--with", "onnxruntime", *SHORT)
    assert (refused.code, refused.hint) == (2, f"give numbers in place of the marks: --input x=?x{CHANNELS}x?x?")
    done = call(capsys, "compare", "--measure", path, "--with", "onnxruntime", "--input", f"{CHANNELS}x6x5", *SHORT, "--json")
    assert json.loads(done.out)["files"][0]["inputs"] == {"x": f"float32 1x{CHANNELS}x6x5"}


def test_file_that_is_no_measurement_is_refused_by_its_check(capsys, tmp_path):
    file = tmp_path / "m.json"
    assert "cannot read the measurement" in call(capsys, "verify", file).message
    file.write_text("{}")
    assert "is no measurement" in call(capsys, "verify", file).message
    assert call(capsys, "verify", file, "--sign", "key.pem").code == 2


def test_files_are_timed_without_torch(tmp_path):
    if unavailable("onnxruntime"):
        pytest.skip("onnxruntime is not installed")
    path = conv_onnx(tmp_path / "m.onnx")
    code = "import sys; sys.modules['torch'] = None; sys.modules['scipy'] = None"
    done = spawn(code, "compare", "--measure", path, "--with", "onnxruntime", *SHORT, "--json")
    assert done.code == 0, done.err
