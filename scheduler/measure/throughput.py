"""How many inferences a second a session makes with several in flight, in turns with one at a time and with one processor alone."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from scheduler.measure.benchmark import used_cores
from scheduler.measure.turns import play_round
from scheduler.runtime.inputs import Values
from scheduler.runtime.sequential import Sequential
from scheduler.runtime.session import Session


@dataclass(frozen=True)
class Rate:
    """Inferences a second of one contestant: the median over rounds, and the lowest tenth."""

    name: str
    per_second: float
    p10_per_second: float


@dataclass(frozen=True)
class Throughput:
    """Measured rates, all on the cores of the session."""

    submitted: Rate  # The bundle with `in_flight` inferences at once.
    one_at_a_time: Rate  # The bundle, each inference after the other.
    one_core: Rate  # The same net as one graph on one core, one after the other.
    all_cores: Rate  # The same net as one graph on all the cores, one after the other.
    in_flight: int  # Inferences at once.
    rounds: int  # Rounds that counted.
    burst: int  # Inferences of a round, each contestant.

    @property
    def over_one_core(self) -> float:
        """Rate with several in flight over that of one core."""
        return self.submitted.per_second / self.one_core.per_second


def throughput(
    session: Session, x: Values, in_flight: int, rounds: int = 10, burst: int = 8, warmup: int = 1, step: Callable[[], None] | None = None
) -> Throughput:
    """Measure a session's rates.

    Each round runs a burst of every contestant, in an order that rotates.

    Args:
        session: The bundle on this machine, made with that `in_flight`.
    """
    cores = used_cores(session)
    whole = session.bundle.file(session.bundle.manifest.whole)
    one, every = Sequential(whole, cores[:1]), Sequential(whole, cores)
    for model in (one, every):
        model.run(x)

    def submitted() -> None:
        for future in [session.submit(x) for _ in range(burst)]:
            future.result()

    def timed(burst_of: Callable[[], object]) -> Callable[[], float]:
        def rate() -> float:
            start = perf_counter_ns()
            burst_of()
            return burst / ((perf_counter_ns() - start) / 1e9)

        return rate

    def repeated(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(burst):
                call()

        return run

    contestants = {
        f"branched, {in_flight} in flight": timed(submitted),
        "branched, one at a time": timed(repeated(lambda: session.run(x))),
        "same net as one graph, 1 thread": timed(repeated(one.time)),
        f"same net as one graph, {len(cores)} threads": timed(repeated(every.time)),
    }
    measured: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(warmup + rounds):
        for name, rate in play_round(contestants, number).items():
            if number >= warmup:
                measured[name].append(rate)
        if step is not None:
            step()
    several, single, one_core, all_cores = (
        Rate(name, float(np.median(values)), float(np.percentile(values, 10))) for name, values in measured.items()
    )
    return Throughput(several, single, one_core, all_cores, in_flight, rounds, burst)
