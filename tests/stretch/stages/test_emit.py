import pytest

torch = pytest.importorskip("torch")

from predictors.errors import UsageError  # noqa: E402 - torch may be missing
from stretch.stages.emit import emit  # noqa: E402

pytestmark = pytest.mark.torch


def test_model_becomes_a_package_of_one_class(tmp_path):
    answer = emit("tiny_mobilenet", tmp_path / "net", (1, 3, 64, 64), weights="none")
    assert not answer.branched
    assert "torch.randn(1, 3, 64, 64)" in (tmp_path / "net" / "example.py").read_text()


def test_options_of_a_model_are_none_of_a_bundle(tiny_bundle, tmp_path):
    with pytest.raises(UsageError, match="has its own input and weights"):
        emit(str(tiny_bundle), tmp_path / "net", (1, 3, 64, 64))
