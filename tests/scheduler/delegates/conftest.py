import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cases():
    """The module that draws single operators."""
    name = "nn_stretch_test_cases"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "cases.py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
