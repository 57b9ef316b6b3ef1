"""Exact search: dynamic programming over segments.

The state between two segments is the processor that holds the tensor, how many
segments have been branched so far, and how many of the next segments are
already covered because stages are merged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.errors import UsageError
from stretch.planning.cost.branch import Costs, SegmentOptions
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.search.layers import Floats, Layer, shortest_path, undominated
from stretch.planning.search.space import DesignSpace

#: What each option of a segment adds, whoever holds what arrives: (n,).
AdditiveCost = Callable[[SegmentOptions], Floats]

#: Options and the index of the chosen one, segment by segment.
Picks = Sequence[tuple[SegmentOptions, int]]


def held(space: DesignSpace, picks: Picks) -> tuple[list[tuple[SegmentOptions, int, str]], str]:
    """Each choice with the processor that holds what arrives at it, and the one that holds the network's output."""
    holder, rows = space.costs.host, []
    for options, index in picks:
        rows.append((options, index, holder))
        holder = options.holder(space.costs.host)
    return rows, holder


def working(space: DesignSpace, picks: Picks) -> tuple[str, ...]:
    """Processors that a design gives work to."""
    names = {name for options, _ in picks for name in options.working(space.costs.host)}
    return tuple(name for name in space.processors if name in names)


@dataclass(frozen=True)
class Measure:
    """What adds up over the segments of a design: time, multiply-accumulates, what is lost, energy, and mixtures of them."""

    #: What each option of a segment adds, by holder of what arrives: an array that broadcasts to `SegmentOptions.ms`.
    of: Callable[[SegmentOptions], Floats]
    #: What it adds that a processor holds the network's output.
    leaving: Callable[[DesignSpace, str], float] = lambda space, holder: 0.0

    def total(self, space: DesignSpace, picks: Picks) -> float:
        """Of a whole design."""
        rows, last = held(space, picks)
        total = sum(float(np.broadcast_to(self.of(o), o.ms.shape)[space.holders.index(holder), index]) for o, index, holder in rows)
        return total + self.leaving(space, last)


#: The makespan, ms.
LATENCY = Measure(lambda options: options.ms, lambda space, holder: space.leaving_ms(holder))
#: Multiply-accumulates.
MACS = Measure(lambda options: options.macs.astype(float))


def weighed(*parts: tuple[float, Measure]) -> Measure:
    """A sum of measures with weights."""
    some = [(weight, measure) for weight, measure in parts if weight]

    def of(options: SegmentOptions) -> Floats:
        return np.asarray(sum(weight * measure.of(options) for weight, measure in some), dtype=np.float64)

    return Measure(of, lambda space, holder: sum(weight * measure.leaving(space, holder) for weight, measure in some))


@dataclass(frozen=True)
class ProcessorPowers:
    """Power of a device's processors, W, which are mJ a ms; 0 where the profile does not state what one takes without work."""

    computing: Mapping[str, float]  # Of each that may have work while it computes.
    waiting: Mapping[str, float]  # Of each while it has work in a run and waits.
    idle: Mapping[str, float]  # Of every processor of the device, by family, while it has none.
    families: Mapping[str, str]  # Of each that may have work.

    @classmethod
    def of(cls, device: DeviceProfile, processors: Sequence[str]) -> "ProcessorPowers":
        """As the model of energy tells it."""
        model = EnergyModel(device)
        computing, waiting = {}, {}
        for name in processors:
            one = model.mj(name, 1.0)
            if one is None:
                raise UsageError(
                    f"the profile of {device.id} states no power of the {name}, so nothing can be planned for energy",
                    "name other processors, or add `power_w` to the profile",
                )
            computing[name] = one
            waiting[name] = sum(part.mj or 0.0 for part in model.parts({name: 0.0}, 1.0) if part.state == "waiting")
        idle = {part.processor: part.mj or 0.0 for part in model.parts({}, 1.0)}
        return cls(computing, waiting, idle, {name: device.processor(name).family for name in processors})

    def groups(self, processors: Sequence[str]) -> list[tuple[str, ...]]:
        """Sets of processors of which each has to be searched by itself.

        Where a processor takes other power while it waits than while it idles, what it costs is known where it is said which have work.
        """
        if all(self.waiting[name] == self.idle[self.families[name]] for name in processors):
            return [tuple(processors)]
        return [some for count in range(len(processors), 0, -1) for some in combinations(processors, count)]

    def energy(self, processors: Sequence[str]) -> Measure:
        """Energy of designs all of whose processors are these, mJ, as of `EnergyModel.plan_mj`; no less where one has no work."""
        working = {self.families[name] for name in processors}
        waits = sum(self.waiting[name] for name in processors) + sum(current for name, current in self.idle.items() if name not in working)

        def of(options: SegmentOptions) -> Floats:
            more = sum((self.computing[name] - self.waiting[name]) * ms for name, ms in options.busy().items())
            return np.asarray(waits * options.ms + more, dtype=np.float64)

        return Measure(of, lambda space, holder: waits * space.leaving_ms(holder))


def on_only(space: DesignSpace, processors: Sequence[str]) -> DesignSpace:
    """The designs of a space that give work to none but these processors."""
    if set(processors) >= set(space.processors):
        return space
    return space.having([[o for o in options if o.working(space.costs.host) <= set(processors)] for options in space.options])


#: Whether options are of a kind that is asked for.
Using = Callable[[SegmentOptions], bool]


@dataclass(frozen=True)
class SearchResult:
    """A design found by a search."""

    picks: tuple[tuple[SegmentOptions, int], ...]  # Per segment, the options and the index of the chosen one.
    ms: float  # Predicted makespan.
    macs: int  # Multiply-accumulates.
    optimal: bool  # Whether no design of the space is better in what was searched for.
    gap: float  # How much better one might be, as a fraction.
    evaluated: int  # Ways whose cost was computed.
    value: float | None = None  # What it was chosen by; None where that is its makespan, or was not worked out.

    @classmethod
    def unproved(cls, space: DesignSpace, picks: Picks, evaluated: int, value: float | None = None) -> "SearchResult":
        """A design that some other search came upon."""
        macs = sum(int(options.macs[index]) for options, index in picks)
        return cls(tuple(picks), LATENCY.total(space, picks), macs, False, float("nan"), evaluated, value)

    @property
    def n_meet(self) -> int:
        """Meeting points where branches join."""
        return sum(options.branched for options, _ in self.picks)

    @property
    def arriving(self) -> list[int]:
        """Channels that arrive at each segment."""
        return [self.picks[0][0].segment.in_width, *(options.out_width(index) for options, index in self.picks)][:-1]

    @property
    def params(self) -> int:
        """Learned numbers."""
        return sum(int(options.params[index]) for options, index in self.picks)

    @property
    def peak_bytes(self) -> int:
        """Activation bytes alive at one time."""
        return max(int(options.peak_bytes[index]) for options, index in self.picks)

    def segments(self, costs: Costs) -> tuple[SegmentDesign, ...]:
        """The designs of the segments."""
        return tuple(design for options, index in self.picks for design in options.designs(index, costs))


@dataclass(frozen=True)
class Within:
    """A bound on designs in what they are not chosen by."""

    measure: Measure  # What is bounded.
    most: float  # Of a whole design.


def search_exact(
    space: DesignSpace,
    low: int,
    high: int,
    n_meet: int,
    cost: Measure = LATENCY,
    within: Within | None = None,
    using: Using | None = None,
) -> SearchResult | None:
    """The design of `space` between `low` and `high` multiply-accumulates that has least of a measure, and an option that is `using`."""
    states = _States(len(space.holders), n_meet + 1, space.longest_span, 1 if using is None else 2)
    layers = [_layer(space, options, states, cost, using, within) for options in space.options]
    final, start = _ends(space, states, n_meet, cost)
    if within is not None:
        # what finishing takes of the bound is a step of its own
        ends = np.flatnonzero(np.isfinite(final))
        nothing = np.zeros(len(ends), np.int64)
        loss = _ends(space, states, n_meet, within.measure)[0][ends]
        layers.append(Layer(ends, ends, nothing, final[ends], nothing + _COVERED, loss))
        final = np.where(np.isfinite(final), 0.0, np.inf)
    path = shortest_path(layers, start, final, low, high, None if within is None else within.most)
    if path is None:
        return None
    picks = tuple(_pick(options, number) for options, number in zip(space.options, path.options, strict=False) if number != _COVERED)
    ms = path.ms if cost is LATENCY else LATENCY.total(space, picks)
    proved = path.optimal and not space.thinned
    gap = path.gap if proved or (path.bound > 0 and not space.thinned) else float("nan")
    return SearchResult(picks, ms, path.macs, proved, gap, sum(len(o.macs) for options in space.options for o in options), path.ms)


def _ends(space: DesignSpace, states: "_States", n_meet: int, cost: Measure) -> tuple[Floats, int]:
    """What finishing costs from every state, and the state at the start."""
    final = np.full(states.count, np.inf)
    for i, holder in enumerate(space.holders):
        final[states.number(i, n_meet, 0, states.uses - 1)] = cost.leaving(space, holder)
    return final, states.number(space.holders.index(space.costs.host), 0, 0)


#: In place of an option's number: the segment is covered by one before it.
_COVERED = -1


@dataclass(frozen=True)
class _States:
    """Numbers of states: holder, branched segments so far, segments ahead that are covered, whether a processor was used."""

    holders: int
    levels: int
    longest: int
    uses: int = 1

    @property
    def count(self) -> int:
        return self.holders * self.levels * self.longest * self.uses

    def number(self, holder: int, level: int, covered: int, used: int = 0) -> int:
        return ((used * self.longest + covered) * self.holders + holder) * self.levels + level


def _layer(
    space: DesignSpace, options: list[SegmentOptions], states: _States, cost: Measure, using: Using | None, within: Within | None = None
) -> Layer:
    parts = []
    offset = 0
    for group in options:
        wanted = using is not None and using(group)
        end = space.holders.index(group.holder(space.costs.host))
        costs = np.broadcast_to(cost.of(group), group.ms.shape)
        losses = None if within is None else np.broadcast_to(within.measure.of(group), group.ms.shape)
        for holder in range(len(space.holders)):
            # an option that takes endless time from a holder is none, whatever designs are chosen by
            index = np.flatnonzero(group.allowed[holder] & np.isfinite(group.ms[holder]))
            zeros = np.zeros(len(index), np.int64)
            loss = None if losses is None else losses[holder][index]
            piece = undominated(Layer(zeros, zeros, group.macs[index], costs[holder][index], index + offset, loss))
            zeros = np.zeros(len(piece.ms), np.int64)
            for level, used in product(range(states.levels), range(states.uses)):
                after = states.number(end, min(level + group.branched, states.levels - 1), group.span - 1, max(used, wanted))
                before = zeros + states.number(holder, level, 0, used)
                parts.append(Layer(before, zeros + after, piece.macs, piece.ms, piece.option, piece.loss))
        offset += len(group.macs)
    parts.append(_covered(states, bounded=within is not None))
    names = ("source", "target", "macs", "ms", "option", *(("loss",) if within is not None else ()))
    return Layer(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _covered(states: _States, *, bounded: bool) -> Layer:
    """Ways past a segment that a merged one before it covers: they cost nothing."""
    options = [
        (states.number(holder, level, covered, used), states.number(holder, level, covered - 1, used))
        for used in range(states.uses)
        for covered in range(1, states.longest)
        for holder in range(states.holders)
        for level in range(states.levels)
    ]
    source, target = np.array(options, np.int64).reshape(-1, 2).T
    nothing = np.zeros(len(options), np.int64)
    zero = nothing.astype(float)
    return Layer(source, target, nothing, zero, nothing + _COVERED, zero if bounded else None)


def _pick(options: list[SegmentOptions], number: int) -> tuple[SegmentOptions, int]:
    for group in options:
        if number < len(group.macs):
            return group, number
        number -= len(group.macs)
    raise IndexError(number)


# Search with `concat` joins, whose widths change what the next segment reads.
#
# Segments are coupled by the backbone's width. The search fixes the widths that
# arrive, finds the best design for them exactly, takes over the widths that this
# design has, and repeats; designs count only with the costs of their own widths.
# The result meets every rule; it is not proved optimal.

#: Rounds in which a design must be found, and after which one that was found is taken.
ROUNDS, ENOUGH = 12, 4


def search_concat(build: Callable[[Sequence[int] | None], DesignSpace], low: int, high: int, n_meet: int) -> SearchResult | None:
    """The fastest design that the rounds come upon."""
    space = build(None)
    best: SearchResult | None = None
    shift = 0
    evaluated = 0
    seen: list[tuple[int, ...]] = []
    for turn in range(ROUNDS):
        search_result = search_exact(space, low - shift, high - shift, n_meet)
        if search_result is None:
            break
        evaluated += search_result.evaluated
        arriving = tuple(search_result.arriving)
        space = build(arriving)
        real = _with_costs_of(space, search_result)
        if real is not None and low <= real.macs <= high and (best is None or real.ms < best.ms):
            best = real
        settled = bool(seen) and arriving == seen[-1]
        if best is not None and (settled or turn + 1 >= ENOUGH):
            break
        # Where widths swing to and fro, the next round aims off by half of what this one was wrong.
        wrong = (
            sum(int(space.options[i][_group(space, i, o.processors)].macs[k]) for i, (o, k) in enumerate(search_result.picks))
            - search_result.macs
        )
        shift = wrong // 2 if arriving in seen else 0
        seen.append(arriving)
    return None if best is None else replace(best, evaluated=evaluated)


def _group(space: DesignSpace, at: int, processors: tuple[str, ...]) -> int:
    return next(i for i, o in enumerate(space.options[at]) if o.processors == processors)


def _with_costs_of(space: DesignSpace, search_result: SearchResult) -> SearchResult | None:
    """The same picks at the costs of a space built for their own widths; None if a rule is broken there."""
    picks = [(space.options[i][_group(space, i, o.processors)], index) for i, (o, index) in enumerate(search_result.picks)]
    if not all(options.allowed[space.holders.index(holder), index] for options, index, holder in held(space, picks)[0]):
        return None
    return SearchResult.unproved(space, picks, 0)
