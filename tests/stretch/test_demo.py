"""`make demo` as a new user meets it: its own commands, with OpenCL on the GPU's branches where a driver is there."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.delegates import get_delegate
from scheduler.placement.mapping import DRIVERS_VARIABLE
from tests.contracts.repository import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.opencl]


def commands(model):
    """Commands of `make demo` once all is installed."""
    printed = subprocess.run(["make", "-n", "demo", f"MODEL={model}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [shlex.split(line)[1:] for line in printed.splitlines() if "/stretch " in line]


def demo(model, folder):
    """The demo, and what `--json` says of its run."""
    ours = {name: value for name, value in os.environ.items() if name != DRIVERS_VARIABLE}
    stretch = [str(Path(sys.executable).with_name("stretch"))]
    for words in commands(model):
        done = subprocess.run([*stretch, *words, "--json"], cwd=folder, env=ours, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_demo_branches_the_network_and_runs_what_it_wrote():
    make, run = commands("resnet50")
    assert make[:2] == ["branch", "resnet50"]
    assert run == ["run", make[make.index("--out") + 1]]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet50", "mobilenet_v3_large"])
def test_demo_of_a_real_network_puts_the_gpus_branches_on_opencl(tmp_path, model):
    data = demo(model, tmp_path)
    if problem := get_delegate("opencl").unavailable():
        pytest.skip(problem)
    assert data["processors"]["gpu"]["delegate"] == "opencl"
    assert data["processors"]["gpu"]["busy_ms"] > 0
    assert data["processors"]["cpu"]["delegate"] == "cpu"
    assert data["max_error"] < 1e-4
