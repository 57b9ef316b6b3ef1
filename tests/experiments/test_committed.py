"""Figures in committed records are those of the functions that compute them, and say how they were found."""

import numpy as np
import pytest

from experiments.predictor_pooled.run import HERE
from experiments.records import read_record
from tests.contracts.repository import ROOT

pytest.importorskip("torch")
pytest.importorskip("pyopencl")

from experiments.main_job.run import DEVICES, MODELS, predicted_row
from experiments.opencl_convolutions.run import summary

MATRIX = ROOT / "experiments" / "main_job" / "results" / "predicted.json"


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_recorded_prediction_is_what_the_planner_says_now(device):
    """Fails when planning or a profile changes: run ``python -m experiments.main_job.run predict``."""
    recorded = {row["model and device"]: row for row in read_record(MATRIX).tables["matrix"]}
    built = predicted_row("resnet18", device, DEVICES[device])
    for column, value in built.items():
        known = recorded[built["model and device"]][column]
        assert known == (pytest.approx(value, rel=0.02) if isinstance(value, float) else value), column


def test_what_is_recommended_is_predicted_to_be_faster_and_every_network_is_accounted_for():
    record = read_record(MATRIX)
    rows, refused = record.tables["matrix"], [note for note in record.notes if "no design of" in note]
    assert len(rows) + len(refused) == len(MODELS) * len(DEVICES)
    for row in rows:
        ratios = [row[name] for name in ("speed-up", "over sequential") if row[name] is not None]
        if row["recommended"] == "branched":
            assert min(ratios) > 1
        if row["recommended"].startswith("sequential"):
            assert row["over sequential"] < 1


def test_every_place_of_the_record_is_counted_in_its_networks():
    record = read_record(HERE / "results" / "families_left_out.json")
    for name in ("npu", "boards", "transformers"):
        assert sum(row["times"] for row in record.tables[name]) == sum(row["times"] for row in record.tables[f"{name}_networks"])
        for row in record.tables[f"{name}_networks"]:
            least, median, most = (row[f"predicted ÷ measured, {key}"] for key in ("least", "median", "most"))
            assert 0 < least <= median <= most < np.inf


COSTS = ROOT / "experiments" / "supernet" / "results" / "h200.json"
WITH = ", and the original's training"


def test_recorded_costs_add_up():
    rows = {row["training"]: row for row in read_record(COSTS).tables["cost"]}
    parent = rows["the original, 100 epochs"]
    pairs = [name for name in rows if name.endswith(WITH)]
    assert len(pairs) == 2
    for name in pairs:
        alone = rows[name.removesuffix(WITH)]
        assert rows[name]["GPU minutes"] == pytest.approx(alone["GPU minutes"] + parent["GPU minutes"], abs=0.011)
        assert rows[name]["over one"] == pytest.approx(alone["over one"] + parent["over one"], abs=0.021)


CONVOLUTIONS = ROOT / "experiments" / "opencl_convolutions" / "results" / "host.json"


def row(words, ours, theirs, times=1):
    """A measured convolution."""
    return {
        "convolution": words,
        "times": times,
        "OpenCL_ms": ours,
        "direct_ms": 2 * ours,
        "ONNX_Runtime_ms": theirs,
        "speed_over_ONNX_Runtime": theirs / ours,
    }


def test_images_of_one_pixel_are_left_out_of_one_mean_and_not_of_the_other():
    rows = [row("net: 8×7×7 → 8, 1×1", 1.0, 2.0, 3), row("net: 8×1×1 → 8, 1×1", 1.0, 32.0), row("network: 8×1×1 → 8, 1×1", 1.0, 5.0)]
    result = summary(rows)[0]
    assert (result["network"], result["convolutions"], result["of_one_pixel"]) == ("net", 2, 1)
    assert (result["geometric_mean"], result["without_one_pixel"], result["without_both"]) == (8.0, 2.0, 1.0)
    assert (result["sum_ms"], result["ONNX_Runtime_sum_ms"]) == (4.0, 38.0)


def test_committed_summary_is_that_of_its_rows():
    record = read_record(CONVOLUTIONS)
    assert record.tables["summary"] == summary(record.tables["convolutions"])
