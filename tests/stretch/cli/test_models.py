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


def test_list_for_people_marks_checked_models(capsys):
    _, out, _ = run(capsys, "mobilenet*")
    assert [line.split() for line in out.splitlines()] == [
        ["mobilenet_v2", "torchvision", "checked"],
        ["mobilenet_v3_large", "torchvision", "checked"],
        ["mobilenet_v3_small", "torchvision"],
    ]


def test_pattern_that_matches_nothing_names_the_closest(capsys):
    code, out, err = run(capsys, "resnt50")
    assert code == 3
    assert out == ""
    assert "did you mean `resnet50`?" in err
