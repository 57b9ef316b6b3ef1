"""Marks say where a number is from, and what a figure needs is read from records and the papers' files."""

import pytest

from experiments.paper.published import HERE, PAPERS, copied
from experiments.records import read_record

pytest.importorskip("matplotlib")


from experiments.paper.chart import point_of
from experiments.records import About, Facts, Machine, write_record

ROWS = [{"name": "a", "ms": 2.0, "predicted": 3.0, "±": 0.5}, {"name": "b", "ms": None, "predicted": 4.0, "±": None}]


@pytest.fixture
def record(tmp_path):
    """A measured record with a predicted column and a published row."""
    about = {"t": About(columns={"predicted": Facts(source="predicted")}, rows={"b": Facts(source="paper")})}
    return write_record(
        tmp_path / "e" / "results" / "r.json",
        {"t": ROWS},
        source="measured",
        command="make it",
        runs=1,
        load=0.0,
        about=about,
        machine=Machine("p", 1, 1.0, "s"),
    )


def test_interval_is_either_its_ends_or_half_of_it(record):
    half = point_of(record, "t", ROWS[0], "ms", ends=("±", "±"))
    assert (half.low, half.high) == (1.5, 2.5)
    ends = point_of(record, "t", ROWS[0], "ms", ends=("±", "predicted"))
    assert (ends.low, ends.high) == (0.5, 3.0)


def test_record_is_what_the_files_hold():
    record = read_record(HERE / "results" / "published.json")
    assert record.source == "paper"
    assert record.tables == {name: copied(HERE / file) for name, file in PAPERS.items()}
