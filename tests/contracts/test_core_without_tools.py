"""The core works in a copy of the packages without the `tools` folders."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.contracts.repository import ROOT, copy_packages
from tests.scheduler import bundles

#: Tests of the core that take seconds and run most of its packages.
TESTS = (
    "tests/scheduler/runtime/test_session.py",
    "tests/scheduler/simulate",
    "tests/stretch/planning/test_pareto.py",
    "tests/stretch/export/test_bundle.py",
)

#: Runs tests, then imports every module of the packages.
CHECK = """
import importlib, pkgutil, pytest, sys, warnings
code = pytest.main(sys.argv[1:])
warnings.simplefilter("error", ImportWarning)
for package in ("predictors", "scheduler", "stretch"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    folder = copy_packages(tmp_path_factory.mktemp("core"))
    for package in ("scheduler", "stretch"):
        shutil.rmtree(folder / package / "tools")
    return folder


def python(core, *arguments):
    env = os.environ | {"PYTHONPATH": str(core), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=core, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def stretch(core, *arguments):
    return python(core, "-c", "from stretch.cli import app; app()", *arguments)


def test_verbs_and_flags_of_tools_are_missing_and_a_bundle_runs(core, tmp_path):
    assert "  web " not in stretch(core, "--help")
    help_text = stretch(core, "run", "--help")
    assert ("--repeat" in help_text, "--adb " in help_text) == (True, False)
    bundle = bundles.two_branches(tmp_path / "bundle")
    assert json.loads(stretch(core, "run", bundle, "--repeat", 2, "--warmup", 0, "--json"))["max_error"] < 1e-5


@pytest.mark.slow
@pytest.mark.torch
def test_tests_of_the_core_pass_and_every_module_is_imported(core):
    shutil.copytree(ROOT / "tests", core / "tests", ignore=shutil.ignore_patterns("__pycache__", "tools"))
    for name in ("pyproject.toml", "recipes", "experiments"):
        (core / name).symlink_to(ROOT / name)
    done = python(core, "-c", CHECK, "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not slow", *TESTS)
    assert " passed" in done
