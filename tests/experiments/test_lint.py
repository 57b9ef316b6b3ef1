"""Every committed record can be trusted: it says how it came about, and nobody wrote a number into it."""

import ast
import json
import subprocess

import pytest

from experiments.records import read_record
from tests.contracts.repository import ROOT, files

RECORDS = [path for path in files(".json") if path.parts[0] == "experiments" and path.parts[-2] == "results"]
#: Numbers in the rows of a program that are settings of a run or parts of a formula.
SETTINGS = {
    "experiments/calibration/run.py": [5e-4],
    "experiments/chaos/run.py": [0.002, 0.001, 0.001, 0.001, 0.01, 0.001, 0.001, 0.002, 0.001, 0.001, 0.001, 0.001],
    "experiments/chaos/soak.py": [0.002, 0.001, 0.001, 0.002, 0.002, 0.001, 0.002, 0.001] * 2,
    "experiments/real_networks/run.py": [0.75, 0.75],
    "experiments/sensitivity/run.py": [10.0, 10.0, 0.1],
    "experiments/train_to_run/run.py": [0.5],
}
SOURCES = {"measured", "simulated", "predicted", "paper"}


@pytest.fixture(params=RECORDS, ids=str)
def path(request):
    """One committed record's path."""
    return request.param


@pytest.fixture
def record(path):
    """That record."""
    return read_record(ROOT / path)


def test_there_are_records():
    assert len(RECORDS) > 30


def test_record_lies_with_its_experiment_and_names_a_program_that_is_there(path, record):
    assert record.experiment == path.parts[-3]
    if record.source != "paper":
        for word in record.command.split():
            if word.startswith("experiments."):
                assert (ROOT / (word.replace(".", "/") + ".py")).is_file(), word


def test_record_tells_either_its_commit_or_where_it_was_recorded(record):
    found = [record.commit and record.commit.hash, record.recorded_in]
    assert sum(each is not None for each in found) == 1
    assert all(len(each) == 40 for each in found if each)


def test_only_the_paper_has_no_versions_machine_or_load(record):
    assert (record.machine is None) == (record.source == "paper")
    assert (record.load is None) <= (record.source in ("paper", "predicted"))
    assert record.versions


def test_source_is_one_in_every_cell_that_names_it(record):
    for name, rows in record.tables.items():
        for row in rows:
            if "source" in row:
                assert row["source"] in SOURCES
                assert record.facts(name, row=str(next(iter(row.values())))).source == row["source"]


def test_predicted_columns_of_a_measured_record_are_told_apart_and_the_other_way_round(record):
    for name, rows in record.tables.items():
        for column in rows[0]:
            source = record.facts(name, column=column).source
            if column.startswith("predicted"):
                assert source == "predicted"
            if column.startswith("top-1 %"):
                assert source in ("measured", "simulated")


def test_turns_are_told_by_the_field_alone(record):
    assert not [note for note in record.notes if "interleaved" in note]


def shown(commit, path):
    """A file as a commit has it; the test is skipped where that commit is not here, as in a shallow clone."""
    done = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this checkout does not have {commit[:7]}")
    return json.loads(done.stdout)


def test_tables_of_an_old_record_are_those_that_its_run_wrote(path, record):
    if record.recorded_in is None or path.name == "checked.json":
        pytest.skip("the commit is the writer's own, or the file had another name")
    old = shown(record.recorded_in, path)
    assert {key: value for key, value in old.items() if key in ("date", "command", "versions")} == {
        "date": record.date,
        "command": record.command,
        "versions": record.versions,
    }
    if not record.corrected:
        assert old["tables"] == record.tables
        assert (old["runs"], old["load"]) == (record.runs, record.load)


def test_a_machine_fact_is_what_was_recorded_or_null(path, record):
    if record.recorded_in is None or record.machine is None or path.name == "checked.json":
        pytest.skip("nothing was filled in later")
    old = shown(record.recorded_in, path)["machine"]
    assert all(getattr(record.machine, name) in (old[name], None) for name in old)


def written_by_hand(source):
    """Numbers that stand as a value of a row, or inside of one, in a program; 0, 1 and powers of ten for units are none."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys):
            for value in node.values:
                found += [part.value for part in ast.walk(value) if isinstance(part, ast.Constant) and suspicious(part.value)]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Machine":
            found += [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, int | float)]
    return found


def suspicious(value):
    """Whether a constant may be a measurement: a float that is no unit."""
    return isinstance(value, float) and value not in (0.0, 1.0, 1e3, 1e6, 1e9, 256e3)


@pytest.mark.parametrize(
    "source",
    [
        'cost.append({"training": "parent", "GPU minutes": 2.59, "over one": round(2.59 / mean, 2)})',
        'write_record(machine=machine({"cores": 64, "memory_gib": 512.0} | runs[0]))',
        'Machine("phones", 1, 1.0, "see paper")',
    ],
)
def test_number_written_by_hand_is_found(source):
    assert written_by_hand(source)


def test_computed_rows_have_no_number_written_by_hand():
    assert not written_by_hand('rows.append({"ms": round(1000 * statistics.median(times), 2), "gflops": 2 * macs / ms / 1e6, "n": 1.0})')


@pytest.mark.parametrize("program", [path for path in files(".py") if path.parts[0] == "experiments"], ids=str)
def test_program_writes_no_number_by_hand_into_a_record(program):
    assert written_by_hand((ROOT / program).read_text()) == SETTINGS.get(program.as_posix(), [])


@pytest.mark.parametrize("program", [path for path in files(".py") if path.parts[0] == "experiments" and path.name != "gpu.py"], ids=str)
def test_results_of_a_job_do_not_lose_a_name_to_the_facts_beside_them(program):
    """``{…} | facts()`` keeps the facts where both have a name."""
    names = {"gpu", "cores", "memory_gib", "system", "date", "cpu_load", "versions"}
    for node in ast.walk(ast.parse((ROOT / program).read_text())):
        if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Dict) and "facts" in ast.unparse(node.right):
            assert not names & {key.value for key in node.left.keys if isinstance(key, ast.Constant)}
