"""`stretch env` names what a bug report needs."""

import json
import os
import subprocess
import sys

import pytest

CALL = [sys.executable, "-P", "-c", "from stretch.cli import app; app()", "env"]


@pytest.mark.slow
def test_report_warns_of_a_distribution_that_owns_a_package_of_ours(tmp_path):
    stranger = tmp_path / "scheduler-9.0.dist-info"
    stranger.mkdir()
    (stranger / "METADATA").write_text("Metadata-Version: 2.1\nName: scheduler\nVersion: 9.0\n")
    (stranger / "top_level.txt").write_text("scheduler\n")
    result = subprocess.run([*CALL, "--json"], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert "`scheduler`" in result.stderr
    assert "pip uninstall scheduler" in json.loads(result.stdout)["warnings"][0]
