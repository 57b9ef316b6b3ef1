import pytest

from scheduler.bundle.load import load_bundle
from tests.scheduler import bundles as small
from tests.scheduler.doubles import threads


@pytest.fixture(scope="session")
def bundles():
    return small


@pytest.fixture
def bundle_dir(bundles, tmp_path):
    """A two-branch bundle for cpu and gpu."""
    return bundles.two_branches(tmp_path / "bundle")


@pytest.fixture
def bundle(bundle_dir):
    return load_bundle(bundle_dir)


@pytest.fixture
def new_threads():
    """Function that returns session threads started in this test; threads of earlier tests may still be ending."""
    before = set(threads())
    return lambda: set(threads()) - before


@pytest.fixture
def folders(bundles, tmp_path):
    """Two two-branch bundles with different weights."""
    return {"a": bundles.two_branches(tmp_path / "a"), "b": bundles.two_branches(tmp_path / "b", seed=1)}
