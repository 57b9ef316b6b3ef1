import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError, UsageError  # noqa: E402 - torch may be missing
from stretch.stages.emit import emit  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.slow
def test_bundle_becomes_a_package_of_its_branches(tiny_bundle, tmp_path):
    answer = emit(str(tiny_bundle), tmp_path / "net")
    assert answer.branched
    assert answer.max_error <= 1e-4
    assert {path.name for path in (tmp_path / "net").iterdir()} == set(answer.files)
    assert sum(name.startswith("segment_") for name in answer.files) == answer.segments > 1


def test_model_becomes_a_package_of_one_class(tmp_path):
    answer = emit("tiny_mobilenet", tmp_path / "net", (1, 3, 64, 64), weights="none")
    assert not answer.branched
    assert "torch.randn(1, 3, 64, 64)" in (tmp_path / "net" / "example.py").read_text()


def test_options_of_a_model_are_none_of_a_bundle(tiny_bundle, tmp_path):
    with pytest.raises(UsageError, match="has its own input and weights"):
        emit(str(tiny_bundle), tmp_path / "net", (1, 3, 64, 64))


def test_nothing_is_read_where_nothing_could_be_written(tmp_path):
    with pytest.raises(UsageError, match="no name of a Python package"):
        emit("no such model", tmp_path / "a-b")
    with pytest.raises(StretchError, match="unknown model"):
        emit("no_such_model", tmp_path / "net")
    assert list(tmp_path.iterdir()) == []
