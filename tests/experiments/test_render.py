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
RESULT = re.compile(r"(?<![\w.])\d+\.\d+(?!\w|\.\d)|\d\s?(?:%|×(?!\d)|ms\b|µs\b|GFLOP/s|GPU minutes|times (?:as|the|its))")
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


#: Words of a sentence that states a goal, a bound or a setting.
NO_FINDING = re.compile(
    r"\b(?:goals?|aim|bounds?|at most|at least|below|may be off|within|until|refused|recipe|learning rate|to 1\.0\d of)\b"
)
#: Sentences with numbers that follow from arithmetic, or name a version or a paper's finding.
KNOWN = (
    "a whole sum in half would lose everything that is added beyond 2048 times its size",
    "QNN 2.51 takes them",
    "Its last wheels (2.14)",
    "depth 0.89 and width alone",
    "where the paper finds 1.5",
    "by `--min-cosine`",
)


def findings(text):
    """Sentences outside of blocks, code and tables that read like a result."""
    plain = re.sub(r"^```.*?^```|^\|.*?$", "", BLOCK.sub("", text), flags=re.DOTALL | re.MULTILINE)
    sentences = re.split(r"(?<=[.:;?]) |\n", plain)
    return [
        each
        for each in sentences
        if RESULT.search(NO_RESULTS.sub("", each)) and not NO_FINDING.search(each) and not any(known in each for known in KNOWN)
    ]


def test_finding_outside_of_a_block_is_found_and_a_goal_is_none():
    text = "The goal is 0.97. It reaches 0.98.\n\n<!-- block x -->\nIt takes 3 ms.\n<!-- /block -->\n"
    assert findings(text) == ["It reaches 0.98."]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_page_states_no_result_outside_of_blocks(page):
    assert findings(page.read_text()) == []


@pytest.mark.parametrize("path", sorted((ROOT / BLOCKS).iterdir()), ids=lambda path: path.stem)
def test_template_states_no_result_of_its_own(path):
    assert RESULT.findall(NO_RESULTS.sub("", re.sub(r"\{\{.*?\}\}", "", path.read_text(), flags=re.DOTALL))) == []
