"""Records of numbers with their conditions: writing, validation, and filling of blocks and templates of pages."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

from experiments.records import About, Commit, Facts, Machine, Record, read_record, save_record, this_commit, write_record
from experiments.render import BLOCKS, render
from experiments.templates import fill, provenance, show
from predictors.errors import StretchError

TABLES = {"phases": [{"phase": "plan", "seconds": 1.5}, {"phase": "export", "seconds": 4}]}
FACTS = {"source": "measured", "command": "python -m experiments.x.run", "runs": 3, "load": 0.25}


def test_record_is_read_back_with_machine_versions_and_load(tmp_path):
    path = tmp_path / "x" / "results" / "host.json"
    written = write_record(path, TABLES, **FACTS)
    assert read_record(path) == written
    assert (written.experiment, written.load, [p.name for p in path.parent.iterdir()]) == ("x", 0.25, ["host.json"])
    assert written.machine.cores > 0
    assert written.versions["nn-stretch"]


def test_load_is_the_one_before_the_run_unless_stated(tmp_path):
    code = "import os, sys; from pathlib import Path; os.getloadavg = lambda: (0.5, 0, 0); from experiments.records import write_record; "
    code += "os.getloadavg = lambda: (9, 0, 0); write_record(Path(sys.argv[1]), {'t': [{'a': 1}]}, source='predicted', command='make it')"
    path = tmp_path / "x" / "results" / "host.json"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert (read_record(path).load, read_record(path).runs) == (0.5, None)


def test_changed_code_makes_a_commit_dirty(tmp_path):
    (tmp_path / "experiments" / "x").mkdir(parents=True)
    (tmp_path / "experiments" / "x" / "run.py").write_text("1\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
        subprocess.run(command, capture_output=True, check=True)
    assert not this_commit(tmp_path).dirty
    (tmp_path / "experiments" / "x" / "run.py").write_text("2\n")
    assert this_commit(tmp_path).dirty


def test_facts_of_a_cell_come_from_the_nearest_level_that_states_them(tmp_path):
    columns = {"seconds": Facts(source="predicted", runs="not recorded")}
    about = {"phases": About(runs=7, rows={"plan": Facts(interleaved=False)}, columns=columns)}
    tables, path = TABLES | {"other": [{"name": "a", "ms": 1.0}]}, tmp_path / "x" / "results" / "host.json"
    record = write_record(path, tables, **FACTS, interleaved=True, about=about)
    assert (record.facts("other"), record.facts("phases")) == (Facts("measured", 3, True), Facts("measured", 7, True))
    assert record.facts("phases", row="plan") == Facts("measured", 7, False)
    assert record.facts("phases", column="seconds") == Facts("predicted", "not recorded", True)
    assert read_record(path) == record


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        # refused when writing
        ({"about": {"speed": About()}}, "table `speed`"),
        ({"about": {"phases": About(columns={"hours": Facts()})}}, "`hours`"),
        ({"about": {"phases": About(columns={"seconds": Facts(runs=0)})}}, "has 0 runs"),
        ({"runs": None}, "does not say in how many runs"),
        # refused when reading
        (lambda r: r.update(schema=1), "record schema 1"),
        (lambda r: r.update(extra=1), "is no record"),
        (lambda r: r.pop("machine"), "is no record"),
        (lambda r: r.update(runs=0), "has 0 runs"),
        (lambda r: r.update(about={"phases": {"source": "guessed"}}), "is no record"),
        (lambda r: r.update(experiment="y"), "belongs to the experiment `y`"),
    ],
)
def test_inconsistent_or_invalid_record_is_neither_written_nor_read(tmp_path, change, reason):
    path = tmp_path / "x" / "results" / "host.json"
    if callable(change):
        record = msgspec.to_builtins(write_record(path, TABLES, **FACTS))
        change(record)
        path.write_text(json.dumps(record))
        with pytest.raises(StretchError, match=reason):
            read_record(path)
    else:
        with pytest.raises(StretchError, match=reason):
            write_record(path, TABLES, **(FACTS | change))
        assert not path.exists()


RECORD = "experiments/x/results/host.json"


@pytest.fixture
def root(tmp_path):
    """A repository with one record and one template."""
    tables = {"phases": [{"phase": "plan", "seconds": 1.5}, {"phase": "export all", "seconds": 12.346}]}
    write_record(tmp_path / RECORD, tables, source="measured", command="make it", runs=3, load=0.1)
    (tmp_path / BLOCKS).mkdir()
    (tmp_path / BLOCKS / "times.txt").write_text(f"{{{{ use p = {RECORD}#phases }}}}\nPlanning takes {{{{ p/plan/seconds }}}} s.\n")
    return tmp_path


def test_block_of_a_page_is_filled_and_the_rest_stays(root):
    page = "before\n\n<!-- block times -->\n{}\n<!-- /block -->\nafter\n"
    assert render(page.format("old\nolder"), "README.md", root) == page.format("Planning takes 1.50 s.")
    # a table is followed by its origin
    lines = render(f"<!-- block {RECORD}#phases -->\n<!-- /block -->\n", "README.md", root).splitlines()
    assert lines[1:5] == ["| phase | seconds |", "|---|---:|", "| plan | 1.50 |", "| export all | 12.3 |"]
    assert (lines[6][:14], lines[7]) == ("*Measured*, 20", "<!-- /block -->")


RUNS = (("a b", 1.5, 0.9, 1.126, True), ("c", 12.346, None, 2, None))
TABLE = {"runs": [dict(zip(("network", "ms", "low", "high", "kept"), row, strict=True)) for row in RUNS]}

WRITTEN = Record(
    schema=2,
    experiment="x",
    date="2026-11-22T01:02:03+00:00",
    commit=Commit("0123456789abcdef", dirty=False),
    recorded_in=None,
    **{"source": "measured", "command": "make it", "runs": 3, "interleaved": True, "load": 0.1},
    machine=Machine("P", 2, 4.0, "Linux x86_64"),
    versions={"torch": "9"},
    tables=TABLE,
    notes=["Shared machine", "Noisy."],
)


def filled(root, text):
    """Fill a template in which `r` is the table of the repository's record."""
    save_record(root / RECORD, WRITTEN)
    return fill(f"{{{{ use r = {RECORD}#runs }}}}\n{text}", "t.txt", root)


def test_table_has_the_chosen_rows_and_columns_in_order_and_its_origin_states_all_conditions(tmp_path):
    text = "{{ table r\nrows: c = The c | a b\ncolumns: network = net | kept | {low:.2f} to {high:.2f} = interval }}"
    lines = ["| net | kept | interval |", "|---|---:|---|", "| The c | – | – to 2 |", "| a b | yes | 0.90 to 1.13 |"]
    assert filled(tmp_path, text).splitlines() == lines
    assert provenance(WRITTEN, "runs") == (
        "*Measured*, 2026-11-22, commit 0123456; P, 2 cores, 4 GiB, Linux x86_64; torch 9; load before the run 0.1; "
        "3 runs, interleaved. Reproduce: `make it`. Shared machine. Noisy."
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<!-- block times -->\n", "no part of a block"),
        ("<!-- block times -->\n<!-- block times -->\n<!-- /block -->\n", "no part of a block"),
        ("<!-- block absent -->\n<!-- /block -->\n", "t.txt has the block `absent`"),
        (f"<!-- block {RECORD}#speed -->\n<!-- /block -->\n", "t.txt shows the table `speed`"),
        ("{{ r/train/ms }}", "t.txt shows the row `train`"),
        ("{{ r/c/hours }}", "t.txt shows the column `hours`"),
        ("{{ r/c }}", "no TABLE/ROW/COLUMN"),
        ("{{ s/c/ms }}", "`s`, which is no `FILE#TABLE`"),
        ("{{ table ../x.json#t }}", "outside the repository"),
        ("{{ origin experiments/y/results/host.json#t }}", "cannot read the record"),
    ],
)
def test_page_or_template_with_an_unknown_reference_is_an_error(root, text, reason):
    with pytest.raises(StretchError, match=reason):
        render(text, "t.txt", root) if text.startswith("<!--") else filled(root, text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.00123, "0.0012"), (0.97, "0.970"), (0.0123, "0.0123"), (1234.5, "1234"), (4096000, "4 096 000"), (None, "–"), ("a|b", "a\\|b")],
)
def test_numbers_are_shown_to_three_digits(value, shown):
    assert show(value) == shown
