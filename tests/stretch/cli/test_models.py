"""`stretch models` lists names and filters them by a wildcard."""

import json

import pytest

from stretch.cli import app

pytestmark = pytest.mark.torch


def run(capsys, *words):
    """Exit code, stdout and stderr of `stretch models`."""
    with pytest.raises(SystemExit) as stop:
        app(["models", *words])
    return stop.value.code, *capsys.readouterr()


def test_wildcard_lists_the_matching_models_with_their_family(capsys):
    code, out, _ = run(capsys, "tiny_re*", "--json")
    assert code == 0
    assert json.loads(out)["items"] == [
        {"name": "tiny_regnet", "family": "tiny", "checked": True},
        {"name": "tiny_resnet", "family": "tiny", "checked": True},
    ]


def test_pattern_that_matches_nothing_names_the_closest(capsys):
    code, out, err = run(capsys, "resnt50")
    assert code == 3
    assert out == ""
    assert "did you mean `resnet50`?" in err


def test_details_are_of_the_size_that_is_asked_for(capsys):
    _, out, _ = run(capsys, "tiny_resnet", "--details", "--input", "3x64x64", "--json")
    (item,) = json.loads(out)["items"]
    assert item["stages"][0]["shape"][2:] == [64, 64]
