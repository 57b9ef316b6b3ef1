import pytest

from tests.stretch.cli.commands import call

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("count", "reason"), [(12, "nothing to rank"), (3, "too few")])
def test_run_that_cannot_be_ranked_is_refused_before_anything_is_written(capsys, tmp_path, count, reason):
    (tmp_path / "recipe.toml").write_text('model = "tiny_resnet"\ndevice = "mi9"\n')
    result = call(capsys, "extract", tmp_path, "--rank", count)
    assert result.code == 1
    assert reason in result.message
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]
