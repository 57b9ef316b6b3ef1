"""Options, markers and hypothesis profiles of the whole suite."""

import importlib.util
import os
import re
import signal
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from predictors import system
from tests.effort import load_profile
from tests.warm import WarmPrograms

# A shell starts background jobs with SIGINT ignored, and their children inherit this setting: tests of interrupts need Python's handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

load_profile()

# Without these limits, each pytest-xdist worker and its child processes would start one thread per core in every numeric library.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREADS = max(1, CORES // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
for library in ("OMP", "OPENBLAS", "MKL"):
    # a worker inherits these variables from the process that started it
    if f"{library}_NUM_THREADS" not in os.environ or "PYTEST_XDIST_WORKER" in os.environ:
        os.environ[f"{library}_NUM_THREADS"] = str(THREADS)
# With more threads than cores, waiting threads would spin on cores that other threads need.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The terminal's width, which pytest-xdist workers inherit, would wrap the tables that tests read.
os.environ.pop("COLUMNS", None)

# Bundles of the tests have a gpu: with pyopencl installed, a real GPU would run it, but tests of the scheduler expect CPU cores.
os.environ["NN_STRETCH_DRIVERS"] = "dsp"

HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny network that the command line writes once for all workers; no test may change it."""
    from tests.stretch.cli.commands import LOOSE, perform

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tiny"
    folder.mkdir(exist_ok=True)
    out = folder / "bundle"
    with FileLock(folder / "lock"):
        if not out.exists():
            outcome = perform("branch", "tiny_resnet", "--device", "pixel6", "--weights", "none", *LOOSE, "--out", out)
            assert outcome.code == 0, outcome.err
    return out


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPrograms]:
    """Programs of the checkout that start without the seconds of imports."""
    programs = WarmPrograms(tmp_path_factory.mktemp("warm"), Path(__file__).parents[1])
    yield programs
    programs.close()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore test files that import torch at module level if torch is not installed."""
    if HAS_TORCH or collection_path.suffix != ".py":
        return None
    return bool(re.search(r"^(import|from) torch\b", collection_path.read_text(), re.MULTILINE)) or None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed torch equally before each test, independent of the order of tests, and not with the seed of `--seed 0`."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(zlib.crc32(item.nodeid.encode()))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", help="run tests marked slow")


#: Tests in this folder load the runtime that their id names.
DELEGATES = Path(__file__).parent / "scheduler" / "delegates"


def mark_all_but_representatives(items: list[pytest.Item]) -> None:
    """Mark the cases of a parametrised test as slow, except evenly spaced ones, as many as its `representatives` marker states."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("representatives"):
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    for group in cases.values():
        count = group[0].get_closest_marker("representatives").args[0]
        chosen = {round(i * (len(group) - 1) / max(count - 1, 1)) for i in range(count)}
        for number, item in enumerate(sorted(group, key=lambda item: item.nodeid)):
            if number not in chosen:
                item.add_marker("slow")


#: The slowest files start first: a slow file that starts last would leave the other workers idle.
LONG = (
    "tests/docs/test_references.py",
    "tests/stretch/test_newcomer.py",
    "tests/recipes/test_recipes.py",
    "tests/corpus/test_corpus.py",
    "tests/contracts/test_worked_examples.py",
    "tests/stretch/test_main_job.py",
    "tests/stretch/api/test_main_job.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    mark_all_but_representatives(items)
    packages = {"torch": "torch", "opencl": "pyopencl", "qnn": "onnxruntime_qnn"}
    reasons = {marker: f"{name} is not installed" for marker, name in packages.items() if importlib.util.find_spec(name) is None}
    if not config.getoption("--runslow"):
        reasons["slow"] = "needs --runslow"
    if system.PLAIN or sys.platform != "linux":
        reasons["linux"] = "needs what only Linux has"
    for item in items:
        if "openvino" in item.nodeid and item.path.is_relative_to(DELEGATES):
            item.add_marker("openvino")
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
    yield
    items.sort(key=lambda item: item.nodeid.split("::")[0] not in LONG)
