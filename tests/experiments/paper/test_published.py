"""What was copied from the papers stands in the record as it stands in the files."""

import csv

from experiments.paper.published import HERE, PAPERS, copied
from experiments.records import read_record


def test_record_is_what_the_files_hold():
    record = read_record(HERE / "results" / "published.json")
    assert record.source == "paper"
    assert record.tables == {name: copied(HERE / file) for name, file in PAPERS.items()}


def test_every_number_has_a_name_of_its_own_a_unit_and_a_section():
    for file in PAPERS.values():
        with (HERE / file).open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert len({row["published"] for row in rows}) == len(rows)
        assert all(row["unit"] and row["section"] for row in rows)


def test_every_file_of_copied_numbers_is_read():
    assert {path.name for path in HERE.glob("paper_*.csv")} == set(PAPERS.values())
