import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.trace import Span, Trace, perfetto, timeline, write_perfetto

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


def test_perfetto_has_a_named_track_per_processor_and_microseconds(tmp_path):
    file = tmp_path / "t.json"
    write_perfetto(file, {"measured": [trace(("a", "cpu", 1, 4), ("b", "gpu", 3, 6))], "predicted": [trace(("a", "cpu", 0, 1))]})
    events = json.loads(file.read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(1, 1): "cpu", (1, 2): "gpu", (2, 1): "cpu"}
    assert {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"} == {1: "measured", 2: "predicted"}
    spans = [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [("a", 1, 1, 1000, 3000), ("b", 1, 2, 3000, 3000), ("a", 2, 1, 0, 1000)]


def test_perfetto_of_no_trace_is_still_a_file():
    assert perfetto({"measured": []})["traceEvents"][0]["args"] == {"name": "measured"}


def test_trace_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(StretchError, match="cannot write the trace"):
        write_perfetto(tmp_path / "no" / "t.json", {})
    (tmp_path / "d").mkdir()
    with pytest.raises(StretchError, match="cannot write the trace"):
        write_perfetto(tmp_path / "d", {})
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_timeline_marks_where_each_processor_ran():
    lines = timeline(trace(("a", "cpu", 0, 5), ("b", "gpu", 5, 10), ("join", "cpu", 9, 10)), width=10)
    assert lines[0] == "cpu |#####.....|"
    assert lines[1] == "gpu |.....#####|"
    assert lines[2].endswith("10.00 ms")


def test_timeline_shows_spans_shorter_than_a_character():
    assert timeline(trace(("a", "cpu", 9.99, 10)), width=4)[0] == "cpu |...#|"
