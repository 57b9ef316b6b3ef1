import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bundles():
    """The module that builds small bundles."""
    name = "nn_stretch_test_bundles"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "bundles.py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def bundle_dir(bundles, tmp_path):
    """A two-branch bundle for cpu and gpu."""
    return bundles.two_branches(tmp_path / "bundle")
