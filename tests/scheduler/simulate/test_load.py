import contextlib
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UnknownNameError, UsageError
from scheduler.simulate.load import Free, Load, parse_frequencies, parse_loads


def test_loads_are_read_as_they_are_written():
    assert parse_loads(["gpu=0.9@50:155, cpu=0.5@0:1e3", "dsp=1@2.5:3"]) == (
        Load("gpu", 0.9, 50, 155),
        Load("cpu", 0.5, 0, 1000),
        Load("dsp", 1, 2.5, 3),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpu", "`gpu` is no load"),
        ("gpu=0.9", "`gpu=0.9` is no load"),
        ("", "`` is no load"),
        ("gpu=0.9@50", "`gpu=0.9@50` is no load"),
        ("gpu=much@0:1", "`gpu=much@0:1` has something in the place of a number"),
        ("gpu=nan@0:1", "takes nan of it, which is no share"),
        ("gpu=-0.1@0:1", "takes -0.1 of it, which is no share"),
        ("gpu=1.5@0:1", "takes 1.5 of it, which is no share"),
        ("gpu=0.5@nan:1", "has nan ms for a moment"),
        ("gpu=0.5@-1:1", "has -1 ms for a moment"),
        ("gpu=0.5@0:inf", "has inf ms for a moment"),
        ("gpu=0.5@0:1e10", "has 1e+10 ms for a moment"),
        ("gpu=0.5@5:4", "ends at 4 ms, and begins at 5 ms"),
        ("gpu=0.5@5:5", "ends at 5 ms, and begins at 5 ms"),
    ],
)
def test_load_that_makes_no_sense_is_refused_with_a_sentence(text, told):
    with pytest.raises(UsageError) as error:
        parse_loads([text])
    assert told in error.value.message
    assert error.value.hint


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(UsageError):
        assert all(0 <= load.share <= 1 and load.start_ms < load.end_ms for load in parse_loads([text]))


def test_load_on_a_processor_that_is_not_there_is_refused():
    with pytest.raises(UnknownNameError, match="unknown processor of the bundle `gqu`") as error:
        Free(parse_loads(["gqu=0.5@0:1"]), ["cpu", "gpu"])
    assert "gpu" in error.value.hint


def test_loads_that_take_more_than_all_are_refused_where_they_meet():
    loads = parse_loads(["gpu=0.7@0:10,gpu=0.5@9:20"])
    with pytest.raises(UsageError, match=r"loads take 1\.2 of gpu from 9 ms on"):
        Free(loads, ["gpu"])
    Free(parse_loads(["gpu=0.7@0:9,gpu=0.5@9:20,gpu=0.1@0:20,gpu=0.1@0:9,gpu=0.1@0:9"]), ["gpu"])


shares = st.builds(
    lambda processor, share, start, length: Load(processor, share, start, start + length),
    st.sampled_from(["cpu", "gpu"]),
    st.floats(0, 0.2),
    st.floats(0, 100),
    st.floats(0.01, 100),
)


@given(st.lists(shares, max_size=5))
def test_free_share_is_what_the_loads_of_the_moment_leave(loads):
    free, since = Free(loads, ["cpu", "gpu"]), -1.0  # before all loads
    while True:
        for processor, share in free.shares.items():
            taken = sum(load.share for load in loads if load.processor == processor and load.start_ms <= since < load.end_ms)
            assert abs(share - (1 - taken)) < 1e-9
        if free.until == inf:
            break
        assert free.until >= since
        since = free.until
        free.change()
    assert free.shares == {"cpu": 1, "gpu": 1}


def test_speeds_are_factors_on_what_loads_leave():
    free = Free(parse_loads(["gpu=0.5@0:10"]), ["gpu", "cpu"], parse_frequencies(["gpu=0.5@5:20, cpu=2@5:10"]))
    seen = []
    while free.until < inf:
        at = free.until
        free.change()
        seen.append((at, free.shares["gpu"], free.shares["cpu"]))
    assert seen == [(0, 0.5, 1), (5, 0.25, 2), (10, 0.5, 1), (20, 1, 1)]


@pytest.mark.parametrize("text", ["gpu=0@0:1", "gpu=nan@0:1", "gpu=11@0:1", "gpu=0.5@1:1", "gpu=0.5@nan:1", "gpu=x@0:1", "gpu@0:1"])
def test_speed_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError):
        parse_frequencies([text])


def test_processor_has_one_speed_at_a_time():
    with pytest.raises(UsageError, match="two speeds from 5 ms on"):
        Free((), ["gpu"], parse_frequencies(["gpu=0.5@0:9,gpu=0.7@5:12"]))
    Free((), ["gpu"], parse_frequencies(["gpu=0.5@0:9,gpu=0.7@9:12"]))
