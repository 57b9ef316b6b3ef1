import pytest

from tests.scheduler.conftest import bundle_dir, bundles
from tests.stretch.cli.commands import call, succeed

__all__ = ["bundle_dir", "bundles"]


@pytest.fixture
def stretch(capsys):
    """Runs the command line; gives exit code, stdout (decoded if `--json`) and stderr."""

    def answer(*words):
        done = call(capsys, *words)
        return done.code, done.data if "--json" in words else done.out, done.err

    return answer


@pytest.fixture
def succeeds(capsys):
    """Runs a command line that must succeed; gives stdout (decoded if `--json`) and stderr."""

    def answer(*words):
        done = succeed(capsys, *words)
        return done.data if "--json" in words else done.out, done.err

    return answer
