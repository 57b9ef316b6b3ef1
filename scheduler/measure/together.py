"""Two processors at once: how much longer each takes for the same work while the other computes."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic, perf_counter_ns

import numpy as np

#: Runs of the shorter work in each phase, and phases: alone and together by turns.
RUNS, PHASES = 8, 5


@dataclass(frozen=True)
class Together:
    """How much longer two pieces of work take side by side."""

    first: float  # Time beside the second ÷ time alone.
    second: float  # Time beside the first ÷ time alone.


def time_together(
    first: Callable[[], None], second: Callable[[], None], runs: int = RUNS, phases: int = PHASES, end: float = inf
) -> Together:
    """Run both alone and together by turns; the ratio of the medians, at least 1: company cannot speed a processor up.

    Args:
        end: On the clock of `time.monotonic`: no phase but the first is begun after it.
    """
    works = (first, second)
    alone: tuple[list[float], list[float]] = ([], [])
    beside: tuple[list[float], list[float]] = ([], [])
    for work in works:
        work()
    for phase in range(phases):
        if phase and monotonic() > end:
            break
        for number, work in enumerate(works):
            alone[number].extend(_time(work) for _ in range(runs))
        for number in range(2):
            beside[number].extend(_beside(works[number], works[1 - number], runs))
    ratios = [max(1.0, float(np.median(beside[i]) / np.median(alone[i]))) for i in range(2)]
    return Together(*ratios)


def _time(work: Callable[[], None]) -> float:
    start = perf_counter_ns()
    work()
    return (perf_counter_ns() - start) / 1e6


def _beside(work: Callable[[], None], other: Callable[[], None], runs: int) -> list[float]:
    """Times of one piece of work while the other is done over and over."""
    going, stop = threading.Event(), threading.Event()

    def keep_on() -> None:
        while not stop.is_set():
            other()
            going.set()

    thread = threading.Thread(target=keep_on)
    thread.start()
    try:
        going.wait()
        return [_time(work) for _ in range(runs)]
    finally:
        stop.set()
        thread.join()
