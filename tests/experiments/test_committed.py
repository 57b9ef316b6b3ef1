"""Committed records and screenshots agree with the current code and with each other."""

import numpy as np
import pytest
from PIL import Image

from experiments.predictor_pooled.run import HERE
from experiments.records import read_record
from tests.contracts.repository import ROOT

pytest.importorskip("torch")

from experiments.main_job.run import DEVICES, MODELS, predicted_row
from experiments.paper.run import RECORDS, published
from experiments.reports.run import PICTURES, REPORTS, report, shown
from stretch.planning.cost.compare import MIN_GAIN

MATRIX = ROOT / "experiments" / "main_job" / "results" / "predicted.json"


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_recorded_prediction_is_that_of_the_current_planner(device):
    """Fail after a change of planning or a profile: run ``python -m experiments.main_job.run predict``."""
    recorded = {row["model and device"]: row for row in read_record(MATRIX).tables["matrix"]}
    built = predicted_row("resnet18", device, DEVICES[device])
    for column, value in built.items():
        known = recorded[built["model and device"]][column]
        assert known == (pytest.approx(value, rel=0.02) if isinstance(value, float) else value), column


def test_recommended_design_is_predicted_to_be_faster_and_every_network_has_a_result():
    record = read_record(MATRIX)
    rows, refused = record.tables["matrix"], [note for note in record.notes if "no design of" in note]
    assert len(rows) + len(refused) == len(MODELS) * len(DEVICES)
    for row in rows:
        ratios = [row[name] for name in ("speed-up", "over sequential") if row[name] is not None]
        if row["recommended"] == "branched":
            assert min(ratios) > 1
        if row["recommended"].startswith("sequential"):
            assert row["over sequential"] < MIN_GAIN


def test_counts_per_processor_and_per_network_agree():
    record = read_record(HERE / "results" / "families_left_out.json")
    for name in ("npu", "boards", "transformers"):
        assert sum(row["times"] for row in record.tables[name]) == sum(row["times"] for row in record.tables[f"{name}_networks"])
        for row in record.tables[f"{name}_networks"]:
            lowest, median, highest = (row[f"predicted ÷ measured, {key}"] for key in ("least", "median", "most"))
            assert 0 < lowest <= median <= highest < np.inf


def test_recorded_published_numbers_are_those_of_the_file():
    record = read_record(RECORDS / "published.json")
    assert (record.source, record.tables) == ("paper", {"stretch": published()})


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", REPORTS)
def test_screenshot_shows_the_text_of_the_current_report(tmp_path, name):
    # the page states the command with the name of the file
    path = tmp_path / f"{name}.html"
    report(REPORTS[name], path)
    with Image.open(PICTURES / f"{name}.png") as picture:
        assert picture.info.get("report") == shown(path), "draw it with python -m experiments.reports.run"
