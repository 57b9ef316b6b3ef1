"""The worked examples of CONTRIBUTING: the tests run the page's code blocks in a copy of the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.repository import ROOT, SKIPPED, copy_packages
from tests.docs.pages import snippets

pytestmark = [pytest.mark.slow, pytest.mark.torch]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the packages after all steps of the page, and the environment variables of the page's commands."""
    folder = copy_packages(tmp_path_factory.mktemp("copy"))
    blocks = [snippet for snippet in snippets(Path("CONTRIBUTING.md")) if snippet.language in ("python", "toml", "sh")]
    for block in blocks:
        if name := re.match(r"# ([\w./]+)\n", block.text):
            (folder / name[1]).parent.mkdir(exist_ok=True, parents=True)
            (folder / name[1]).write_text(block.text)
    args = ("install", "--quiet", "--offline", "--no-deps", "--no-build-isolation", "--target", folder / "site", folder / "torch_delegate")
    subprocess.run([sys.executable, "-m", "uv", "pip", *args], check=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'site'}"}
    for block in blocks:
        if block.language == "sh":
            done = subprocess.run(["bash", "-euc", block.text], cwd=folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, block.text + done.stdout + done.stderr
    return folder, environment


def run_json(copy, *arguments):
    folder, environment = copy
    done = subprocess.run(["stretch", *arguments, "--json", "--quiet"], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)


def test_blocks_pass_the_commands_of_make_lint(copy, tmp_path):
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*(SKIPPED - {".mypy_cache"})), symlinks=True)
    for name in ("predictors/operators/softsign.py", "stretch/operators/softsign.py", "tests/stretch/operators/test_softsign.py"):
        shutil.copy(copy[0] / name, checkout / name)
    # the checks list the files with git
    subprocess.run(["git", "init", "--quiet"], cwd=checkout, check=True)
    [commands] = re.findall(r"^lint: install\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    for command in commands.replace("$(BIN)", str(Path(sys.executable).parent)).splitlines():
        done = subprocess.run(command.split(), cwd=checkout, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, command + done.stdout + done.stderr


def test_new_operator_is_planned_divided_and_exported_for_the_new_device(copy):
    bundle = json.loads((copy[0] / "runs/net/bundle.json").read_text())
    assert bundle["device"] == "board"
    onnx = pytest.importorskip("onnx")
    nodes = [node.op_type for file in (copy[0] / "runs/net").glob("*.*.onnx") for node in onnx.load(file).graph.node]
    assert "Softsign" in nodes
    (stage,) = [item for item in run_json(copy, "list", "devices", "board")["items"] if item["id"] == "board"]
    assert stage["name"] == "My board"


def test_delegate_of_another_package_is_listed_and_agrees_with_onnx_runtime(copy):
    items = {item["name"]: item for item in run_json(copy, "list", "delegates")["items"]}
    assert items["pytorch"]["origin"] == "package torch-delegate, entry point torch_delegate:TorchDelegate"
    result = run_json(copy, "run", "runs/net", "--map", "gpu=pytorch", "--repeat", "2", "--warmup", "0")
    assert result["processors"]["gpu"]["delegate"] == "pytorch"
    assert result["max_error"] < 1e-5
