"""What ran where and when, and the same as a file for ui.perfetto.dev."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from predictors.errors import StretchError


@dataclass(frozen=True)
class Span:
    """A stretch of time in which one thing ran.

    Args:
        name: Subgraph or join.
        processor: Processor of the device it was planned for.
        queue: Where it ran on this machine.
        kind: What it was.
        start_ns: When it started, on the clock of `time.perf_counter_ns`.
        end_ns: When it ended.
    """

    name: str
    processor: str
    queue: str
    kind: Literal["subgraph", "join"]
    start_ns: int
    end_ns: int

    @property
    def ms(self) -> float:
        """Its length in milliseconds."""
        return (self.end_ns - self.start_ns) / 1e6


@dataclass(frozen=True)
class QueueDepth:
    """How many subgraphs were ready and waited, by queue.

    Args:
        at_ns: When, on the clock of `time.perf_counter_ns`.
        waiting: Number by queue.
    """

    at_ns: int
    waiting: Mapping[str, int]


@dataclass(frozen=True)
class Trace:
    """One inference.

    Args:
        spans: In the order in which they ended.
        start_ns: When the input was ready.
        end_ns: When the output was ready.
    """

    spans: tuple[Span, ...]
    start_ns: int
    end_ns: int

    @property
    def makespan_ms(self) -> float:
        """From input ready to output ready, in milliseconds."""
        return (self.end_ns - self.start_ns) / 1e6

    def busy_ms(self) -> dict[str, float]:
        """How long each processor ran subgraphs, in milliseconds."""
        busy: dict[str, float] = {}
        for span in self.spans:
            if span.kind == "subgraph":
                busy[span.processor] = busy.get(span.processor, 0.0) + span.ms
        return busy

    def overlap_ms(self, one: str, other: str) -> float:
        """How long two processors ran subgraphs at the same time, in milliseconds."""
        total = 0
        for a in self.spans:
            for b in self.spans:
                if a.kind == b.kind == "subgraph" and a.processor == one and b.processor == other:
                    total += max(0, min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns))
        return total / 1e6


def timeline(trace: Trace, width: int = 72) -> list[str]:
    """The trace as text: a line a processor, `#` where it runs a subgraph, then the scale.

    Args:
        trace: One inference.
        width: Characters of the time axis.
    """
    total = max(1, trace.end_ns - trace.start_ns)
    bars: dict[str, list[str]] = {}
    for span in trace.spans:
        if span.kind == "subgraph":
            bar = bars.setdefault(span.processor, ["."] * width)
            first = (span.start_ns - trace.start_ns) * width // total
            last = (span.end_ns - trace.start_ns) * width // total
            for i in range(max(0, first), min(width, max(first + 1, last))):
                bar[i] = "#"
    label = max((len(processor) for processor in bars), default=0)
    lines = [f"{processor:<{label}} |{''.join(bar)}|" for processor, bar in bars.items()]
    end = f"{trace.makespan_ms:.2f} ms"
    return [*lines, f"{'':<{label}}  0{end:>{width - 1}}"]


def perfetto(tracks: Mapping[str, Sequence[Trace]]) -> dict[str, Any]:
    """Traces in the Chrome trace event format, one thread a processor.

    Args:
        tracks: Groups of traces that are shown below each other, such as
            ``{"measured": [...]}``; each group starts at time zero.
    """
    events: list[dict[str, Any]] = []
    for pid, (group, traces) in enumerate(tracks.items(), start=1):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": group}})
        zero = min((t.start_ns for t in traces), default=0)
        threads: dict[str, int] = {}
        for number, trace in enumerate(traces):
            for span in trace.spans:
                tid = threads.setdefault(span.processor, len(threads) + 1)
                events.append(
                    {
                        "ph": "X",
                        "pid": pid,
                        "tid": tid,
                        "name": span.name,
                        "cat": span.kind,
                        "ts": (span.start_ns - zero) / 1000,
                        "dur": (span.end_ns - span.start_ns) / 1000,
                        "args": {"queue": span.queue, "inference": number},
                    }
                )
        events += [
            {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": processor}} for processor, tid in threads.items()
        ]
        events += [
            {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}} for tid in threads.values()
        ]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_perfetto(path: Path, tracks: Mapping[str, Sequence[Trace]]) -> None:
    """Write traces as a file that ui.perfetto.dev and chrome://tracing open.

    Raises:
        StretchError: If the file cannot be written; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(msgspec.json.encode(perfetto(tracks)))
        os.replace(temporary, path)
    except OSError as error:
        raise StretchError(f"cannot write the trace {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
