"""The predictions on pages are those of the planner as it is."""

import pytest

pytest.importorskip("torch")

from experiments.main_job.run import DEVICES, MODELS, predicted_row
from experiments.records import read_record
from tests.contracts.repository import ROOT

RECORD = ROOT / "experiments" / "main_job" / "results" / "predicted.json"


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_recorded_prediction_is_what_the_planner_says_now(device):
    """Fails when planning or a profile changes: run ``python -m experiments.main_job.run predict``."""
    recorded = {row["model and device"]: row for row in read_record(RECORD).tables["matrix"]}
    made = predicted_row("resnet18", device, DEVICES[device])
    for column, value in made.items():
        known = recorded[made["model and device"]][column]
        assert known == (pytest.approx(value, rel=0.02) if isinstance(value, float) else value), column


def test_what_is_recommended_is_predicted_to_be_faster_and_every_network_is_accounted_for():
    record = read_record(RECORD)
    rows, refused = record.tables["matrix"], [note for note in record.notes if "no design of" in note]
    assert len(rows) + len(refused) == len(MODELS) * len(DEVICES)
    for row in rows:
        ratios = [row[name] for name in ("speed-up", "over sequential") if row[name] is not None]
        if row["recommended"] == "branched":
            assert min(ratios) > 1
        if row["recommended"].startswith("sequential"):
            assert row["over sequential"] < 1
