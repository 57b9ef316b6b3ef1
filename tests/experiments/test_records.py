"""Records hold numbers with what they depend on, and are checked."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.records import read_record, write_record
from predictors.errors import StretchError
from tests.contracts.repository import ROOT, files

TABLES = {"phases": [{"phase": "plan", "seconds": 1.5}, {"phase": "export", "seconds": 4}]}
FACTS = {"source": "measured", "command": "python -m experiments.x.run", "runs": 3, "load": 0.25}


def test_record_is_read_back_with_machine_versions_and_load(tmp_path):
    path = tmp_path / "x" / "results" / "host.json"
    written = write_record(path, TABLES, **FACTS)
    assert read_record(path) == written
    assert written.experiment == "x"
    assert written.machine.cores > 0
    assert written.versions["nn-stretch"]
    assert written.load == 0.25
    assert [p.name for p in path.parent.iterdir()] == ["host.json"]


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.builds(
    lambda name, ms, n: {"name": name, "ms": ms, "n": n}, st.text(max_size=9), NUMBERS, st.none() | st.integers(-(2**53), 2**53)
)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_any_table_of_equal_columns_round_trips(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("record") / "x" / "results" / "host.json"
    write_record(path, {"t": rows}, **FACTS)
    assert read_record(path).tables["t"] == rows


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ({}, "has no table"),
        ({"t": []}, "no rows"),
        ({"t": [{}]}, "an empty one"),
        ({"t": [{"a": 1}, {"b": 1}]}, "different columns"),
    ],
)
def test_malformed_table_is_not_written(tmp_path, tables, reason):
    path = tmp_path / "x" / "results" / "host.json"
    with pytest.raises(StretchError, match=reason):
        write_record(path, tables, **FACTS)
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r.update(schema=99), "record schema 99"),
        (lambda r: r.update(source="guessed"), "is no record"),
        (lambda r: r.update(extra=1), "is no record"),
        (lambda r: r.pop("machine"), "is no record"),
        (lambda r: r.update(runs=0), "has 0 runs"),
        (lambda r: r.update(experiment="y"), "belongs to the experiment `y`"),
    ],
)
def test_record_that_breaks_the_schema_is_refused(tmp_path, change, reason):
    path = tmp_path / "x" / "results" / "host.json"
    record = msgspec.to_builtins(write_record(path, TABLES, **FACTS))
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(StretchError, match=reason):
        read_record(path)


def test_missing_record_is_named(tmp_path):
    with pytest.raises(StretchError, match=r"cannot read the record .*absent\.json"):
        read_record(tmp_path / "absent.json")


def test_every_committed_record_is_valid():
    for path in files(".json"):
        if path.parts[0] == "experiments" and path.parts[2] == "results":
            assert read_record(ROOT / path).experiment == path.parts[1]


def test_every_experiment_has_a_readme_and_a_way_to_run_it():
    for folder in sorted(
        {Path(*path.parts[:2]) for path in files(".py", ".json", ".md") if path.parts[0] == "experiments" and len(path.parts) > 2}
    ):
        assert (ROOT / folder / "README.md").is_file(), folder
        assert (ROOT / folder / "run.py").is_file(), folder
