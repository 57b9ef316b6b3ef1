"""The program at a tiny size: one core, one thread, and a record of every column."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from experiments.calibration import one_core  # noqa: E402 - torch may be missing
from experiments.records import read_record  # noqa: E402
from predictors.errors import StretchError  # noqa: E402

pytestmark = pytest.mark.torch
LOOSE = {"alpha": 5.0, "beta": 5.0, "join": "sum"}


@pytest.mark.slow
def test_times_of_calibration_and_of_either_phase_make_a_record(tmp_path):
    row = one_core.measure(one_core.Case("tiny_resnet", 16, 8), config=LOOSE)
    assert row["calibration_s"] > 0
    out = tmp_path / "experiments" / "calibration" / "results" / "one_core.json"
    one_core.record([row], 0.25, out)
    found = read_record(out)
    assert found.tables == {"one_core": [row]}
    assert (found.source, found.load) == ("measured", 0.25)
    assert list(row) == ["network", "images", "gmacs", "macs_ratio", "calibration_s", "by_segments_s", "together_s"]


@pytest.mark.slow
def test_process_is_left_one_core_and_one_thread():
    code = "import os, torch\nfrom experiments.calibration.one_core import alone\nalone(max(os.sched_getaffinity(0)))\n"
    code += "print(len(os.sched_getaffinity(0)), torch.get_num_threads())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]


@pytest.mark.slow
def test_process_that_fails_is_one_sentence_and_no_record(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(one_core, "CASES", (one_core.Case("no_such_network", 16, 8),))
    with pytest.raises(StretchError, match="`no_such_network` was not measured"):
        one_core._in_its_own_process(one_core.CASES[0], 0)
    assert one_core.main(["--core", "0", "--out", str(tmp_path / "one_core.json")]) == 1
    assert "was not measured" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
