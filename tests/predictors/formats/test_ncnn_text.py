"""The text of ncnn's networks."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from predictors.formats.ncnn import parse_layers

HEAD = "7767517\n2 2\n"
INPUT = "Input data 0 1 data 0=8 1=8 2=3\n"


def test_parameters_and_lists_are_read_by_their_numbers():
    _, layer = parse_layers(HEAD + INPUT + "Slice s 1 1 data out -23330=4,3,8,8,3 -23300=2,-233,5 1=0 2=1.5e+00\n", "f")
    assert (layer.kind, layer.name, layer.inputs, layer.outputs) == ("Slice", "s", ("data",), ("out",))
    assert (layer.params, layer.shapes, layer.line) == ({0: (-233, 5), 1: 0, 2: 1.5}, ((1, 3, 8, 8),), 4)
    assert (layer.integers(0), layer.integer(1, 7), layer.integer(9, 7)) == ((-233, 5), 0, 7)


def test_layers_beyond_the_stated_number_are_left_out_as_ncnn_does():
    assert len(parse_layers("7767517\n1 1\n" + INPUT + INPUT, "f")) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "first line is not 7767517"),
        ("7767518\n1 1\n" + INPUT, "first line is not 7767517"),
        ("7767517\n1\n" + INPUT, "line 2 is not"),
        ("7767517\n-1 1\n" + INPUT, "line 2 is not"),
        ("7767517\n99999999 1\n" + INPUT, "the limit is"),
        (HEAD + INPUT, "has 1 layers, line 2 states 2"),
        (HEAD + INPUT + "Conv\n", "line 4 is no layer"),
        (HEAD + INPUT + "Conv c 1 1 data\n", "states 1 and 1 blobs and has 1"),
        (HEAD + INPUT + "Conv c 1 1 data out x=1\n", "line 4 is no layer"),
        (HEAD + INPUT + "Conv c 1 1 data out 0=nan\n", "line 4 is no layer"),
        (HEAD + INPUT + "Conv c 1 1 data out 0=1e99\n", "no finite number"),
        (HEAD + INPUT + "Conv c 1 1 data out -23300=3,1,2\n", "states 3 items and has 2"),
    ],
)
def test_damaged_text_is_refused_with_its_line(text, words):
    with pytest.raises(StretchError, match=words):
        parse_layers(text, "f")


@given(st.text(alphabet="Iab 0123=,.-e\n", max_size=60))
def test_any_text_is_the_stated_number_of_layers_or_refused(text):
    with contextlib.suppress(StretchError):
        layers = parse_layers(HEAD + text, "f")
        assert len(layers) == 2
        assert all(len(layer.shapes) in (0, len(layer.outputs)) for layer in layers)
