"""Starts and rounds: contenders are reloaded, warmed up until their times are stable, then run interleaved in random order."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from predictors.errors import UsageError
from scheduler.delegates.base import Array
from scheduler.measure.bench.interval import MOST_STARTS, known
from scheduler.measure.bench.runtimes import Ready
from scheduler.measure.steady import Steady
from scheduler.measure.turns import play_round

#: Rounds of a warm-up window, and the largest relative difference between the medians of two windows.
WINDOW, DRIFT = 5, 0.05

#: Fewest starts if `Effort.width` ends the measurement.
LEAST_STARTS = 3


@dataclass(frozen=True)
class Effort:
    """Length of a measurement."""

    rounds: int = 20  # Measured rounds per start.
    starts: int = 5  # Number of starts; the maximum if `width` is set.
    warmup: int = 50  # Largest number of warm-up rounds; fewer if times become stable.
    #: Relative interval width of all medians that ends the measurement; None for all starts.
    width: float | None = None

    def __post_init__(self) -> None:
        """Reject parameters that give no interval."""
        if self.rounds < 1 or not 1 <= self.starts <= MOST_STARTS or self.warmup < 0:
            raise UsageError(
                f"{self.rounds} rounds of {self.starts} starts are not a measurement", f"1 to {MOST_STARTS} starts are possible"
            )
        if self.width is not None and not 0 < self.width < math.inf:
            raise UsageError(f"a width of {self.width:g} is no share of a time", "give 0.02 for 2 %")


@dataclass
class Measured:
    """Raw results."""

    ns: dict[str, list[list[int]]]  # Times of each contender by start and round.
    warmup: list[int] = field(default_factory=list)  # Number of warm-up rounds of each start.
    steady: set[str] = field(default_factory=set)  # Contenders whose times were stable after the warm-up of every start.
    outputs: dict[str, dict[str, Array]] = field(default_factory=dict)  # Outputs of each contender in the first start.


def play(makers: Mapping[str, Callable[[], Ready]], effort: Effort, seed: int, step: Callable[[], None] | None = None) -> Measured:
    """Time contenders in interleaved rounds.

    A round runs all contenders once in random order, so that disturbances and cache contents affect all of them alike.
    """
    rng = np.random.default_rng(seed)
    measured = Measured({name: [] for name in makers}, steady=set(makers))
    while not _enough(measured, effort):
        with contextlib.ExitStack() as stack:
            ready: dict[str, Ready] = {}
            for name, make in makers.items():
                ready[name] = make()
                stack.callback(ready[name].close)
            _one_start(ready, measured, effort, rng, step)
    return measured


def _one_start(
    ready: Mapping[str, Ready], measured: Measured, effort: Effort, rng: np.random.Generator, step: Callable[[], None] | None
) -> None:
    calls = {name: contender.time for name, contender in ready.items()}

    def rounds(count: int, times: dict[str, list[int]], after: Callable[[], None] | None = None) -> None:
        for _ in range(count):
            order = rng.permutation(len(calls))
            names = list(calls)
            for name, ns in play_round({names[i]: calls[names[i]] for i in order}, 0).items():
                # a coarse clock may return 0, which has no ratio
                times[name].append(max(1, ns))
            if after is not None:
                after()

    before: dict[str, list[int]] = {name: [] for name in calls}
    done = 0
    while done < effort.warmup and not all(holds(times) for times in before.values()):
        count = min(WINDOW, effort.warmup - done)
        rounds(count, before)
        done += count
    measured.steady -= {name for name, times in before.items() if not holds(times)}
    measured.warmup.append(done)
    counted: dict[str, list[int]] = {name: [] for name in calls}
    rounds(effort.rounds, counted, step)
    for name, times in counted.items():
        measured.ns[name].append(times)
    if not measured.outputs:
        measured.outputs = {name: contender.outputs() for name, contender in ready.items()}


def holds(times: Sequence[int]) -> bool:
    """Whether times are stable: the last two windows agree, and the last one has little spread."""
    if len(times) < 2 * WINDOW:
        return False
    low, middle, high = (float(n) for n in np.percentile(times[-WINDOW:], [25, 50, 75]))
    before = float(np.median(times[-2 * WINDOW : -WINDOW]))
    last = Steady(middle, (high - low) / 1.349, WINDOW, 0)
    return not last.unsteady and abs(middle / before - 1) <= DRIFT


def _enough(measured: Measured, effort: Effort) -> bool:
    done = len(measured.warmup)
    if done >= effort.starts or effort.width is None or done < min(LEAST_STARTS, effort.starts):
        return done >= effort.starts
    return all(known(starts).width <= effort.width for starts in measured.ns.values())
