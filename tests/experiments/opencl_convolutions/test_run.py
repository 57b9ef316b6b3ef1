"""The summary of convolutions is what its rows give, and tells images of one pixel apart."""

import statistics

import pytest

pytest.importorskip("pyopencl")

from experiments.opencl_convolutions.run import one_pixel, summary
from experiments.records import read_record
from tests.contracts.repository import ROOT

RECORD = ROOT / "experiments" / "opencl_convolutions" / "results" / "host.json"


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
    found = summary(rows)[0]
    assert (found["network"], found["convolutions"], found["of_one_pixel"]) == ("net", 2, 1)
    assert (found["geometric_mean"], found["without_one_pixel"], found["without_both"]) == (8.0, 2.0, 1.0)
    assert (found["sum_ms"], found["ONNX_Runtime_sum_ms"]) == (4.0, 38.0)


@pytest.mark.parametrize(
    ("words", "found"), [("n: 8×1×1 → 8, 1×1", True), ("n: 8×7×7 → 8, 1×1", False), ("n: 8×1×7 → 8, 1×1", False), ("n: 8×11×1 → 8", False)]
)
def test_image_of_one_pixel_is_told_by_both_sides(words, found):
    assert one_pixel({"convolution": words}) is found


def test_committed_summary_is_that_of_its_rows():
    record = read_record(RECORD)
    assert record.tables["summary"] == summary(record.tables["convolutions"])


def test_efficientnet_without_images_of_one_pixel_is_not_the_headline_of_all():
    record = read_record(RECORD)
    found = next(row for row in record.tables["summary"] if row["network"] == "efficientnet_b0")
    rows = [r for r in record.tables["convolutions"] if r["convolution"].startswith("efficientnet_b0: ")]
    larger = [r["speed_over_ONNX_Runtime"] for r in rows if "×1×1 →" not in r["convolution"]]
    assert found["without_one_pixel"] == pytest.approx(statistics.geometric_mean(larger), abs=0.001)
    assert found["of_one_pixel"] == len(rows) - len(larger) > 0
    assert found["without_one_pixel"] < found["geometric_mean"]
