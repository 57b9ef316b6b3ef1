"""The command takes any file of designs, and tells what is wrong with one in a sentence."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from experiments.published_designs.run import about, main
from experiments.records import read_record
from tests.contracts.repository import ROOT

FILE = "design,model,ms,cpu depths,cpu widths,cpu ms,dsp depths,dsp widths,dsp ms\nd,ResNet-34,18,3 4 6 3,48 88 176 352,24,2 3 4 2,40 80 160 320,27\n"


@pytest.mark.slow
def test_file_of_somebody_is_predicted_told_and_recorded_where_that_is_asked_for(tmp_path):
    path, out = tmp_path / "theirs.csv", tmp_path / "them" / "results" / "theirs.json"
    path.write_text(FILE + "too deep,ResNet-34,18,9 4 6 3,48 88 176 352,24,2 3 4 2,40 80 160 320,27\n")
    command = [sys.executable, "-m", "experiments.published_designs.run", str(path), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    tables = json.loads(done.stdout)
    assert [row["measured ms"] for row in tables["designs"]] == [18.0, 18.0]
    assert [row["number"] for row in tables["errors"]] == [2, 1, 1, 2, 1, 1]
    assert tables["refused"] == [{"design": "too deep", "why": "branch `cpu` has 9 blocks in stage 1, the network 3"}]
    record = read_record(out)
    assert record.tables == tables
    assert record.facts("designs", column="measured ms").source == "paper"
    assert record.facts("designs", column="predicted ms").source == "predicted"


def test_file_that_is_none_is_one_sentence(tmp_path, capsys):
    path = tmp_path / "theirs.csv"
    path.write_text(FILE.replace("3 4 6 3", "many"))
    assert main([str(path)]) == 1
    assert capsys.readouterr().err.startswith("error: line 2 of ")


@pytest.mark.slow
def test_file_of_which_nothing_fits_is_one_sentence(tmp_path, capsys):
    path = tmp_path / "theirs.csv"
    path.write_text(FILE.replace("3 4 6 3", "9 4 6 3"))
    assert main([str(path)]) == 1
    assert capsys.readouterr().err.startswith("error: branch `cpu` has 9 blocks in stage 1, the network 3\n\nhint: ")


def test_what_others_measured_is_told_apart_from_predictions():
    assert about({"alone": []})["alone"].columns["measured ms"].source == "paper"
    assert "errors" not in about({"errors": []})
