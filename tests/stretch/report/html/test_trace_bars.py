"""Spans of a trace become bars on the rows of their processors."""

from scheduler.runtime.trace import Span, Trace
from stretch.report.html.charts import Bar
from stretch.report.html.trace_bars import trace_bars

TRACE = Trace(
    spans=(
        Span("s1/gpu", "gpu", "gpu", "subgraph", 3_000_000, 5_000_000),
        Span("s1/cpu", "cpu", "cpu", "subgraph", 2_000_000, 4_000_000),
        Span("s1/gpu in", "gpu", "gpu", "conversion", 2_000_000, 3_000_000),
        Span("s1/join", "cpu", "cpu", "join", 5_000_000, 6_000_000),
        Span("plan", "cpu", "cpu", "plan", 2_000_000, 6_000_000),
        Span("others", "gpu", "gpu", "load", 0, 9_000_000),
    ),
    start_ns=2_000_000,
    end_ns=6_000_000,
)


def test_bars_begin_where_the_inference_begins_and_plans_are_left_out():
    assert trace_bars(TRACE) == [
        Bar("gpu", -2.0, 9.0, "others", "others"),
        Bar("cpu", 0.0, 2.0, "computing", "s1"),
        Bar("gpu", 0.0, 1.0, "exchange", "s1"),
        Bar("gpu", 1.0, 2.0, "computing", "s1"),
        Bar("cpu", 3.0, 1.0, "join", "s1"),
    ]
