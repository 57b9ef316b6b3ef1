"""The example of a plug-in, built and installed as a user would, in a folder of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scheduler.bundles import two_branches

PACKAGE = Path(__file__).parents[2] / "examples" / "onnx_evaluator"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Environment of a process that finds the installed example."""
    site = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        site,
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": str(site)}


def stretch(environment, *words):
    code = "import sys; from stretch.cli import app; sys.argv[0] = 'stretch'; app()"
    done = subprocess.run([sys.executable, "-c", code, *map(str, words), "--json"], env=environment, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_installed_plug_in_is_listed(environment):
    code, data = stretch(environment, "list", "delegates")
    assert code == 0
    assert "onnx_evaluator" in {item["name"] for item in data["items"]}


@pytest.mark.slow
def test_branch_runs_on_it_and_agrees_with_onnx_runtime(environment, tmp_path):
    bundle = two_branches(tmp_path / "bundle")
    code, data = stretch(environment, "run", bundle, "--map", "gpu=onnx_evaluator", "--repeat", 2, "--warmup", 0)
    assert code == 0, data
    assert data["processors"]["gpu"]["delegate"] == "onnx_evaluator"
    assert data["max_error"] < 1e-5
