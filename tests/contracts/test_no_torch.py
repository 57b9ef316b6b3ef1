"""The scheduler, the predictors and the start of the command line work without torch."""

import subprocess
import sys

import pytest

from tests.scheduler import bundles

HEAVY = ("torch", "torchvision", "timm", "onnx", "onnxruntime", "pyopencl")


def loaded_after(statement: str) -> set[str]:
    """Heavy packages in memory after a statement in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize("package", ["predictors", "scheduler", "stretch.planning"])
def test_no_module_of_a_torch_free_package_imports_torch(package):
    walk = (
        f"import importlib, pkgutil, {package}\n"
        f"for m in pkgutil.walk_packages({package}.__path__, '{package}.'):\n"
        "    importlib.import_module(m.name)"
    )
    assert loaded_after(walk).isdisjoint({"torch", "torchvision", "timm"})


@pytest.mark.parametrize(
    "statement",
    [
        "import stretch",
        "import stretch.cli",
        "import scheduler",
        "from stretch.network.models.families import quick_names; quick_names('timm:')",
        "import stretch, scheduler; [getattr(p, n) for p in (stretch, scheduler) for n in p.__all__]",
    ],
)
def test_start_of_the_command_line_and_names_of_models_import_nothing_heavy(statement):
    assert loaded_after(statement) == set()


def test_help_of_all_verbs_imports_nothing_heavy():
    run = "from stretch.cli import app\ntry:\n    app(['--help'])\nexcept SystemExit:\n    pass"
    code = f"import sys\n{run}\nsys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "verify" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("verb", ["run --repeat 2 --warmup 0", "simulate", "verify", "evaluate --help", "compare --help", "profile --help"])
def test_verb_that_needs_no_torch_works_without_it(tmp_path, verb):
    name, *more = verb.split()
    words = [name, str(bundles.two_branches(tmp_path / "bundle")), *more]
    lacking = "import sys\nfor name in ('torch', 'torchvision', 'timm'):\n    sys.modules[name] = None\nfrom stretch.cli import app\napp()"
    done = subprocess.run([sys.executable, "-c", lacking, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
