"""A pytest plugin: coverage by test, in the workers of pytest-xdist and in the processes that tests start.

`python -m pytest -p experiments.suite.contexts` with COVERAGE_PROCESS_START set. Each test's lines are recorded under its node id.
"""

import os
from pathlib import Path

import coverage
import pytest

#: Packages whose lines are recorded.
SOURCES = ("predictors", "scheduler", "stretch")

_state: dict[str, coverage.Coverage] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Start recording where the interpreter's start did not: pytest-xdist starts its workers with the environment's settings."""
    current = coverage.Coverage.current()
    if current is None:
        current = coverage.Coverage(config_file=os.environ["COVERAGE_PROCESS_START"], data_suffix=True)
        current.start()
    _state["coverage"] = current


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Record what the test runs under its name, also in the processes that it starts."""
    os.environ["COVERAGE_TEST"] = item.nodeid
    _state["coverage"].switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _state["coverage"].switch_context("")


def pytest_unconfigure() -> None:
    """Write what was recorded."""
    _state["coverage"].stop()
    _state["coverage"].save()


def settings(folder: Path) -> str:
    """The text of coverage's configuration file: branches of the three packages, data in `folder`."""
    packages = "\n    ".join(SOURCES)
    return f"[run]\nbranch = true\nsource_pkgs =\n    {packages}\ndata_file = {folder}/coverage\nparallel = true\ncontext = ${{COVERAGE_TEST-}}\ndisable_warnings = module-not-imported, no-data-collected\n"
