"""`stretch profile`: a profile of this machine, times of others brought in, and what is refused before anything is measured."""

import json

import pytest

from tests.predictors.measurements.test_litert import PROFILE
from tests.stretch.cli.commands import call


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--name", "here", "--processors", "gpu"), 2, "a profile needs the processor `cpu`"),
        (("--name", "here", "--processors", "cpu,npu"), 3, "unknown processor to measure `npu`"),
        (("--name", "here", "--model", "resnet18"), 2, "go with --from"),
        (("--name", "here", "--from", "x.csv"), 2, "--from needs to know what ran the networks"),
        (("--name", "here", "--from", "x.csv", "--processor", "cpu[1large]"), 1, "cannot read the measurements x.csv"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(capsys, tmp_path, monkeypatch, words, code, told):
    monkeypatch.chdir(tmp_path)
    result = call(capsys, "profile", *words)
    assert result.code == code
    assert told in result.message
    assert not list(tmp_path.iterdir())


@pytest.mark.torch
def test_times_of_a_phone_are_brought_in(capsys, tmp_path):
    (tmp_path / "x.csv").write_text(PROFILE)
    words = ("--name", "myphone", "--from", tmp_path / "x.csv", "--model", "tiny_resnet", "--processor", "cpu[1large]", "--out", tmp_path)
    result = call(capsys, "profile", *words, "--json", "--quiet")
    assert result.code == 0, result.out
    assert json.loads(result.out)["networks"] == {"tiny_resnet": {"processor": "cpu[1large]", "precision": "fp32", "ms": 2.5}}


def test_measurements_are_not_overwritten(capsys, tmp_path):
    (tmp_path / "here.measurements").mkdir()
    result = call(capsys, "profile", "--name", "here", "--processors", "cpu", "--out", tmp_path)
    assert result.code == 1
    assert "has measurements already" in result.message
    assert "--resume" in result.hint
