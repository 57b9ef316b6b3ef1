"""Traces as files: a timeline for ui.perfetto.dev, a table for everything else."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from predictors.files import write_whole
from scheduler.runtime.trace import QueueDepth, Span, Trace

COLUMNS = ("track", "inference", "name", "kind", "processor", "queue", "start_ms", "end_ms", "ms")


def perfetto(tracks: Mapping[str, Sequence[Trace]], depths: Mapping[str, Sequence[QueueDepth]] | None = None) -> dict[str, Any]:
    """Traces in the Chrome trace event format, one thread a processor, with counters below.

    Counters: how many subgraphs run at each moment, how many wait for each
    queue where that was recorded, and the machine's load average.

    Args:
        tracks: Groups of traces that are shown below each other, such as
            ``{"measured": [...], "predicted": [...]}``; each group starts at time zero.
    """
    events: list[dict[str, Any]] = []
    for pid, (group, traces) in enumerate(tracks.items(), start=1):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": group}})
        zero = min((t.start_ns for t in traces), default=0)
        threads: dict[str, int] = {}
        for number, trace in enumerate(traces):
            for span in trace.spans:
                tid = threads.setdefault(span.processor, len(threads) + 1)
                when = {"ts": (span.start_ns - zero) / 1000, "dur": (span.end_ns - span.start_ns) / 1000}
                event = {"ph": "X", "pid": pid, "tid": tid, "name": span.name, "cat": span.kind} | when
                events.append(event | {"args": {"queue": span.queue, "inference": number}})
            if trace.load is not None:
                events.append(_counter(pid, "load average", trace.end_ns - zero, {"load": trace.load}))
        events += [_counter(pid, "running", at - zero, {"subgraphs": count}) for at, count in _running(traces)]
        for depth in (depths or {}).get(group, ()):
            if depth.at_ns >= zero:
                events.append(_counter(pid, "waiting", depth.at_ns - zero, dict(depth.waiting)))
        for processor, tid in threads.items():
            for name, args in (("thread_name", {"name": processor}), ("thread_sort_index", {"sort_index": tid})):
                events.append({"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args})
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_perfetto(path: Path, tracks: Mapping[str, Sequence[Trace]], depths: Mapping[str, Sequence[QueueDepth]] | None = None) -> None:
    """Write traces as a file that ui.perfetto.dev and chrome://tracing open."""
    write_whole(path, msgspec.json.encode(perfetto(tracks, depths)), "trace")


def write_csv(path: Path, tracks: Mapping[str, Sequence[Trace]]) -> None:
    """Write a row for each span, times in milliseconds from the start of its inference."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for group, traces in tracks.items():
        for number, trace in enumerate(traces):
            for span in sorted(trace.spans, key=lambda span: span.start_ns):
                start, end = (span.start_ns - trace.start_ns) / 1e6, (span.end_ns - trace.start_ns) / 1e6
                table.writerow(
                    (group, number, span.name, span.kind, span.processor, span.queue, f"{start:.4f}", f"{end:.4f}", f"{span.ms:.4f}")
                )
    write_whole(path, text.getvalue().encode(), "trace")


def _running(traces: Sequence[Trace]) -> list[tuple[int, int]]:
    """Moments at which a subgraph starts or ends, and how many run from then on."""
    spans: list[Span] = [span for trace in traces for span in trace.spans if span.kind == "subgraph"]
    changes = sorted([(span.start_ns, 1) for span in spans] + [(span.end_ns, -1) for span in spans])
    count, points = 0, []
    for at, change in changes:
        count += change
        points.append((at, count))
    return points


def _counter(pid: int, name: str, at_ns: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "C", "pid": pid, "name": name, "ts": at_ns / 1000, "args": values}
