"""Means are over the networks that have a design, and a goal is reached or not by the merged mixed one."""

import pytest

pytest.importorskip("torch")

from experiments.lossless.run import DEVICES, PROFILES
from experiments.lossless.run import MODELS as ALL
from experiments.records import read_record
from experiments.simulated_speedup.cases import COLUMNS, cases_of
from experiments.simulated_speedup.summary import bounds, geo_mean, means, networks, varied
from tests.contracts.repository import ROOT

MODELS = ("resnet34", "resnet50")
RECORD = ROOT / "experiments" / "simulated_speedup" / "results" / "speedup.json"


def rows_where(speedup):
    """Every case of two networks with a speed-up of its own."""
    found = {}
    for model in MODELS:
        for case in cases_of(model):
            row = {"case": case.name} | dict.fromkeys(COLUMNS)
            if (value := speedup(case)) is not None:
                row |= {"speed-up": value, "over sequential": value / 2, "best single ms": 8.0, "ideal ms": 2.0, "bound ms": 4.0}
                row |= {"efficiency": 0.5, "of ideal": 0.5, "moving %": 1.0, "contention %": 2.0}
            found[case.name] = row
    return found


def test_geometric_mean_leaves_out_what_is_not_there():
    assert geo_mean([1.0, 4.0, None]) == 2.0
    assert geo_mean([None]) is None


def test_means_count_networks_with_a_stretched_design_and_meet_the_goals_or_not():
    def speedup(case):
        if case.kind == "stretched" and case.model == "resnet34":
            return None
        return 4.0 if case.model == "resnet50" else 1.0

    rows = {row["device and profile"]: row for row in means(rows_where(speedup), MODELS)}
    assert len(rows) == len(PROFILES) * len(DEVICES)
    row = rows["mi9 cpu,gpu,dsp, fitted"]
    assert (row["mixed, merged"], row["stretched, merged"], row["with a stretched design"]) == (2.0, 4.0, 1)
    assert (row["reached"], row["reached over sequential"]) == ("yes", "no")
    assert rows["pixel6 cpu,gpu, 0.1.0"]["reached"] is None


@pytest.mark.skipif(not RECORD.exists(), reason="nothing is recorded")
def test_recorded_means_are_those_of_the_recorded_cases():
    record = read_record(RECORD)
    rows = {str(row["case"]): row for row in record.tables["cases"]}
    models = [model for model in ALL if next(cases_of(model)).name in rows]
    assert means(rows, models) == record.tables["means"]
    assert varied(rows, models) == record.tables["varied"]
    assert bounds(rows, models) == record.tables["bounds"]
    assert networks(rows, models) == record.tables["networks"]
