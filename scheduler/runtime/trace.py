"""What ran where and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Span:
    """A stretch of time in which one thing ran."""

    name: str  # Subgraph or join, or what is converted or moved for it.
    processor: str  # Processor of the device it was planned for.
    queue: str  # Where it ran on this machine.
    #: What it was; where a run is simulated, a load is what others take of a processor, and a plan the one that is run.
    kind: Literal["subgraph", "join", "conversion", "load", "plan"]
    start_ns: int  # When it started, on the clock of `time.perf_counter_ns`.
    end_ns: int  # When it ended.

    @property
    def ms(self) -> float:
        """Its length in milliseconds."""
        return (self.end_ns - self.start_ns) / 1e6


@dataclass(frozen=True)
class QueueDepth:
    """How many subgraphs were ready and waited, by queue."""

    at_ns: int  # When, on the clock of `time.perf_counter_ns`.
    waiting: Mapping[str, int]  # Number by queue.


@dataclass(frozen=True)
class Trace:
    """One inference."""

    spans: tuple[Span, ...]  # In the order in which they ended.
    start_ns: int  # When the input was ready.
    end_ns: int  # When the output was ready.
    load: float | None = None  # Load average of the machine in the last minute; None if it was not asked.
    replaced: Mapping[str, str] = field(default_factory=dict)  # Subgraphs that ran elsewhere than their processor is placed, and why.

    @property
    def makespan_ms(self) -> float:
        """From input ready to output ready, in milliseconds."""
        return (self.end_ns - self.start_ns) / 1e6

    def busy_ms(self, kinds: Sequence[str] = ("subgraph",)) -> dict[str, float]:
        """How long each processor ran subgraphs, or spans of some kinds, in milliseconds."""
        busy: dict[str, float] = {}
        for span in self.spans:
            if span.kind in kinds:
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


def typical(traces: Sequence[Trace]) -> Trace:
    """The inference in the middle of some, by their makespan; of an even number the shorter of the two in the middle."""
    return sorted(traces, key=lambda trace: trace.makespan_ms)[(len(traces) - 1) // 2]


def timeline(trace: Trace, width: int = 72) -> list[str]:
    """The trace as text: a line a processor, `#` where it runs a subgraph, then the scale."""
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
