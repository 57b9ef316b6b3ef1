"""Exact search: dynamic programming over segments.

The state between two segments is the processor that holds the tensor, how many
segments have been branched so far, and how many of the next segments are
already covered because stages are merged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from stretch.planning.cost.branch import Costs
from stretch.planning.cost.options import SegmentOptions
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.search.layers import (
    BEAM,
    CHUNK,
    MAX_LABELS,
    TIE,
    Completion,
    Floats,
    Ints,
    Layer,
    Path,
    eliminate,
    options_to,
    shortest_path,
    undominated,
)
from stretch.planning.search.measures import LATENCY, AdditiveCost, Measure, additive, weighed
from stretch.planning.search.space import DesignSpace

# Exact shortest path whose multiply-accumulates lie in a range and whose loss stays within a bound.
#
# Loss adds up along a path as time does. The search is that of `stretch.planning.search.layers`
# with labels that carry both, of which one is given up only for another of the same state and
# multiply-accumulates that is no slower and loses no more. A price on the loss, the one that
# gives the highest lower bound, is what makes it fast: a path within the bound that is faster
# than one already known costs less than that one with the whole bound paid for.

#: Steps of a golden section, for a price of the loss and within it for one of the multiply-accumulates.
STEPS = 18
GOLDEN = (5**0.5 - 1) / 2
#: Factors on the price at which a path within the bound is looked for.
DEARER = (1.0, 4.0, 64.0)


@dataclass(frozen=True)
class _Problem:
    """What is asked for."""

    layers: list[Layer]  # One per segment, each with a loss.
    states: int  # Number of states.
    start: int  # State before the first layer.
    final_ms: Floats  # Time to finish from each state.
    low: int  # Fewest multiply-accumulates.
    high: int  # Most multiply-accumulates.
    most: float  # Most loss.

    def priced(self, price: float) -> list[Layer]:
        """Layers whose time is that of their options and what their loss costs; options are numbered in order."""
        return [
            Layer(layer.source, layer.target, layer.macs, layer.ms + price * _loss(layer), np.arange(len(layer.ms)))
            for layer in self.layers
        ]

    def completion(self, price: float) -> Completion:
        """Lower bounds at a price."""
        return Completion(self.priced(price), self.states, self.final_ms, self.low, self.high)

    def least_to_end(self) -> list[Floats]:
        """The least loss from each state to the end, before each layer and behind the last, multiply-accumulates aside."""
        return _backward(self.layers, np.where(np.isfinite(self.final_ms), 0.0, np.inf), _loss)


@dataclass
class _LossLabels:
    """Partial paths, and which label and option they came from."""

    state: Ints
    macs: Ints
    ms: Floats
    loss: Floats
    parent: Ints
    edge: Ints

    def take(self, keep: Ints) -> "_LossLabels":
        return _LossLabels(self.state[keep], self.macs[keep], self.ms[keep], self.loss[keep], self.parent[keep], self.edge[keep])


def bounded_path(layers: Sequence[Layer], states: int, start: int, final_ms: Floats, low: int, high: int, most: float) -> Path | None:
    """The fastest path whose multiply-accumulates are from `low` to `high` and whose loss is at most `most`."""
    kept = [undominated_with_loss(layer.take(np.isfinite(layer.ms) & np.isfinite(_loss(layer)) & (layer.macs <= high))) for layer in layers]
    problem = _affordable(_Problem(kept, states, start, final_ms, low, high, most))
    if problem is None:
        return None
    free = problem.completion(0.0)
    lower = float(free.of(0, np.array([start]), np.zeros(1, np.int64))[0])
    if not np.isfinite(lower):
        return None
    price, dual = _best_price(problem)
    lower = max(lower, dual)
    best = None
    for factor in DEARER if price else (0.0,):
        at = problem.completion(price * factor) if price else free
        best, complete = _search(problem, problem.layers, (free, at), price * factor, np.inf, BEAM)
        if best is not None or complete:
            break
    if best is None:
        # no path was come upon: the one that loses least says whether there is any
        one = shortest_path(
            [Layer(e.source, e.target, e.macs, _loss(e), np.arange(len(e.ms))) for e in problem.layers],
            states, start, np.where(np.isfinite(final_ms), 0.0, np.inf), low, high,
        )  # fmt: skip
        if one is None or (one.optimal and one.ms > most + TIE):
            return None
        limit = np.inf
    else:
        limit = best[1]
        if limit <= lower + TIE:
            return Path(best[0], best[2], limit, lower, True)
    at = problem.completion(price) if price else free
    useful = _useful(problem, price, limit)
    result, complete = _search(problem, useful, (free, at), price, limit, None)
    best = result if result is not None else best
    if best is None:
        return None
    return Path(best[0], best[2], best[1], best[1] if complete else lower, complete)


def undominated_with_loss(layer: Layer) -> Layer:
    """Of options with equal states and multiply-accumulates, those than which no other is as fast and loses as little."""
    loss = _loss(layer)
    order = np.lexsort((layer.option, loss, layer.ms, layer.macs, layer.target, layer.source))
    keys = np.stack([layer.source[order], layer.target[order], layer.macs[order]])
    return layer.take(order[_first_of_each(np.any(keys[:, 1:] != keys[:, :-1], axis=0), loss[order])])


def _loss(layer: Layer) -> Floats:
    assert layer.loss is not None
    return layer.loss


def _first_of_each(begins: np.ndarray, loss: Floats) -> np.ndarray:
    """Of entries sorted by group and time, those that lose less than every faster one of their group."""
    if not len(loss):
        return np.zeros(0, bool)
    group = np.concatenate([[0], np.cumsum(begins)])
    # each group lies below all before it, so that the running minimum begins anew
    order = np.unique(loss, return_inverse=True)[1].astype(np.int64)
    key = order - group * (int(order.max()) + 1)
    below = np.minimum.accumulate(key)
    keep = np.ones(len(loss), bool)
    keep[1:] = key[1:] < below[:-1]
    return keep


def _backward(layers: Sequence[Layer], final: Floats, cost: Callable[[Layer], Floats]) -> list[Floats]:
    """The least cost from each state to the end, before each layer and behind the last."""
    backward = [final]
    for layer in reversed(layers):
        before = np.full(len(final), np.inf)
        np.minimum.at(before, layer.source, backward[-1][layer.target] + cost(layer))
        backward.append(before)
    return backward[::-1]


def _affordable(problem: _Problem) -> _Problem | None:
    """The problem without options that lose too much in whatever path; None if there is no path within the bound."""
    ahead = problem.least_to_end()
    behind = np.full(problem.states, np.inf)
    behind[problem.start] = 0.0
    layers = []
    for i, layer in enumerate(problem.layers):
        until = behind[layer.source] + _loss(layer)
        kept = until + ahead[i + 1][layer.target] <= problem.most + TIE
        layers.append(layer.take(kept))
        if not kept.any():
            return None
        behind = np.full(problem.states, np.inf)
        np.minimum.at(behind, layers[-1].target, until[kept])
    return replace(problem, layers=layers)


def _best_price(problem: _Problem) -> tuple[float, float]:
    """The price of a loss that gives the highest lower bound, and that bound; multiply-accumulates have a price of their own."""

    def bound(price: float, of_macs: float) -> float:
        refund = of_macs * (problem.low if of_macs >= 0 else problem.high)
        paid = _backward(problem.layers, problem.final_ms, lambda item: item.ms + price * _loss(item) - of_macs * item.macs)
        return float(paid[0][problem.start]) + refund - price * problem.most

    def over_macs(price: float) -> float:
        scale = 4 * max(abs(bound(price, 0.0)) + price * abs(problem.most), 1e-6) / max(problem.high, 1)
        return _highest(lambda of_macs: bound(price, of_macs), -scale, scale)[1]

    free = over_macs(0.0)
    dear = max(abs(free), 1e-6) / max(abs(problem.most), 1e-6)
    at_dear = over_macs(dear)
    for _ in range(8):
        dearer = over_macs(4 * dear)
        if dearer <= at_dear:
            break
        dear, at_dear = 4 * dear, dearer
    price, value = _highest(over_macs, 0.0, 4 * dear)
    return (price, value) if value > free + TIE else (0.0, free)


def _highest(function: Callable[[float], float], left: float, right: float) -> tuple[float, float]:
    """Where a concave function is highest between two numbers, nearly, and how high (golden section)."""
    a, b = right - GOLDEN * (right - left), left + GOLDEN * (right - left)
    at_a, at_b = function(a), function(b)
    best = max((at_a, a), (at_b, b))
    for _ in range(STEPS):
        if at_a < at_b:
            left, a, at_a = a, b, at_b
            b = left + GOLDEN * (right - left)
            at_b = function(b)
            best = max(best, (at_b, b))
        else:
            right, b, at_b = b, a, at_a
            a = right - GOLDEN * (right - left)
            at_a = function(a)
            best = max(best, (at_a, a))
    return best[1], best[0]


def _useful(problem: _Problem, price: float, limit: float) -> list[Layer]:
    """Layers without options that no faster path within the bound can use, at no price and at this one."""
    layers = problem.layers
    for at in dict.fromkeys((0.0, price)):
        some = replace(problem, layers=layers)
        priced = some.priced(at)
        kept = eliminate(
            priced, priced, problem.states, problem.start, problem.final_ms, problem.low, problem.high, limit + at * problem.most
        )
        layers = [layer.take(left.option) for layer, left in zip(layers, kept, strict=True)]
    return layers


def _search(
    problem: _Problem, layers: Sequence[Layer], bounds: tuple[Completion, Completion], price: float, limit: float, beam: int | None
) -> tuple[tuple[tuple[int, ...], float, int] | None, bool]:
    """Best path that is faster than `limit` and within the bound, and whether nothing was left out."""
    free, priced = bounds
    ahead = problem.least_to_end()
    zero = np.zeros(1, np.int64)
    labels = _LossLabels(np.array([problem.start]), zero, np.zeros(1), np.zeros(1), zero, zero)
    history = [labels]
    complete = True
    for i, layer in enumerate(layers):
        parts: list[_LossLabels] = []
        count = 0
        step = max(1, CHUNK // max(1, len(layer.ms)))
        by_bound = np.argsort(labels.ms + price * labels.loss + priced.of(i, labels.state, labels.macs), kind="stable")
        for begin in range(0, len(by_bound), step):
            chunk = by_bound[begin : begin + step]
            rows, edges = np.nonzero(labels.state[chunk][:, None] == layer.source[None, :])
            parents = chunk[rows]
            state, macs = layer.target[edges], labels.macs[parents] + layer.macs[edges]
            ms, loss = labels.ms[parents] + layer.ms[edges], labels.loss[parents] + _loss(layer)[edges]
            keep = (loss + ahead[i + 1][state] <= problem.most + TIE) & (ms + free.of(i + 1, state, macs) < limit - TIE)
            keep &= ms + price * loss + priced.of(i + 1, state, macs) < limit + price * problem.most - TIE
            parts.append(_LossLabels(state[keep], macs[keep], ms[keep], loss[keep], parents[keep], edges[keep]))
            count += int(keep.sum())
            if beam is None and count > MAX_LABELS:
                complete = False
                break
        labels = _merged(parts)
        if beam is not None and len(labels.ms) > beam:
            score = labels.ms + price * labels.loss + priced.of(i + 1, labels.state, labels.macs)
            labels = labels.take(np.argsort(score, kind="stable")[:beam])
            complete = False
        history.append(labels)
        if not len(labels.ms):
            return None, complete
    inside = (labels.macs >= problem.low) & (labels.macs <= problem.high) & (labels.loss <= problem.most + TIE)
    finish = np.where(inside, labels.ms + problem.final_ms[labels.state], np.inf)
    winner = int(np.argmin(finish))
    if not np.isfinite(finish[winner]):
        return None, complete
    return (options_to(layers, history, winner), float(finish[winner]), int(labels.macs[winner])), complete


def _merged(parts: Sequence[_LossLabels]) -> _LossLabels:
    """New labels; of those with equal state and multiply-accumulates only the ones that no other beats in time and loss."""
    labels = _LossLabels(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("state", "macs", "ms", "loss", "parent", "edge"))
    )
    order = np.lexsort((labels.edge, labels.loss, labels.ms, labels.macs, labels.state))
    begins = (labels.state[order][1:] != labels.state[order][:-1]) | (labels.macs[order][1:] != labels.macs[order][:-1])
    return labels.take(order[_first_of_each(begins, labels.loss[order])])


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

    @property
    def n_meet(self) -> int:
        """Meeting points where branches join."""
        return sum(len(options.candidates) > 1 for options, _ in self.picks)

    @property
    def arriving(self) -> list[int]:
        """Channels that arrive at each segment."""
        channels = [self.picks[0][0].segment.in_width]
        for options, index in self.picks:
            channels.append(options.out_width(index))
        return channels[:-1]

    @property
    def params(self) -> int:
        """Learned numbers."""
        return sum(int(options.params[index]) for options, index in self.picks)

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
    toll: AdditiveCost | None = None,
    using: str | None = None,
    within: Within | None = None,
) -> SearchResult | None:
    """The fastest design of `space` between `low` and `high` multiply-accumulates."""
    cost = LATENCY if toll is None else weighed((1.0, LATENCY), (1.0, additive(toll)))
    return search_least(space, low, high, n_meet, cost, within, None if using is None else lambda options: using in options.processors)


def search_least_loss(
    space: DesignSpace, low: int, high: int, n_meet: int, losses: AdditiveCost, budget_ms: float = np.inf
) -> SearchResult | None:
    """The design of `space` that loses least among those that take no longer than a budget."""
    within = Within(LATENCY, budget_ms) if np.isfinite(budget_ms) else None
    search_result = search_least(space, low, high, n_meet, additive(losses), within)
    # a loss may be nothing, so that a fraction of it says nothing
    return None if search_result is None else replace(search_result, gap=0.0 if search_result.optimal else float("nan"))


def search_least(
    space: DesignSpace, low: int, high: int, n_meet: int, cost: Measure, within: Within | None = None, using: Using | None = None
) -> SearchResult | None:
    """The design of `space` that has least of a measure."""
    states = _States(len(space.holders), n_meet + 1, space.longest_span, 1 if using is None else 2)
    layers = [_layer(space, options, states, cost, using, within) for options in space.options]
    final, start = _ends(space, states, n_meet, cost)
    if within is None:
        path = shortest_path(layers, states.count, start, final, low, high)
    else:
        # what finishing takes of the bound is a step of its own
        layers.append(_finishing(space, states, n_meet, final, within.measure))
        path = bounded_path(layers, states.count, start, np.where(np.isfinite(final), 0.0, np.inf), low, high, within.most)
    if path is None:
        return None
    picks = _picks(space, path)
    ms = path.ms if cost is LATENCY else LATENCY.total(space, picks)
    proved = path.optimal and not space.thinned
    gap = path.gap if proved or (path.bound > 0 and not space.thinned) else float("nan")
    return SearchResult(picks, ms, path.macs, proved, gap, _evaluated(space), path.ms)


def _ends(space: DesignSpace, states: "_States", n_meet: int, cost: Measure) -> tuple[Floats, int]:
    """What finishing costs from every state, and the state at the start."""
    final = np.full(states.count, np.inf)
    for i, holder in enumerate(space.holders):
        final[states.number(i, n_meet, 0, states.uses - 1)] = cost.leaving(space, holder)
    return final, states.number(space.holders.index(space.costs.host), 0, 0)


def _finishing(space: DesignSpace, states: "_States", n_meet: int, final: Floats, bounded: Measure) -> Layer:
    """The step from every state in which a design may end to its end."""
    ends = np.flatnonzero(np.isfinite(final))
    nothing = np.zeros(len(ends), np.int64)
    loss = _ends(space, states, n_meet, bounded)[0][ends]
    return Layer(ends, ends, nothing, final[ends], nothing + _COVERED, loss)


def _picks(space: DesignSpace, path: Path) -> tuple[tuple[SegmentOptions, int], ...]:
    return tuple(_pick(options, number) for options, number in zip(space.options, path.options, strict=False) if number != _COVERED)


def _evaluated(space: DesignSpace) -> int:
    return sum(len(o.macs) for options in space.options for o in options)


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
    best = undominated if within is None else undominated_with_loss
    offset = 0
    for group in options:
        branched, wanted = len(group.candidates) > 1, using is not None and using(group)
        end = space.holders.index(group.holder(space.costs.host))
        costs = np.broadcast_to(cost.of(group), group.ms.shape)
        losses = None if within is None else np.broadcast_to(within.measure.of(group), group.ms.shape)
        for holder in range(len(space.holders)):
            # an option that takes endless time from a holder is none, whatever designs are chosen by
            index = np.flatnonzero(group.allowed[holder] & np.isfinite(group.ms[holder]))
            zeros = np.zeros(len(index), np.int64)
            loss = None if losses is None else losses[holder][index]
            piece = best(Layer(zeros, zeros, group.macs[index], costs[holder][index], index + offset, loss))
            zeros = np.zeros(len(piece.ms), np.int64)
            for level, used in product(range(states.levels), range(states.uses)):
                after = states.number(end, min(level + branched, states.levels - 1), group.span - 1, max(used, wanted))
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
    if best is None:
        return None
    return SearchResult(best.picks, best.ms, best.macs, optimal=False, gap=float("nan"), evaluated=evaluated)


def _group(space: DesignSpace, at: int, processors: tuple[str, ...]) -> int:
    return next(i for i, o in enumerate(space.options[at]) if o.processors == processors)


def _with_costs_of(space: DesignSpace, search_result: SearchResult) -> SearchResult | None:
    """The same picks at the costs of a space built for their own widths; None if a rule is broken there."""
    holder, ms, macs = space.holders.index(space.costs.host), 0.0, 0
    picks = []
    for i, (options, index) in enumerate(search_result.picks):
        current = space.options[i][_group(space, i, options.processors)]
        if not current.allowed[holder, index]:
            return None
        ms += float(current.ms[holder, index])
        macs += int(current.macs[index])
        holder = space.holders.index(space.costs.host if len(current.candidates) > 1 else current.processors[0])
        picks.append((current, index))
    return SearchResult(tuple(picks), ms + space.leaving_ms(space.holders[holder]), macs, False, float("nan"), 0)
