"""Inputs and outputs of files: names that Python can hold, shapes that are asked for, results by name."""

import keyword
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UsageError
from stretch.models.builder import Builder
from stretch.models.ends import Size, Stated, arguments, by_name, finished, named_ends, settled

pytestmark = pytest.mark.torch

PATH = Path("net.onnx")
NAMES = st.lists(
    st.text(max_size=6) | st.sampled_from(["a", "a_1", "a:1", "in", "self", "torch", "input", "slice", "x/y", "x_y", ""]), max_size=6
)


def stating(*stated):
    """The inputs of a file that states these names and axes."""
    return named_ends(PATH, [Stated(name, sizes) for name, sizes in stated])


@given(NAMES)
def test_arguments_are_words_that_differ_and_words_stay(names):
    made = arguments(names)
    assert len(set(made)) == len(made) == len(names)
    assert all(name.isidentifier() and name.isascii() and not keyword.iskeyword(name) for name in made)
    for name in set(names):
        if (
            name.isascii()
            and name.isidentifier()
            and not keyword.iskeyword(name)
            and name.strip("_") == name
            and name not in ("self", "torch", "slice")
        ):
            assert made[names.index(name)] == name


@given(NAMES.filter(bool))
def test_network_computes_with_arguments_of_any_name(names):
    ends = stating(*[(name, [Size(2)]) for name in names])
    builder = Builder(settled(PATH, ends, None))
    total = builder.stored(torch.ones(2).numpy(), "torch")
    for node in builder.inputs.values():
        total = builder.call(torch.add, total, builder.call(torch.relu, node))
    made = finished(PATH, builder, ends, by_name([(name, total) for name in names]), [])
    found = made(**{end.argument: torch.full((2,), 3.0) for end in ends})
    values = list(found.values()) if len(names) > 1 else [found]
    assert len(values) == len(names)
    assert all(value.tolist() == [1.0 + 3 * len(names)] * 2 for value in values)


def test_names_that_differ_are_told_where_there_are_several():
    def warnings(*names):
        ends = stating(*[(name, [Size(1)]) for name in names])
        builder = Builder(settled(PATH, ends, None))
        return finished(PATH, builder, ends, builder.call(torch.relu, builder.input), ["more"]).warnings

    assert warnings("a:0", "b", "in") == ["inputs of net.onnx have other names here: `a:0` is `a_0`, `in` is `in_`", "more"]
    assert warnings("a:0") == warnings("a", "b") == ["more"]


@st.composite
def asking(draw):
    """Inputs of open and stated sizes, the lengths of the open ones, and which inputs are asked for."""
    known = {symbol: draw(st.integers(1, 9)) for symbol in "nhw"}
    stated = [
        (
            f"x{i}",
            [
                draw(st.sampled_from([Size(draw(st.integers(1, 9))), *(Size(0, symbol) for symbol in known)]))
                for _ in range(draw(st.integers(1, 4)))
            ],
        )
        for i in range(draw(st.integers(1, 4)))
    ]
    return stated, known, draw(st.sets(st.sampled_from([name for name, _ in stated])))


@given(asking())
def test_sizes_of_one_name_are_filled_in_from_what_is_asked_of_any_input(case):
    stated, known, names = case
    want = {name: tuple(known.get(size.symbol, size.usual) for size in sizes) for name, sizes in stated}
    asked = {name: want[name] for name in names}
    ends = stating(*stated)
    seen = {size.symbol for name, sizes in stated if name in names for size in sizes}
    if all(size.usual or size.symbol in seen for _, sizes in stated for size in sizes):
        assert settled(PATH, ends, asked) == want
    else:
        with pytest.raises(UsageError, match=r"the size of the input `x\d` of net.onnx is open"):
            settled(PATH, ends, asked)
    if len(names) == len(stated):
        assert settled(PATH, ends, list(want.values())) == want


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


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [(None, UsageError), ([Size(0)], UsageError), ([Size(-1, fixed=True)], StretchError), ([Size(1 << 60)], StretchError)],
)
def test_shapes_that_no_network_reads_are_refused(sizes, kind):
    with pytest.raises(kind, match=r"is open|which no network reads"):
        settled(PATH, stating(("x", sizes)), None)


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


def test_whole_numbers_that_become_reals_at_once_are_reals_and_told():
    ends = named_ends(PATH, [Stated("image", [Size(2)], "uint8", cast=True)])
    builder = Builder(settled(PATH, ends, None))
    made = finished(PATH, builder, ends, builder.call(torch.relu, builder.input), [])
    assert made.warnings == ["the input `image` of net.onnx is of type uint8 and becomes reals at once: here it is of reals"]


def test_results_have_their_names_and_one_has_none():
    assert by_name([("y", 1)]) == 1
    assert by_name([("y", 1), ("z:0", 2), ("y", 3)]) == {"y": 1, "z:0": 2, "y_1": 3}
