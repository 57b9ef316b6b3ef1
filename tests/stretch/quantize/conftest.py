import pytest

from tests.scheduler.bundles import two_branches


@pytest.fixture(scope="session")
def floats(tmp_path_factory):
    """An fp32 bundle for cpu, dsp and gpu: a concat join, then a sum join."""
    return two_branches(tmp_path_factory.mktemp("floats") / "bundle", processors=("cpu", "dsp", "gpu"))
