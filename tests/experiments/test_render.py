"""Pages are filled from records, stale pages are found, and no page states a number of its own."""

import re
import subprocess
import sys

import pytest

from experiments.records import write_record
from experiments.render import BLOCKS, pages, render
from predictors.errors import StretchError
from tests.contracts.repository import ROOT

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


def test_page_without_blocks_is_left_alone(root):
    page = "a | b\n<!-- a comment -->\nwrite `<!-- block x -->` there\n"
    assert render(page, "README.md", root) == page


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("<!-- block times -->\n", "no part of a block"),
        ("<!-- block times -->\n<!-- block times -->\n<!-- /block -->\n", "no part of a block"),
        ("takes <!-- value x.json#t/r/c -->1<!-- /value -->\n", "no part of a block"),
        ("| <!-- block times -->1<!-- /block --> |\n", "no part of a block"),
        ("<!-- block absent -->\n<!-- /block -->\n", "README.md has the block `absent`"),
        (f"<!-- block {RECORD}#speed -->\n<!-- /block -->\n", "README.md shows the table `speed`"),
    ],
)
def test_block_that_cannot_be_filled_is_an_error(root, page, reason):
    with pytest.raises(StretchError, match=reason):
        render(page, "README.md", root)


def test_pages_of_this_repository_are_up_to_date():
    result = subprocess.run([sys.executable, "-m", "experiments.render", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_template_is_used_by_a_page():
    used = {name for page in pages() for name in re.findall(r"^<!-- block (\w+) -->$", page.read_text(), re.MULTILINE)}
    assert {path.stem for path in (ROOT / BLOCKS).iterdir()} == used


#: What reads like a result: a number with a decimal point, or one with a unit in which results are told.
RESULT = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])|\d\s?(?:%|×(?!\d)|ms\b|µs\b|GFLOP/s|GPU minutes|times (?:as|the|its))")
#: Words with numbers that are no results.
NO_RESULTS = re.compile(
    r"`[^`]*`|\]\([^)]*\)|95 % (?:interval|confidence)|Python 3\.11|PoCL 3\.0|[Rr]elease 0\.1\.0|since 0\.1\.0|0\.1\.0 \(|Apache-2\.0|RegNetX-1\.6GF|SqueezeNet 1\.1"
)
BLOCK = re.compile(r"^<!-- block .*?^<!-- /block -->$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("text", ["keeps 99.4 %", "is 1.13 times as fast", "12 ms", "2× faster", "in 0.97 of it", "3 times the speed"])
def test_what_reads_like_a_result_is_found(text):
    assert RESULT.search(NO_RESULTS.sub("", text))


@pytest.mark.parametrize("text", ["a 95 % interval", "Python 3.11", "`-t 0.5`", "a 3×3 kernel", "ResNet-50", "1×1 convolutions"])
def test_what_is_no_result_is_not_taken_for_one(text):
    assert not RESULT.search(NO_RESULTS.sub("", text))


def test_readme_states_no_result_outside_of_blocks():
    assert RESULT.findall(NO_RESULTS.sub("", BLOCK.sub("", (ROOT / "README.md").read_text()))) == []


@pytest.mark.parametrize("path", sorted((ROOT / BLOCKS).iterdir()), ids=lambda path: path.stem)
def test_template_states_no_result_of_its_own(path):
    assert RESULT.findall(NO_RESULTS.sub("", re.sub(r"\{\{.*?\}\}", "", path.read_text(), flags=re.DOTALL))) == []
