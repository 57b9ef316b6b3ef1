"""What exact designs are said to gain is what the planner says."""

from math import exp, log

import pytest

pytest.importorskip("torch")

from experiments.lossless.run import MODELS, means
from experiments.records import read_record
from tests.contracts.repository import ROOT

RESULTS = ROOT / "experiments" / "lossless" / "results"
RECORD = read_record(RESULTS / "predicted.json")


def test_means_are_those_of_the_rows_beside_them():
    again = {row["device and profile"]: row for row in means(RECORD.tables["speed-ups"], list(MODELS))}
    for row in RECORD.tables["means"]:
        assert row == again[row["device and profile"]]
    bounds = read_record(RESULTS / "bounds.json")
    for row in bounds.tables["means"]:
        some = [table for table in bounds.tables["networks"] if table["network and device"].endswith(f", {row['device']}")]
        assert row["free"] == pytest.approx(exp(sum(log(item["free"]) for item in some) / len(some)), abs=0.001)
