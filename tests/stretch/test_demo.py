"""`make demo` as a new user runs it: its commands, with OpenCL for the GPU's branches if a driver exists."""

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
    """Return the commands of `make demo` after the installation."""
    printed = subprocess.run(["make", "-n", "demo", f"MODEL={model}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [shlex.split(line)[1:] for line in printed.splitlines() if "/stretch " in line]


def test_demo_branches_the_network_and_runs_the_written_bundle():
    make, run = commands("resnet50")
    assert (make[:2], run) == (["branch", "resnet50"], ["run", make[make.index("--out") + 1]])


@pytest.mark.slow
def test_demo_of_a_real_network_runs_the_gpu_branches_on_opencl(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != DRIVERS_VARIABLE}
    for arguments in commands("mobilenet_v3_large"):
        stretch = [str(Path(sys.executable).with_name("stretch")), *arguments, "--json"]
        process = subprocess.run(stretch, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
    data = json.loads(process.stdout)
    if problem := get_delegate("opencl").unavailable():
        pytest.skip(problem)
    assert data["processors"]["gpu"]["delegate"] == "opencl"
    assert data["processors"]["gpu"]["busy_ms"] > 0
    assert data["processors"]["cpu"]["delegate"] == "cpu"
    assert data["max_error"] < 1e-4
