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


def test_details_for_people_are_a_table_a_model(capsys):
    _, out, _ = run(capsys, "tiny_resnet", "--details")
    assert out.splitlines()[0].startswith("tiny_resnet  (")
    assert out.splitlines()[1].split() == ["stage", "shape", "blocks", "scaled", "exact", "why", "not", "stretched"]


def test_details_of_too_many_models_ask_for_a_narrower_pattern(capsys):
    code, _, err = run(capsys, "*", "--details")
    assert code == 2
    assert "give a narrower pattern" in err


def test_input_without_details_is_a_usage_error(capsys):
    code, _, err = run(capsys, "tiny_resnet", "--input", "3x64x64")
    assert code == 2
    assert "leave out --input, or add --details" in err


def test_details_are_of_the_size_that_is_asked_for(capsys):
    _, out, _ = run(capsys, "tiny_resnet", "--details", "--input", "3x64x64", "--json")
    (item,) = json.loads(out)["items"]
    assert item["stages"][0]["shape"][2:] == [64, 64]


def test_file_that_is_not_there_is_an_unknown_model(capsys):
    code, _, err = run(capsys, "missing.pt2", "--details")
    assert code == 3
    assert "unknown model `missing.pt2`" in err
