"""How sizes of inputs and options of boards are read from flags."""

import pytest

from predictors.errors import UsageError
from stretch.cli.boards import flags, where
from stretch.parameters import read_inputs


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


def test_flags_become_words_and_what_was_not_said_none():
    mapping = {"map": ["gpu=cpu1", "cpu=cpu0"], "time_limit": 2.5, "trust_code": True, "in_flight": None, "off": False, "processors": "-x"}
    words = ["--map=gpu=cpu1", "--map=cpu=cpu0", "--time-limit=2.5", "--trust-code", "--processors=-x"]
    assert flags(False, **mapping) == words
    assert flags(True) == ["--quiet"]


def test_extras_of_the_verb_and_of_the_user_are_named_once():
    place = where("me@board", None, None, "opencl, fit", None, more=("fit",))
    assert (place.host, place.extras) == ("me@board", ("fit", "opencl"))
    assert where(None, None, None, None, None) is None
