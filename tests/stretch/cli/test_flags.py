"""How sizes of inputs and options of boards are read from flags."""

import pytest

from predictors.errors import UsageError
from stretch.cli.boards import flags, where
from stretch.parameters import read_inputs
from tests.stretch.cli.commands import call


@pytest.mark.parametrize("text", ["3×32×48", " 1x3x32x48"])
def test_size_of_one_image_may_be_written_in_several_ways(text):
    assert read_inputs([text]) == (1, 3, 32, 48)


def test_several_inputs_have_names_or_an_order():
    assert read_inputs(["image=1x3x8x8", "words=1x16"]) == {"image": (1, 3, 8, 8), "words": (1, 16)}
    assert read_inputs(["1x3x8x8", "1x1x8x8"]) == [(1, 3, 8, 8), (1, 1, 8, 8)]
    assert read_inputs(["x=2x5"]) == {"x": (2, 5)}
    assert read_inputs([]) is None
    assert read_inputs(None) is None


@pytest.mark.parametrize("text", ["3x224", "3x0x224", "3x99999x3", "3x²x4", "x=1x0"])
def test_input_that_is_no_shape_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match=r"is no shape|is not channels, height and width") as refused:
        read_inputs([text])
    assert "3x224x224" in refused.value.hint


@pytest.mark.parametrize("texts", [["a=1x3x8x8", "1x3x8x8"], ["a=1x3x8x8", "a=1x3x8x8"]])
def test_names_are_given_to_all_inputs_or_none_and_once(texts):
    with pytest.raises(UsageError, match="need distinct names"):
        read_inputs(texts)


@pytest.mark.parametrize("flag", ["--there=x", "--ssh-config=x"])
@pytest.mark.parametrize("verb", ["run", "profile"])
def test_flag_of_a_board_without_a_board_is_refused(capsys, bundle_dir, verb, flag):
    words = {"run": (bundle_dir,), "profile": ("--name", "here")}[verb]
    result = call(capsys, verb, *words, flag)
    assert (result.code, result.hint) == (2, "name it with --on user@host")
    assert result.message == f"{flag.partition('=')[0]} does not go with a run without a board"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--on=-oProxyCommand=x",), 2, "begins with a dash"),
        (("--on", "a b"), 2, "is no name of a host"),
        (("--on", "board", "--html", "page.html"), 2, "--html does not go with --on"),
        (("--on", "board", "--there", "a\nb"), 2, "--there is no name of a folder"),
        (("--on", "board", "--priority", "speed"), 2, "--priority speed is not known"),
        (("--on", "board", "--ssh-config", "missing"), 1, "there is no ssh configuration missing"),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_board_is_asked(capsys, bundle_dir, tmp_path, monkeypatch, words, code, sentence):
    monkeypatch.chdir(tmp_path)
    result = call(capsys, "run", bundle_dir, *words)
    assert result.code == code
    assert sentence in result.message
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_flags_become_words_and_what_was_not_said_none():
    mapping = {"map": ["gpu=cpu1", "cpu=cpu0"], "time_limit": 2.5, "trust_code": True, "in_flight": None, "off": False, "processors": "-x"}
    words = ["--map=gpu=cpu1", "--map=cpu=cpu0", "--time-limit=2.5", "--trust-code", "--processors=-x"]
    assert flags(False, **mapping) == words
    assert flags(True) == ["--quiet"]


def test_extras_of_the_verb_and_of_the_user_are_named_once():
    place = where("me@board", None, None, "opencl, fit", None, more=("fit",))
    assert (place.host, place.extras) == ("me@board", ("fit", "opencl"))
    assert where(None, None, None, None, None) is None
