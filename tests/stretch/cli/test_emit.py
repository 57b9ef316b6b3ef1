import pytest

from tests.stretch.cli.commands import call

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_people_are_told_how_to_import_it(capsys, tiny_bundle, tmp_path):
    result = call(capsys, "emit", tiny_bundle, "--out", tmp_path / "net")
    assert result.code == 0, result.err
    assert "segments" in result.out
    assert result.out.rstrip().endswith(f"from net import load  # in {tmp_path}")
