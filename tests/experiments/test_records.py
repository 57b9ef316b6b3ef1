"""Records hold numbers with what they depend on, and are checked."""

import json
import subprocess

import msgspec
import pytest

from experiments.records import About, Facts, read_record, this_commit, write_record
from predictors.errors import StretchError

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


def git(root, *words):
    """What git prints in a repository."""
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    return subprocess.run(["git", "-C", str(root), *identity, *words], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A git repository with code and one record in its first commit."""
    (tmp_path / "experiments" / "x" / "results").mkdir(parents=True)
    (tmp_path / "experiments" / "x" / "run.py").write_text("1\n")
    (tmp_path / "experiments" / "x" / "results" / "host.json").write_text("{}\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_changed_code_makes_a_commit_dirty(repository):
    (repository / "experiments" / "x" / "run.py").write_text("2\n")
    assert this_commit(repository).dirty


def test_facts_of_a_cell_are_those_of_the_nearest_level_that_states_them(tmp_path):
    about = {
        "phases": About(
            runs=7, rows={"plan": Facts(interleaved=False)}, columns={"seconds": Facts(source="predicted", runs="not recorded")}
        )
    }
    tables = TABLES | {"other": [{"name": "a", "ms": 1.0}]}
    record = write_record(tmp_path / "x" / "results" / "host.json", tables, **FACTS, interleaved=True, about=about)
    assert record.facts("other") == Facts("measured", 3, True)
    assert record.facts("phases") == Facts("measured", 7, True)
    assert record.facts("phases", row="plan") == Facts("measured", 7, False)
    assert record.facts("phases", column="seconds") == Facts("predicted", "not recorded", True)
    assert read_record(tmp_path / "x" / "results" / "host.json") == record


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"about": {"speed": About()}}, "table `speed`, which it does not have"),
        ({"about": {"phases": About(columns={"hours": Facts()})}}, "`hours`, which table `phases` does not have"),
        ({"about": {"phases": About(columns={"seconds": Facts(runs=0)})}}, "has 0 runs"),
        ({"runs": None}, "does not say in how many runs"),
    ],
)
def test_record_that_contradicts_itself_is_not_written(tmp_path, change, reason):
    path = tmp_path / "x" / "results" / "host.json"
    with pytest.raises(StretchError, match=reason):
        write_record(path, TABLES, **(FACTS | change))
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r.update(schema=1), "record schema 1"),
        (lambda r: r.update(extra=1), "is no record"),
        (lambda r: r.pop("machine"), "is no record"),
        (lambda r: r.update(runs=0), "has 0 runs"),
        (lambda r: r.update(about={"phases": {"source": "guessed"}}), "is no record"),
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
