"""Timeline of an inference, and its files: one for ui.perfetto.dev, and a table."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from predictors.files import write_whole


@dataclass(frozen=True)
class Span:
    """The time in which one step ran."""

    name: str  # Subgraph or join, or the tensor that is converted or moved for it.
    processor: str  # Processor of the device for which the step was planned.
    queue: str  # Queue on this machine that ran the step.
    #: Kind of the span; in a simulation, a load is the share of a processor that other programs take, and a plan the one in use.
    kind: Literal["subgraph", "join", "conversion", "load", "plan"]
    start_ns: int  # Start, on the clock of `time.perf_counter_ns`.
    end_ns: int  # End on the same clock.

    @property
    def ms(self) -> float:
        """Length of the span, ms."""
        return (self.end_ns - self.start_ns) / 1e6


@dataclass(frozen=True)
class QueueDepth:
    """Number of ready subgraphs that waited, by queue."""

    at_ns: int  # Time, on the clock of `time.perf_counter_ns`.
    waiting: Mapping[str, int]  # Number by queue.


@dataclass(frozen=True)
class Trace:
    """Spans and other data of one inference."""

    spans: tuple[Span, ...]  # Spans in the order in which they ended.
    start_ns: int  # Time at which the input was ready.
    end_ns: int  # Time at which the output was ready.
    load: float | None = None  # Load average of the machine in the last minute; None if not measured.
    replaced: Mapping[str, str] = field(default_factory=dict)  # Subgraphs with another placement than their processor's, with the reason.

    @property
    def makespan_ms(self) -> float:
        """Time from input ready to output ready, ms."""
        return (self.end_ns - self.start_ns) / 1e6

    def busy_ms(self, kinds: Sequence[str] = ("subgraph",)) -> dict[str, float]:
        """Return the time in ms for which each processor ran subgraphs, or spans of the given kinds."""
        busy: dict[str, float] = {}
        for span in self.spans:
            if span.kind in kinds:
                busy[span.processor] = busy.get(span.processor, 0.0) + span.ms
        return busy

    def overlap_ms(self, first: str, second: str) -> float:
        """Return the time in ms for which two processors ran subgraphs at once."""
        total = 0
        for a in self.spans:
            for b in self.spans:
                if a.kind == b.kind == "subgraph" and a.processor == first and b.processor == second:
                    total += max(0, min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns))
        return total / 1e6


def median_trace(traces: Sequence[Trace]) -> Trace:
    """Return the trace with the median makespan; of an even number, the lower middle one."""
    return sorted(traces, key=lambda trace: trace.makespan_ms)[(len(traces) - 1) // 2]


COLUMNS = ("track", "inference", "name", "kind", "processor", "queue", "start_ms", "end_ms", "ms")


def perfetto(tracks: Mapping[str, Sequence[Trace]], depths: Mapping[str, Sequence[QueueDepth]] | None = None) -> dict[str, Any]:
    """Return the traces in the Chrome trace event format, one thread per processor, with counters below.

    Counters: number of running subgraphs, number of subgraphs that wait for each
    queue where that was recorded, and the machine's load average.

    Args:
        tracks: Groups of traces, shown one below the other, such as
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
        events += [_counter(pid, "running", time - zero, {"subgraphs": count}) for time, count in _running(traces)]
        for depth in (depths or {}).get(group, ()):
            if depth.at_ns >= zero:
                events.append(_counter(pid, "waiting", depth.at_ns - zero, dict(depth.waiting)))
        for processor, tid in threads.items():
            for name, args in (("thread_name", {"name": processor}), ("thread_sort_index", {"sort_index": tid})):
                events.append({"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args})
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_perfetto(path: Path, tracks: Mapping[str, Sequence[Trace]], depths: Mapping[str, Sequence[QueueDepth]] | None = None) -> None:
    """Write traces to a file for ui.perfetto.dev and chrome://tracing."""
    write_whole(path, msgspec.json.encode(perfetto(tracks, depths)), "trace")


def write_csv(path: Path, tracks: Mapping[str, Sequence[Trace]]) -> None:
    """Write one row per span, with times in ms from the start of its inference."""
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
    """Return the times in ns at which a subgraph starts or ends, with the number that run from then on."""
    spans: list[Span] = [span for trace in traces for span in trace.spans if span.kind == "subgraph"]
    changes = sorted([(span.start_ns, 1) for span in spans] + [(span.end_ns, -1) for span in spans])
    count, points = 0, []
    for time, change in changes:
        count += change
        points.append((time, count))
    return points


def _counter(pid: int, name: str, at_ns: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "C", "pid": pid, "name": name, "ts": at_ns / 1000, "args": values}
