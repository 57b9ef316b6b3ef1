"""Blocks of pages are filled from records."""

import pytest

from experiments.records import write_record
from experiments.render import BLOCKS, render
from predictors.errors import StretchError

RECORD = "experiments/x/results/host.json"


@pytest.fixture
def root(tmp_path):
    """A repository with one record and one template."""
    tables = {"phases": [{"phase": "plan", "seconds": 1.5}, {"phase": "export all", "seconds": 12.346}]}
    write_record(tmp_path / RECORD, tables, source="measured", command="make it", runs=3, load=0.1)
    (tmp_path / BLOCKS).mkdir()
    (tmp_path / BLOCKS / "times.txt").write_text(f"{{{{ use p = {RECORD}#phases }}}}\nPlanning takes {{{{ p/plan/seconds }}}} s.\n")
    return tmp_path


def test_block_of_a_template_is_filled_and_the_rest_stays(root):
    page = "before\n\n<!-- block times -->\nold\nolder\n<!-- /block -->\nafter\n"
    assert render(page, "README.md", root) == "before\n\n<!-- block times -->\nPlanning takes 1.50 s.\n<!-- /block -->\nafter\n"


def test_block_of_a_table_is_filled_with_its_origin(root):
    lines = render(f"<!-- block {RECORD}#phases -->\n<!-- /block -->\n", "README.md", root).splitlines()
    assert lines[1:5] == ["| phase | seconds |", "|---|---:|", "| plan | 1.50 |", "| export all | 12.3 |"]
    assert lines[6].startswith("*Measured*, 20")
    assert lines[7] == "<!-- /block -->"


def test_rendering_twice_changes_nothing(root):
    page = f"<!-- block {RECORD}#phases -->\n<!-- /block -->\n\n<!-- block times -->\n<!-- /block -->\n"
    once = render(page, "README.md", root)
    assert render(once, "README.md", root) == once


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("<!-- block times -->\n", "no part of a block"),
        ("<!-- block times -->\n<!-- block times -->\n<!-- /block -->\n", "no part of a block"),
        ("<!-- block absent -->\n<!-- /block -->\n", "README.md has the block `absent`"),
        (f"<!-- block {RECORD}#speed -->\n<!-- /block -->\n", "README.md shows the table `speed`"),
    ],
)
def test_block_that_cannot_be_filled_is_an_error(root, page, reason):
    with pytest.raises(StretchError, match=reason):
        render(page, "README.md", root)
