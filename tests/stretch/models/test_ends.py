"""Inputs and outputs of files: names that Python can hold, shapes that are asked for, results by name."""

from pathlib import Path

import pytest

from predictors.errors import StretchError, UsageError
from stretch.models.builder import Builder
from stretch.models.ends import Size, Stated, by_name, finished, named_ends, settled

pytestmark = pytest.mark.torch

PATH = Path("net.onnx")


def stating(*stated):
    """The inputs of a file that states these names and axes."""
    return named_ends(PATH, [Stated(name, sizes) for name, sizes in stated])


TWO = [("a:0", [Size(1, "n"), Size(3, fixed=True), Size(8)]), ("b", [Size(1, "n"), Size(4)])]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ((1, 3, 8), "one shape is given, net.onnx has 2 inputs, `a:0`, `b`"),
        ([(1, 3, 8)] * 3, "3 shapes are given, net.onnx has 2 inputs"),
        ({"c": (1, 4)}, "net.onnx has no input `c`"),
        ({"b": (1, 4, 4)}, "the input `b` of net.onnx has 2 axes, a shape of 3 is given"),
        ({"a_0": (1, 4, 8)}, "the input `a:0` of net.onnx has 3 along axis 1, 4 is given"),
        ({"a_0": (2, 3, 8), "b": (3, 4)}, "the size `n` of net.onnx is 2 in its input `a:0` and 3 in `b`"),
        ({"a_0": (2, 3, 8), "a:0": (2, 3, 8)}, "the input `a:0` of net.onnx has two shapes"),
        ({"b": (0, 4)}, "the input `b` has"),
        ({"b": "1x4"}, "the input `b` has"),
    ],
)
def test_shape_that_does_not_fit_the_file_is_refused_in_one_sentence(asked, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        settled(PATH, stating(*TWO), asked)
    assert caught.value.hint


def test_shapes_are_asked_for_by_the_names_of_the_file_or_of_the_arguments():
    ends = stating(*TWO)
    for name in ("a:0", "a_0"):
        assert settled(PATH, ends, {name: (5, 3, 9)}) == {"a_0": (5, 3, 9), "b": (5, 4)}
    assert settled(PATH, ends[1:], {"b": (2, 4)}) == settled(PATH, ends[1:], (2, 4)) == {"b": (2, 4)}
    assert settled(PATH, stating(("x", None)), (2, 4)) == {"x": (2, 4)}


def test_file_without_inputs_or_results_of_them_is_refused():
    with pytest.raises(StretchError, match=r"net.onnx has no input"):
        named_ends(PATH, [])
    ends = stating(("x", [Size(1)]))
    builder = Builder(settled(PATH, ends, None))
    with pytest.raises(StretchError, match="computes nothing from its input"):
        finished(PATH, builder, ends, {"a": builder.input, "b": 3}, [])


def test_whole_numbers_are_refused_in_the_sentence_that_modules_are_refused_in():
    with pytest.raises(UsageError, match=r"`net.onnx` takes whole numbers as its input `ids`, and inputs are real numbers here") as refused:
        named_ends(PATH, [Stated("x", None), Stated("ids", None, "int64")])
    assert refused.value.hint.startswith("fix that input to one value; where its numbers pick entries of an embedding")
    with pytest.raises(StretchError, match=r"the input `mask` of net.onnx is of type bool, not of 32-bit reals"):
        named_ends(PATH, [Stated("mask", None, "bool", cast=True)])


def test_results_have_their_names_and_one_has_none():
    assert by_name([("y", 1)]) == 1
    assert by_name([("y", 1), ("z:0", 2), ("y", 3)]) == {"y": 1, "z:0": 2, "y_1": 3}
