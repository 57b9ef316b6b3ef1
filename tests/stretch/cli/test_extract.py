import pytest

from tests.stretch.cli.commands import call

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_folder_without_a_run_is_refused(capsys, tmp_path):
    result = call(capsys, "extract", tmp_path)
    assert result.code == 1
    assert "no run" in result.message
