"""What exact and mixed designs are said to gain is what the planner says."""

from math import exp, log

import pytest

pytest.importorskip("torch")

from experiments.lossless.run import DEVICES, KINDS, MODELS, PROFILES, easier, graph_of, means, planned, profile, rows_of
from experiments.records import read_record
from tests.contracts.repository import ROOT

RESULTS = ROOT / "experiments" / "lossless" / "results"
RECORD = read_record(RESULTS / "predicted.json")
NAME = "network, device and profile"


@pytest.mark.slow
def test_recorded_prediction_is_what_the_planner_says_now():
    """Fails when planning changes: run ``python -m experiments.lossless.run predict``; the profile is one that stays."""
    made = rows_of("resnet34", graph_of("resnet34"), "0.1.0", "mi9", "cpu,gpu")
    for table, row in zip(("speed-ups", "designs"), made, strict=False):
        recorded = next(each for each in RECORD.tables[table] if each[NAME] == row[NAME])
        for column, value in row.items():
            assert recorded[column] == (pytest.approx(value, rel=0.02, abs=0.1) if isinstance(value, float) else value), column


def test_every_network_is_planned_on_every_device_and_profile():
    names = {f"{name}, {device} {processors}, {which}" for name in MODELS.values() for device, processors in DEVICES for which in PROFILES}
    assert {row[NAME] for row in RECORD.tables["speed-ups"]} == names
    assert len(RECORD.tables["means"]) == len(DEVICES) * len(PROFILES)


def test_mixed_designs_are_never_slower_than_those_of_one_kind():
    for row in RECORD.tables["speed-ups"]:
        assert row["mixed"] >= max(row["stretched"] or 0, row["exact"] or 0) - 0.001, row[NAME]


def test_means_are_those_of_the_rows_beside_them():
    again = {row["device and profile"]: row for row in means(RECORD.tables["speed-ups"], list(MODELS))}
    for row in RECORD.tables["means"]:
        assert row == again[row["device and profile"]]
    bounds = read_record(RESULTS / "bounds.json")
    for row in bounds.tables["means"]:
        some = [each for each in bounds.tables["networks"] if each["network and device"].endswith(f", {row['device']}")]
        assert row["free"] == pytest.approx(exp(sum(log(each["free"]) for each in some) / len(some)), abs=0.001)


@pytest.mark.slow
def test_easier_links_leave_exact_designs_no_slower():
    graph = graph_of("resnet34")
    own = profile("0.1.0", "mi9")
    times = [
        planned(graph, each, "cpu,gpu", KINDS["exact"])[0].run.makespan_ms
        for each in (own, easier(own, fixed=False), easier(own, fixed=True))
    ]
    assert times == sorted(times, reverse=True)
