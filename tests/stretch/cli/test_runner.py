import json

import pytest

from tests.scheduler.bundles import two_branches
from tests.scheduler.runner.exported import exported
from tests.stretch.cli.commands import call

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch


def test_sources_of_a_bundles_runner_are_written(capsys, tmp_path):
    exported(tmp_path, two_branches)
    made = call(capsys, "runner", tmp_path / "bundle", "--out", tmp_path / "runner", "--json")
    assert made.code == 0
    told = json.loads(made.out)
    assert sorted(path.name for path in (tmp_path / "runner").iterdir()) == told["files"]
    assert told["sha256"] in (tmp_path / "runner" / "plan.h").read_text()
