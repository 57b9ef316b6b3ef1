import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from stretch.planning.config import PLAN_OPTIONS
from stretch.planning.messages import format_value

BY_NAME = {option.name: option for option in PLAN_OPTIONS}


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("macs", "0.9:1.1", (0.9, 1.1)),
        ("precision", "cpu=int8, gpu=fp16", {"cpu": "int8", "gpu": "fp16"}),
        ("processors", "cpu, gpu", ("cpu", "gpu")),
        ("alpha", 0.3, 0.3),
        ("accuracy", Path("some/file.json"), "some/file.json"),
        ("merge", "always", "always"),
        ("n_meet", "2", 2),
        ("macs", [0.9, 1.1], (0.9, 1.1)),
    ],
)
def test_text_of_a_flag_becomes_the_value(name, word, value):
    assert BY_NAME[name].read(word) == value


@pytest.mark.parametrize(("name", "word"), [("macs", "wide"), ("macs", "1:2:3"), ("precision", "cpu"), ("precision", "=int8")])
def test_text_that_is_not_understood_is_refused_with_an_example(name, word):
    option = BY_NAME[name]
    with pytest.raises(UsageError) as caught:
        option.read(word)
    assert f"`{name}={word}`" in caught.value.message
    assert option.read(re.search(f"`{name}=(.+)`", caught.value.hint)[1]) is not None


@pytest.mark.parametrize(("name", "word"), [("alpha", -1.0), ("macs", "nan:1"), ("min_width", 1.5), ("n_meet", 0), ("peak_memory", 0)])
def test_value_out_of_range_is_refused_with_the_name_of_its_option(name, word):
    with pytest.raises(UsageError, match=f"`{name}` is out of range"):
        BY_NAME[name].read(word)


@given(st.tuples(st.integers(1, 999), st.integers(1, 999)))
def test_written_range_is_read_back(ends):
    value = (ends[0] / 100, ends[1] / 100)
    assert BY_NAME["macs"].read(format_value(value)) == value


def test_default_of_every_option_has_its_type_and_equals_the_value_that_the_flag_reads():
    for option in PLAN_OPTIONS:
        assert option.validate(option.default) == option.default
        assert option.shown_default is None or option.read(option.shown_default) == option.default
