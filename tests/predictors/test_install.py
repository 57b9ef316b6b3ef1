"""What hints say of installing works."""

import subprocess
import sys
from pathlib import Path

import pytest

from predictors.install import ON_BOARD, install_command, install_line
from tests.contracts.repository import ROOT


def test_line_on_a_board_names_the_flag_that_brings_extras_there(monkeypatch):
    monkeypatch.setenv(ON_BOARD, "1")
    assert install_line("opencl") == "`--extras opencl` beside `--on`"


@pytest.mark.slow
def test_command_installs_a_program_that_runs(tmp_path):
    uv = Path(sys.executable).parent / "uv"
    if not uv.is_file():
        pytest.skip("uv is not installed")
    command = install_command("torch").replace('"', "").split()
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--python", sys.executable, "--target", str(tmp_path)]
    subprocess.run([str(uv), *command, *options], cwd=ROOT, check=True)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import stretch; print(stretch.__file__); from stretch.cli import app; app(['--version'])"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[0].startswith(str(tmp_path)), done.stderr
    assert "nn-stretch" in done.stdout.splitlines()[1]
