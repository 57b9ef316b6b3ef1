"""The scheduler, the predictors and the start of the command line work without torch."""

import subprocess
import sys

from tests.scheduler import bundles

HEAVY = ("torch", "torchvision", "timm", "onnx", "onnxruntime", "pyopencl")


def run_in_new_interpreter(code: str, *arguments: str) -> str:
    """Run code in a new interpreter and return its standard output."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


WALK = """
import importlib, pkgutil, sys
for package in ("predictors", "scheduler", "stretch.planning"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        importlib.import_module(module.name)
print(*{"torch", "torchvision", "timm"} & sys.modules.keys())
"""


def test_no_module_of_a_torch_free_package_imports_torch():
    assert run_in_new_interpreter(WALK).split() == []


START = f"""
import sys
import scheduler, stretch, stretch.cli
from stretch.network.models.families import quick_names
quick_names("timm:")
names = [getattr(package, name) for package in (stretch, scheduler) for name in package.__all__]
try:
    stretch.cli.app(["--help"])
except SystemExit:
    print("loaded:", *[name for name in {HEAVY!r} if name in sys.modules])
for words in ("--device pixle6", "--device pixel6 --processor gpuu", "--device pixel6 --plot a.svg", "--device * --kernels"):
    try:
        stretch.cli.app(["predict", "resnet50", *words.split()])
    except SystemExit as end:
        print("code", end.code)
print("torch:", "torch" in sys.modules)
"""


def test_start_of_the_command_line_its_help_and_names_of_models_import_nothing_heavy():
    text, _, loaded = run_in_new_interpreter(START).rpartition("loaded:")
    assert "verify" in text
    # refused requests do not import torch either
    assert loaded.split() == ["code", "3", "code", "3", "code", "2", "code", "2", "torch:", "False"]


LACKING = """
import sys
for name in ("torch", "torchvision", "timm"):
    sys.modules[name] = None
from stretch.cli import app
for verb in ("run --repeat 2 --warmup 0", "simulate", "verify", "evaluate --help", "compare --help", "profile --help"):
    name, *more = verb.split()
    try:
        app([name, sys.argv[1], *more])
    except SystemExit as end:
        assert not end.code, verb
    print("done:", name)
"""


def test_verbs_that_need_no_torch_work_without_it(tmp_path):
    text = run_in_new_interpreter(LACKING, str(bundles.two_branches(tmp_path / "bundle")))
    assert text.count("done:") == 6


def test_runtime_sends_no_usage_data_unless_the_user_allows_it(monkeypatch):
    code = "import os, scheduler; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    assert run_in_new_interpreter(code) == "1\n"
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    assert run_in_new_interpreter(code) == "0\n"
