"""Every source file has a test file at the mirrored path."""

from pathlib import Path

import pytest

from tests.contracts.repository import ROOT, sources

#: Files without a test file of their own, and why.
EXCEPTIONS = {
    "predictors/__init__.py": "only a docstring",
    "scheduler/__init__.py": "only a docstring",
    "stretch/__init__.py": "only names; tests/contracts/test_public_api.py",
    "stretch/planning/__init__.py": "only a docstring",
    "stretch/models/__init__.py": "only names; tests/stretch/models/test_load.py",
    "stretch/cli/__init__.py": "tests/stretch/cli/test_app.py, for a file test___init__.py says nothing",
}


def mirrored(source: Path) -> Path:
    """`a/b/c.py` → `tests/a/b/test_c.py`; a package's `__init__.py` → `tests/a/test_b.py`."""
    if source.name == "__init__.py":
        return Path("tests", *source.parts[:-2], f"test_{source.parts[-2]}.py")
    return Path("tests", *source.parts[:-1], f"test_{source.name}")


@pytest.mark.parametrize("source", sources(), ids=str)
def test_source_file_has_a_test_file_at_the_mirrored_path(source):
    if str(source) in EXCEPTIONS:
        pytest.skip(EXCEPTIONS[str(source)])
    if source.name == "__init__.py" and len((ROOT / source).read_text().strip().splitlines()) <= 1:
        pytest.skip("only a docstring")
    assert (ROOT / mirrored(source)).is_file(), f"{source} needs {mirrored(source)}"


def test_no_exception_is_left_for_a_file_that_is_gone():
    assert EXCEPTIONS.keys() <= {str(source) for source in sources()}
