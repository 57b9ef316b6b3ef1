"""Predicted latency beside measured accuracy: which is which, and in what precision."""

import pytest

pytest.importorskip("torch")

from experiments.records import read_record
from tests.contracts.repository import ROOT

RESULTS = ROOT / "experiments" / "cifar_accuracy" / "results"


def test_accuracies_are_those_of_the_measured_record():
    measured = {row["variant"]: row["top-1 %"] for row in read_record(RESULTS / "h200.json").tables["accuracy"]}
    for row in read_record(RESULTS / "latency.json").tables["meeting_points"]:
        name = "branched, depth only" if row["design"] == "3 meeting points" else row["design"]
        assert row["top-1 %"] == measured[f"{name}, 40 epochs"]
