import importlib.util
import json
import sys
from pathlib import Path

import pytest

from stretch.cli import app


@pytest.fixture(scope="session")
def bundles():
    """The module that builds small bundles, shared with the scheduler's tests."""
    name = "nn_stretch_test_bundles"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "scheduler" / "bundles.py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def bundle_dir(bundles, tmp_path):
    """A two-branch bundle for cpu and gpu."""
    return bundles.two_branches(tmp_path / "bundle")


@pytest.fixture
def stretch(capsys):
    """Runs the command line; gives exit code, stdout (decoded if `--json`) and stderr."""

    def call(*words):
        with pytest.raises(SystemExit) as stop:
            app([str(word) for word in words])
        out, err = capsys.readouterr()
        return stop.value.code, json.loads(out) if "--json" in words else out, err

    return call
