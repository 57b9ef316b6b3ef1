"""Simulated speed-ups: means over networks and devices with one number changed are those of the recorded cases."""

import pytest

pytest.importorskip("torch")

from experiments.networks import MODELS
from experiments.records import read_record
from experiments.simulated_speedup.run import CUTS, MIXED, TABLES, Case, cases_of, planned_row
from tests.contracts.repository import ROOT
from tests.predictors.networks import small_resnet

RECORD = ROOT / "experiments" / "simulated_speedup" / "results" / "speedup.json"


@pytest.mark.skipif(not RECORD.exists(), reason="nothing is recorded")
def test_recorded_tables_are_those_of_the_recorded_cases():
    record = read_record(RECORD)
    rows = {str(row["case"]): row for row in record.tables["cases"]}
    models = [model for model in MODELS if next(cases_of(model)).name in rows]
    for name, table in TABLES.items():
        assert table(rows, models) == record.tables[name]


@pytest.mark.slow
def test_more_places_to_cut_are_never_slower():
    stages, blocks = (planned_row(Case("resnet34", "mi9-release", "cpu,dsp", *MIXED, change), small_resnet(160)) for change in ("", CUTS))
    assert blocks["speed-up"] >= stages["speed-up"] > 0
