import importlib.util
import sys
from pathlib import Path

import pytest

from scheduler.memory import Lifetime, Lifetimes


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


@pytest.fixture(scope="session")
def memory_example():
    """Figure 5 of paper 000: sizes 32, 8, 4, 8, 64 on edges 0→1, 1→{2, 3}, {2, 3}→4, 4→5."""
    uses = {"0": (32, (0, 1)), "1": (8, (1, 2, 3)), "2": (4, (2, 4)), "3": (8, (3, 4)), "4": (64, (4, 5))}
    return Lifetimes([Lifetime(name, size, steps) for name, (size, steps) in uses.items()])
