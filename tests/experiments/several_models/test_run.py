"""What is simulated of pairs is summed up as it was simulated."""

import pytest

pytest.importorskip("torch")

from experiments.records import read_record
from experiments.several_models.run import summary
from tests.contracts.repository import ROOT
from tests.stretch.planning.test_together import MI9, PROCESSORS, both  # noqa: F401

RECORD = ROOT / "experiments" / "several_models" / "results" / "simulated.json"


@pytest.fixture(scope="module")
def record():
    return read_record(RECORD)


def test_record_has_a_hundred_pairs_and_its_summary_follows_from_them(record):
    assert len(record.tables["pairs"]) >= 100
    assert summary(record.tables["pairs"]) == record.tables["summary"]


def test_no_pair_is_slower_than_the_best_mapping(record):
    assert all(row["over the mapping"] >= 1 and row["rate over the mapping"] >= 1 for row in record.tables["pairs"])


def test_ratios_of_a_row_are_those_of_its_times(record):
    for row in record.tables["pairs"]:
        assert row["over the mapping"] == pytest.approx(row["best mapping, ms"] / row["together, ms"], rel=2e-3)
        assert row["over one after the other"] == pytest.approx(row["one after the other, ms"] / row["together, ms"], rel=2e-3)
