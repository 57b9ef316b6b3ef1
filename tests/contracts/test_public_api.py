"""Names that other programs may import from the packages."""

import ast
import importlib
import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import scheduler
import stretch
from tests.contracts.repository import ROOT

#: All names that users of the library may import.
SURFACE = {
    stretch: {
        *("branch", "Branched", "PlanConfig", "model_names"),
        *("advise", "evaluate", "explain", "plan", "predict", "search", "simulate"),
        *("load_device", "list_devices", "DeviceProfile"),
        *("StretchError", "UsageError", "UnknownNameError", "InfeasibleError", "MissingBackendError"),
    },
    scheduler: {
        *("Session", "Scheduler", "Bundle", "load_bundle", "AdaptiveSession", "FaultPolicy", "Demand"),
    },
}


def test_distribution_installs_the_stretch_command():
    assert [point.value for point in entry_points(group="console_scripts", name="stretch")] == ["stretch.cli:app"]


@pytest.mark.parametrize("package", SURFACE, ids=lambda package: package.__name__)
def test_package_lists_its_public_names_and_imports_them_for_type_checkers(package):
    assert package.__all__ == sorted(SURFACE[package])
    assert SURFACE[package] <= set(dir(package))
    with pytest.raises(AttributeError, match="brunch"):
        package.brunch  # noqa: B018 - the test needs only the access
    body = ast.parse((ROOT / package.__name__ / "__init__.py").read_text()).body
    guarded = next(part for part in body if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING")
    mapping = {alias.name: part.module for part in guarded.body if isinstance(part, ast.ImportFrom) for alias in part.names}
    assert mapping.keys() == SURFACE[package]
    for name, module in mapping.items():
        assert getattr(importlib.import_module(module), name) is getattr(package, name)


@pytest.mark.slow
def test_type_checker_knows_the_names_and_refuses_others(tmp_path):
    expressions = [f"{package.__name__}.{name}" for package in SURFACE for name in sorted(SURFACE[package])]
    lines = ["import scheduler", "import stretch", *expressions, "stretch.brunch", "scheduler.Sesion", ""]
    (tmp_path / "probe.py").write_text("\n".join(lines))
    sources = [str(ROOT / package.__name__ / "__init__.py") for package in SURFACE]
    arguments = ["--config-file=", "--follow-imports=skip", "--no-incremental", f"--cache-dir={tmp_path}", *sources, "probe.py"]
    result = subprocess.run([sys.executable, "-m", "mypy", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = [line.split("error: ")[1] for line in result.stdout.splitlines() if "probe.py" in line and "error: " in line]
    assert [re.findall('"(\\w+)"', error)[0] for error in errors] == ["brunch", "Sesion"], result.stdout
