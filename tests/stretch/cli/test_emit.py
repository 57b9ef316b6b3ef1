import pytest

from tests.stretch.cli.commands import call

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_people_are_told_how_to_import_it(capsys, tiny_bundle, tmp_path):
    result = call(capsys, "emit", tiny_bundle, "--out", tmp_path / "net")
    assert result.code == 0, result.err
    assert "segments" in result.out
    assert result.out.rstrip().endswith(f"from net import load  # in {tmp_path}")


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("tiny_resnet", "--out", "{}/a-b"), 2, "no name of a Python package"),
        (("tiny_resnet", "--out", "{}/no/net"), 2, "does not exist"),
        (("tiny_resnt", "--out", "{}/net"), 3, "did you mean `tiny_resnet`"),
        (("tiny_resnet", "--out", "{}/net", "--input", "3x32"), 2, "not channels, height and width"),
        (("{}", "--out", "{}/net"), 1, "is not a bundle"),
    ],
)
def test_wrong_words_are_refused_and_nothing_is_left(capsys, tmp_path, words, code, why):
    result = call(capsys, "emit", *(word.replace("{}", str(tmp_path)) for word in words))
    assert result.code == code, result.err
    assert why in result.err
    assert list(tmp_path.iterdir()) == []
