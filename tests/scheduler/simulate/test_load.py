from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.simulate.load import Free, Load, parse_loads


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
