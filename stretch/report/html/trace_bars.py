"""Traces as bars of a timeline."""

from scheduler.runtime.trace import Trace
from stretch.report.html.charts import Bar

#: Spans of a trace by the kind of bar they are; a plan's span covers a whole inference and is left out.
_KINDS = {"subgraph": "computing", "join": "join", "conversion": "exchange", "load": "others"}


def trace_bars(trace: Trace, *, from_ns: int | None = None) -> list[Bar]:
    """The spans of an inference."""
    zero = trace.start_ns if from_ns is None else from_ns
    return [
        Bar(span.processor, (span.start_ns - zero) / 1e6, span.ms, _KINDS[span.kind], span.name.partition("/")[0])
        for span in sorted(trace.spans, key=lambda span: span.start_ns)
        if span.kind in _KINDS
    ]
