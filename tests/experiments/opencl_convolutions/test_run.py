"""The summary of convolutions is what its rows give, and tells images of one pixel apart."""

import pytest

pytest.importorskip("pyopencl")

from experiments.opencl_convolutions.run import summary
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


def test_committed_summary_is_that_of_its_rows():
    record = read_record(RECORD)
    assert record.tables["summary"] == summary(record.tables["convolutions"])
