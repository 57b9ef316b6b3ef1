"""Starts and rounds: contenders made anew, warmed up until their times hold, then run in turns in a random order."""

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

#: Rounds of a window of the warm-up, and by how much the medians of two windows may differ.
WINDOW, DRIFT = 5, 0.05

#: Starts at least where they go on until intervals are narrow.
LEAST_STARTS = 3


@dataclass(frozen=True)
class Effort:
    """How long a measurement goes on."""

    rounds: int = 20  # Rounds of each start that count.
    starts: int = 5  # How often all contenders are made anew; with `width`, at most.
    warmup: int = 50  # Rounds before those that count, at most: they end once times hold.
    #: Stop after `LEAST_STARTS` or more starts once each median is known to this share of itself; None for all starts.
    width: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no interval can be made of.

        Raises:
            UsageError: If there are no rounds, too many starts, or the width is no share.
        """
        if self.rounds < 1 or not 1 <= self.starts <= MOST_STARTS or self.warmup < 0:
            raise UsageError(
                f"{self.rounds} rounds of {self.starts} starts are not a measurement", f"1 to {MOST_STARTS} starts are possible"
            )
        if self.width is not None and not 0 < self.width < math.inf:
            raise UsageError(f"a width of {self.width:g} is no share of a time", "give 0.02 for 2 %")


@dataclass
class Measured:
    """What the rounds gave."""

    ns: dict[str, list[list[int]]]  # Times of each contender, by starts, in the order of the rounds.
    warmup: list[int] = field(default_factory=list)  # Rounds of each start that did not count.
    steady: set[str] = field(default_factory=set)  # Contenders whose times held in every start when the rounds began.
    outputs: dict[str, dict[str, Array]] = field(default_factory=dict)  # What each computed in the first start.


def play(makers: Mapping[str, Callable[[], Ready]], effort: Effort, seed: int, step: Callable[[], None] | None = None) -> Measured:
    """Time contenders in turns.

    In every round each runs once, in an order that is drawn anew: what disturbs the machine for a while disturbs all of
    them, and none always runs in the caches that the same other one left.
    """
    rng = np.random.default_rng(seed)
    found = Measured({name: [] for name in makers}, steady=set(makers))
    while not _enough(found, effort):
        with contextlib.ExitStack() as stack:
            ready: dict[str, Ready] = {}
            for name, make in makers.items():
                ready[name] = make()
                stack.callback(ready[name].close)
            _one_start(ready, found, effort, rng, step)
    return found


def _one_start(
    ready: Mapping[str, Ready], found: Measured, effort: Effort, rng: np.random.Generator, step: Callable[[], None] | None
) -> None:
    calls = {name: each.time for name, each in ready.items()}

    def rounds(count: int, times: dict[str, list[int]], after: Callable[[], None] | None = None) -> None:
        for _ in range(count):
            order = rng.permutation(len(calls))
            names = list(calls)
            for name, ns in play_round({names[i]: calls[names[i]] for i in order}, 0).items():
                # a clock that stood still says less than one nanosecond, and a ratio needs more than nothing
                times[name].append(max(1, ns))
            if after is not None:
                after()

    before: dict[str, list[int]] = {name: [] for name in calls}
    done = 0
    while done < effort.warmup and not all(holds(times) for times in before.values()):
        count = min(WINDOW, effort.warmup - done)
        rounds(count, before)
        done += count
    found.steady -= {name for name, times in before.items() if not holds(times)}
    found.warmup.append(done)
    counted: dict[str, list[int]] = {name: [] for name in calls}
    rounds(effort.rounds, counted, step)
    for name, times in counted.items():
        found.ns[name].append(times)
    if not found.outputs:
        found.outputs = {name: each.outputs() for name, each in ready.items()}


def holds(times: Sequence[int]) -> bool:
    """Whether warm-up is over: the last two windows agree, and the last one is not scattered."""
    if len(times) < 2 * WINDOW:
        return False
    low, middle, high = (float(n) for n in np.percentile(times[-WINDOW:], [25, 50, 75]))
    before = float(np.median(times[-2 * WINDOW : -WINDOW]))
    last = Steady(middle, (high - low) / 1.349, WINDOW, 0)
    return not last.unsteady and abs(middle / before - 1) <= DRIFT


def _enough(found: Measured, effort: Effort) -> bool:
    done = len(found.warmup)
    if done >= effort.starts or effort.width is None or done < min(LEAST_STARTS, effort.starts):
        return done >= effort.starts
    return all(known(starts).width <= effort.width for starts in found.ns.values())
