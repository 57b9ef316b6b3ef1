"""Pages are filled from records, and stale pages are found."""

import re
import subprocess
import sys

import pytest

from experiments.records import write_record
from experiments.render import render, show
from predictors.errors import StretchError
from tests.contracts.repository import ROOT

RECORD = "experiments/x/results/host.json"


@pytest.fixture
def root(tmp_path):
    """A repository with one record."""
    tables = {
        "phases": [{"phase": "plan", "seconds": 1.5, "kept": True}, {"phase": "export all", "seconds": 12.346, "kept": None}],
        "other": [{"model and device": "a b", "of ideal": 0.5}],
    }
    write_record(tmp_path / RECORD, tables, source="measured", command="make it", runs=3, load=0.1, notes=["Shared machine", "Noisy."])
    return tmp_path


def test_table_marker_is_filled_with_columns_rows_and_provenance(root):
    page = f"before\n<!-- table {RECORD}#phases -->\nold\n<!-- /table -->\nafter\n"
    lines = render(page, "README.md", root).splitlines()
    assert lines[0] == "before"
    assert lines[2:6] == ["| phase | seconds | kept |", "|---|---:|---:|", "| plan | 1.50 | yes |", "| export all | 12.3 | – |"]
    assert lines[7].startswith("*Measured* on 20")
    assert "load before the run 0.1; 3 runs. Reproduce: `make it`. Shared machine. Noisy." in lines[7]
    assert lines[-2:] == ["<!-- /table -->", "after"]


def test_value_marker_is_filled_inside_a_sentence(root):
    page = f"takes <!-- value {RECORD}#phases/export all/seconds -->?<!-- /value --> s"
    assert render(page, "README.md", root) == f"takes <!-- value {RECORD}#phases/export all/seconds -->12.3<!-- /value --> s"


def test_row_and_column_of_a_value_may_have_spaces(root):
    page = f"<!-- value {RECORD}#other/a b/of ideal --><!-- /value --> and <!-- value {RECORD}#phases/plan/seconds --><!-- /value -->"
    assert re.sub(r"<!--.*?-->", "", render(page, "README.md", root)) == "0.500 and 1.50"


def test_rendering_twice_changes_nothing(root):
    page = f"<!-- table {RECORD}#phases -->\n<!-- /table -->\n<!-- value {RECORD}#phases/plan/seconds --><!-- /value -->\n"
    once = render(page, "README.md", root)
    assert render(once, "README.md", root) == once


def test_page_without_markers_is_left_alone(root):
    assert render("a | b\n<!-- a comment -->\n", "README.md", root) == "a | b\n<!-- a comment -->\n"


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        (f"<!-- table {RECORD}#speed -->\n<!-- /table -->", "README.md shows the table `speed`"),
        (f"<!-- value {RECORD}#phases/train/seconds --><!-- /value -->", "shows `phases/train/seconds`"),
        (f"<!-- value {RECORD}#phases/plan/hours --><!-- /value -->", "shows `phases/plan/hours`"),
        ("<!-- table experiments/y/results/host.json#t -->\n<!-- /table -->", "cannot read the record"),
        ("<!-- table ../x.json#t -->\n<!-- /table -->", "outside the repository"),
    ],
)
def test_marker_that_names_nothing_is_an_error(root, marker, reason):
    with pytest.raises(StretchError, match=reason):
        render(marker, "README.md", root)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (0.00123, "0.0012"),
        (0.5, "0.500"),
        (0.97, "0.970"),
        (0.0123, "0.0123"),
        (-2.5, "-2.50"),
        (1.0, "1.00"),
        (29.64, "29.6"),
        (1234.5, "1234"),
        (4096000, "4 096 000"),
        (None, "–"),
        (True, "yes"),
        ("a|b", "a\\|b"),
    ],
)
def test_numbers_are_shown_to_three_digits(value, shown):
    assert show(value) == shown


def test_pages_of_this_repository_are_up_to_date():
    result = subprocess.run([sys.executable, "-m", "experiments.render", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
