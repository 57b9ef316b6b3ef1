import pytest

from tests.scheduler.delegates import cases as drawn


@pytest.fixture(scope="session")
def cases():
    return drawn
