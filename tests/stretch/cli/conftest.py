import json

import pytest

from stretch.cli import app
from tests.scheduler.conftest import bundle_dir, bundles

__all__ = ["bundle_dir", "bundles"]


@pytest.fixture
def stretch(capsys):
    """Runs the command line; gives exit code, stdout (decoded if `--json`) and stderr."""

    def call(*words):
        with pytest.raises(SystemExit) as stop:
            app([str(word) for word in words])
        out, err = capsys.readouterr()
        return stop.value.code, json.loads(out) if "--json" in words else out, err

    return call


@pytest.fixture
def succeeds(stretch):
    """Runs a command line that must succeed; gives stdout (decoded if `--json`) and stderr."""

    def call(*words):
        code, out, err = stretch(*words)
        assert code == 0, f"{out}{err}"
        return out, err

    return call
