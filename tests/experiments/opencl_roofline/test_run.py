"""Splits that are computed from measured rows are not called measured."""

import pytest

pytest.importorskip("pyopencl")

from experiments.opencl_roofline.run import about
from experiments.records import read_record
from tests.contracts.repository import ROOT


def test_rows_of_the_committed_record_are_told_apart():
    record = read_record(ROOT / "experiments" / "opencl_roofline" / "results" / "host.json")
    assert record.about == about(record.tables["peaks"], record.tables["two_cores"])
    perfect = [row["on both cores"] for row in record.tables["two_cores"] if row["on both cores"].startswith("perfect")]
    assert len(perfect) == 3
    assert all(record.facts("two_cores", row=name).source == "predicted" for name in perfect)
    assert record.facts("two_cores", row="OpenVINO, 2 threads").source == "measured"
