"""A delegate, a verb and a memory planner are one new file each: found in a copy of the packages into which it is dropped."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.repository import PACKAGES, ROOT
from tests.scheduler import bundles

DELEGATE = '''"""The `twice` delegate."""

from pathlib import Path

from scheduler.delegates.base import Compiled, CoreDelegate, delegates
from scheduler.delegates.{inner} import {name}


@delegates.register("twice")
class TwiceDelegate(CoreDelegate):
    """Another delegate under a name of its own."""

    summary = "dropped into the folder"

    def compile(self, model: Path) -> Compiled:
        return {name}().compile(model)
'''

TUNED = '''

class TwiceTuning(Tuning):
    """One kernel that gets twice as fast."""

    def tune(self, budget_s, step):
        step("conv")
        return {("conv", "3x3"): {"tile": 2}}

    def rows(self, choices):
        ms = {"before_ms": 2.0, "after_ms": 1.0}
        return [{"name": "n", "kernel": "conv", "shape": "3x3", "choice": choices["conv", "3x3"], **ms}]


@delegates.register("thrice")
class ThriceDelegate(TwiceDelegate):
    """With kernels to tune."""

    tunes = {"fast": "three times, as always"}

    def tuning_from(self, bundle, name, mode):
        return TwiceTuning(f"a machine for {name} in mode {mode}", 1)
'''

VERB = '''"""`stretch greet`: a verb of a file."""

from stretch.cli.output import Output, verb


@verb
def greet(out: Output) -> None:
    """Say where it lies."""
    out.emit({"file": __file__}, lambda console: console.print("hello"))
'''

PLANNER = '''"""A memory planner of a file."""

from scheduler.memory.lifetimes import Lifetimes
from scheduler.memory.plan import MemoryPlan, planners, shared_objects


def plan_alone(lifetimes: Lifetimes, alignment: int = 1) -> MemoryPlan:
    """A plan without sharing."""
    return shared_objects(lifetimes, [[i] for i in range(len(lifetimes.tensors))])


planners.register("alone")(plan_alone)
'''


@pytest.fixture
def copy(tmp_path):
    """A folder with the packages as they are, to be added to."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def python(copy: Path, code: str, *words: str) -> str:
    """What a program prints whose packages are those of the copy."""
    env = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=copy, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_delegate_in_a_new_file_drives_the_processors_that_it_names(copy, tmp_path, monkeypatch):
    bundle = bundles.two_branches(tmp_path / "bundle", processors=("cpu", "npu"))
    monkeypatch.setenv("NN_STRETCH_DRIVERS", "twice")
    code = DELEGATE.format(inner="reference", name="ReferenceDelegate").replace("    summary", '    drives = ("npu",)\n    summary')
    (copy / "scheduler/delegates/twice.py").write_text(code)
    placed = json.loads(stretch(copy, "explain", bundle, "--json"))["processors"]["npu"]
    assert (placed["delegate"], placed["reason"]) == ("twice", "the npu of this machine")


def stretch(copy: Path, *words: object) -> str:
    """What the command line of the copy prints."""
    return python(copy, "from stretch.cli import app; app()", *map(str, words))


def test_delegate_in_a_new_file_is_listed_and_runs_subgraphs(copy, tmp_path):
    bundle = bundles.two_branches(tmp_path / "bundle")
    (copy / "scheduler/delegates/twice.py").write_text(DELEGATE.format(inner="reference", name="ReferenceDelegate"))
    items = {item["name"]: item for item in json.loads(stretch(copy, "delegates", "--json"))["items"]}
    assert items["twice"]["summary"] == "dropped into the folder"
    assert items["twice"]["module"] == "scheduler.delegates.twice"
    run = json.loads(stretch(copy, "run", bundle, "--map", "gpu=twice", "--repeat", "2", "--warmup", "0", "--json"))
    assert run["processors"]["gpu"]["delegate"] == "twice"
    assert python(copy, "from scheduler.delegates import TwiceDelegate as t; print(t.summary)") == "dropped into the folder\n"


def test_delegate_in_a_new_file_with_kernels_of_its_own_is_tuned(copy, tmp_path):
    bundle = bundles.two_branches(tmp_path / "bundle")
    code = DELEGATE.format(inner="reference", name="ReferenceDelegate").replace("delegates\n", "delegates, Tuning\n", 1)
    (copy / "scheduler/delegates/twice.py").write_text(code + TUNED)
    data = json.loads(stretch(copy, "tune", bundle, "--mode", "fast", "--map", "gpu=thrice", "--json"))
    assert data["device"] == "a machine for s1.gpu in mode fast"
    assert [(row["choice"], row["after_ms"]) for row in data["kernels"]] == [({"tile": 2}, 1.0)] * 2
    assert (data["before_ms"], data["after_ms"]) == (4.0, 2.0)


def test_verb_in_a_new_file_is_in_the_help_and_runs(copy):
    (copy / "stretch/cli/greet.py").write_text(VERB)
    assert "  greet      Say where it lies.\n" in stretch(copy, "--help")
    assert json.loads(stretch(copy, "greet", "--json"))["file"] == str(copy / "stretch/cli/greet.py")


def test_memory_planner_in_a_new_file_plans_memory(copy):
    (copy / "scheduler/memory/alone.py").write_text(PLANNER)
    code = (
        "from scheduler.memory import Lifetime, Lifetimes, plan_memory\n"
        "print(plan_memory(Lifetimes([Lifetime('a', 3, (0, 1)), Lifetime('b', 4, (2, 3))]), 'alone').total_bytes)"
    )
    assert python(copy, code) == "7\n"


@pytest.mark.parametrize(("inner", "name", "kept"), [("base", "Delegate", True), ("cpu", "CpuDelegate", False)])
def test_delegate_in_a_new_file_is_held_apart_from_the_others(copy, inner, name, kept):
    (copy / "scheduler/delegates/twice.py").write_text(DELEGATE.format(inner=inner, name=name))
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    env = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run([sys.executable, "-c", linter, "--no-cache"], cwd=copy, env=env, capture_output=True, text=True)
    assert (done.returncode == 0) is kept, done.stdout + done.stderr
    assert ("scheduler.delegates.twice -> scheduler.delegates.cpu" in done.stdout) is not kept
