import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.runtime.trace import Span, Trace, typical

MS = 1_000_000


def trace(*spans):
    """Spans as (name, processor, start ms, end ms)."""
    made = tuple(Span(n, p, f"q{p}", "join" if n == "join" else "subgraph", int(a * MS), int(b * MS)) for n, p, a, b in spans)
    return Trace(made, 0, 10 * MS)


def test_overlap_is_the_time_in_which_both_ran():
    one = trace(("a", "cpu", 0, 4), ("b", "gpu", 3, 6), ("c", "cpu", 5, 9), ("join", "gpu", 0, 10))
    assert one.overlap_ms("cpu", "gpu") == one.overlap_ms("gpu", "cpu") == 2
    assert one.busy_ms() == {"cpu": 8, "gpu": 3}
    assert one.makespan_ms == 10


times = st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted)


@given(st.lists(times, max_size=6), st.lists(times, max_size=6))
def test_overlap_agrees_with_counting_every_tick(cpu, gpu):
    """Oracle: for each tick, spans of the one times spans of the other."""
    spans = [("a", "cpu", *t) for t in cpu] + [("b", "gpu", *t) for t in gpu]
    expected = sum(sum(a <= t < b for a, b in cpu) * sum(a <= t < b for a, b in gpu) for t in range(100))
    assert trace(*spans).overlap_ms("cpu", "gpu") == pytest.approx(expected)


@given(st.lists(st.integers(0, 100), min_size=1))
def test_typical_inference_is_the_one_with_the_median_makespan(lengths):
    made = [Trace((), 0, ms * MS) for ms in lengths]
    assert typical(made).makespan_ms == statistics.median_low(lengths)
