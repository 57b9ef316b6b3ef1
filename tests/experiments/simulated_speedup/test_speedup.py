"""Simulated speed-ups: means over networks, devices with one number changed, and rows that are taken up."""

import pytest

pytest.importorskip("torch")

from experiments.lossless.run import MODELS as ALL
from experiments.records import read_record
from experiments.simulated_speedup.cases import VARIED, Case, cases_of, planned_row
from experiments.simulated_speedup.cuts import CUTS, row_of
from experiments.simulated_speedup.summary import bounds, means, networks, varied
from tests.contracts.repository import ROOT
from tests.predictors.networks import small_resnet

MODELS = ("resnet34", "resnet50")
RECORD = ROOT / "experiments" / "simulated_speedup" / "results" / "speedup.json"


@pytest.mark.skipif(not RECORD.exists(), reason="nothing is recorded")
def test_recorded_means_are_those_of_the_recorded_cases():
    record = read_record(RECORD)
    rows = {str(row["case"]): row for row in record.tables["cases"]}
    models = [model for model in ALL if next(cases_of(model)).name in rows]
    assert means(rows, models) == record.tables["means"]
    assert varied(rows, models) == record.tables["varied"]
    assert bounds(rows, models) == record.tables["bounds"]
    assert networks(rows, models) == record.tables["networks"]


@pytest.mark.slow
def test_more_places_to_cut_are_never_slower():
    case = Case("resnet34", "0.1.0", "mi9", "cpu,dsp", *VARIED)
    row = row_of(case, {cuts: planned_row(case, small_resnet(160), cuts) for cuts in CUTS})
    assert row["speed-up, blocks"] >= row["speed-up, stages"] > 0
    assert row["network, device and profile"].endswith("mi9 cpu,dsp, 0.1.0")
