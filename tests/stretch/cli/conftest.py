import pytest

from tests.scheduler.conftest import bundle_dir, bundles
from tests.stretch.cli.commands import call, succeed

__all__ = ["bundle_dir", "bundles"]


@pytest.fixture
def stretch(capsys):
    """Function that runs the command line and returns exit code, stdout (decoded with `--json`) and stderr."""

    def answer(*args):
        outcome = call(capsys, *args)
        return outcome.code, outcome.data if "--json" in args else outcome.out, outcome.err

    return answer


@pytest.fixture
def succeeds(capsys):
    """Function that runs the command line, requires success and returns stdout (decoded with `--json`) and stderr."""

    def answer(*args):
        outcome = succeed(capsys, *args)
        return outcome.data if "--json" in args else outcome.out, outcome.err

    return answer
