"""Exact shortest path through layers of options under a range of total multiply-accumulates, and under a bound on what is lost.

Every segment is a layer; an option leads from a state (which processor holds
the tensor, or how wide it is) to another and costs time and multiply-accumulates.
Time adds up, so the best design is a shortest path whose multiply-accumulates lie
in the range. Three bounds make it exact and fast:

1. a backward table over buckets of multiply-accumulates, rounded down: a lower
   bound on how any path can be completed;
2. a beam guided by that bound: an upper bound, usually the optimum already;
3. a Lagrangian bound on each option: those that no better path can use go.

What is left is searched completely, unless it exceeds `MAX_LABELS`; then the
answer states its gap.

Loss adds up along a path, too. Where it is bounded, a partial path is given up only
for another of the same state and multiply-accumulates that is no slower and loses no
more. A price on the loss, the one that gives the highest lower bound, makes that fast: a
path within the bound that is faster than a known one costs less than that one with the
whole bound paid for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

BUCKETS = 2000
BEAM = 400
MAX_LABELS = 400_000
#: Pairs of a label and an option that are looked at together.
CHUNK = 4_000_000
#: Times that differ by less, in ms, are equal: sums in another order differ so.
TIE = 1e-9
#: Steps of a golden section, for a price of the loss and within it for one of the multiply-accumulates.
STEPS = 18
GOLDEN = (5**0.5 - 1) / 2
#: Factors on the price at which a path within a bound is looked for.
DEARER = (1.0, 4.0, 64.0)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layer:
    """Options of one segment."""

    source: Ints  # State each option starts from.
    target: Ints  # State it leads to.
    macs: Ints  # Multiply-accumulates.
    ms: Floats  # Time.
    option: Ints  # The caller's number for it.
    loss: Floats | None = None  # What is bounded beside multiply-accumulates; None where nothing is.

    def take(self, keep: NDArray[np.bool_] | Ints) -> "Layer":
        """The layer with some of its options."""
        loss = None if self.loss is None else self.loss[keep]
        return Layer(self.source[keep], self.target[keep], self.macs[keep], self.ms[keep], self.option[keep], loss)


@dataclass(frozen=True)
class Path:
    """A path through all layers."""

    options: tuple[int, ...]  # The option taken in each layer.
    macs: int  # Total multiply-accumulates.
    ms: float  # Total time.
    bound: float  # No path in the range is faster than this.
    optimal: bool  # Whether this path is proved to be fastest.

    @property
    def gap(self) -> float:
        """How much faster than this path a path might be, as a fraction."""
        return 0.0 if self.optimal else self.ms / self.bound - 1


@dataclass
class _Labels:
    """Partial paths, and which label and option they came from."""

    state: Ints
    macs: Ints
    ms: Floats
    loss: Floats | None
    parent: Ints
    edge: Ints

    def take(self, keep: Ints) -> "_Labels":
        loss = None if self.loss is None else self.loss[keep]
        return _Labels(self.state[keep], self.macs[keep], self.ms[keep], loss, self.parent[keep], self.edge[keep])


def _begins(*keys: Ints) -> NDArray[np.bool_]:
    """Which of some sorted entries are the first of their group."""
    first = np.ones(len(keys[0]), bool)
    first[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return first


def _kept(begins: NDArray[np.bool_], loss: Floats | None) -> NDArray[np.bool_]:
    """Of entries sorted by group and time, those that lose less than every faster one of their group; the first where nothing is lost."""
    if loss is None or not len(loss):
        return begins
    # each group lies below all before it, so that the running minimum begins anew
    order = np.unique(loss, return_inverse=True)[1].astype(np.int64)
    key = order - (np.cumsum(begins) - 1) * (int(order.max()) + 1)
    keep = np.ones(len(loss), bool)
    keep[1:] = key[1:] < np.minimum.accumulate(key)[:-1]
    return keep


def undominated(layer: Layer) -> Layer:
    """Of options with equal states and multiply-accumulates, those than which none is as fast and loses as little; of equals the first."""
    lost = () if layer.loss is None else (layer.loss,)
    some = layer.take(np.lexsort((layer.option, *lost, layer.ms, layer.macs, layer.target, layer.source)))
    return some.take(_kept(_begins(some.source, some.target, some.macs), some.loss))


def shortest_path(layers: Sequence[Layer], start: int, final_ms: Floats, low: int, high: int, most: float | None = None) -> Path | None:
    """The fastest path whose multiply-accumulates are from `low` to `high`, and whose loss is at most `most` where that is told."""
    finite = [np.isfinite(layer.ms) if most is None else np.isfinite(layer.ms) & np.isfinite(layer.loss) for layer in layers]
    kept = [undominated(layer.take(some & (layer.macs <= high))) for layer, some in zip(layers, finite, strict=True)]
    problem = _affordable(_Problem(kept, start, final_ms, low, high, most))
    if not all(len(layer.ms) for layer in problem.layers):
        return None
    # a table over buckets sees no other options
    coarse = problem.layers if most is not None else [_best_per_bucket(layer, bucket_width(high)) for layer in problem.layers]
    free = Completion(coarse, final_ms, low, high)
    lower = float(free.of(0, np.array([start]), np.zeros(1, np.int64))[0])
    if not np.isfinite(lower):
        return None
    price, dual = (0.0, lower) if most is None else _best_price(problem)
    lower = max(lower, dual)
    for factor in DEARER if price else (0.0,):
        best, complete = problem.search(coarse, free, price * factor, np.inf, BEAM)
        if best is not None or complete:
            break
    if best is None and most is not None:
        # no path was come upon: the one that loses least says whether there is any
        losses = [Layer(e.source, e.target, e.macs, e.loss, np.arange(len(e.ms))) for e in problem.layers]
        one = shortest_path(losses, start, np.where(np.isfinite(final_ms), 0.0, np.inf), low, high)
        if one is None or (one.optimal and one.ms > most + TIE):
            return None
    limit = np.inf if best is None else best[1]
    if best is not None and limit <= lower + TIE:
        return Path(best[0], best[2], limit, lower, True)
    result, complete = problem.search(_useful(problem, coarse, price, limit), free, price, limit, None)
    best = result if result is not None else best
    return None if best is None else Path(best[0], best[2], best[1], best[1] if complete else lower, complete)


class Completion:
    """Lower bound on the time from a state and a number of multiply-accumulates to the end."""

    def __init__(self, layers: Sequence[Layer], final_ms: Floats, low: int, high: int) -> None:
        self.width = bucket_width(high)
        self.low, self.high = low, high
        size = high // self.width + 1
        table = np.full((len(final_ms), size), np.inf)
        table[:, 0] = final_ms
        tables = [table]
        for layer in reversed(layers):
            table = np.full((len(final_ms), size), np.inf)
            reduced = _best_per_bucket(layer, self.width)
            for s, t, m, ms in zip(
                reduced.source.tolist(), reduced.target.tolist(), (reduced.macs // self.width).tolist(), reduced.ms.tolist(), strict=True
            ):
                np.minimum(table[s, m:], tables[-1][t, : size - m] + ms, out=table[s, m:])
            tables.append(table)
        tables.reverse()
        # Sums of rounded-down numbers lie up to one bucket a layer below the rounded sum.
        self._windows = []
        for i, table in enumerate(tables):
            self._windows.append(_window_min(table, (high - low) // self.width + len(layers) - i + 2))
        self._left = [len(layers) - i for i in range(len(tables))]

    def of(self, layer: int, state: Ints, macs: Ints) -> Floats:
        """Bounds before `layer` for labels."""
        first = (self.low - macs) // self.width - self._left[layer]
        window = self._windows[layer]
        bound = window[state, np.clip(first, 0, window.shape[1] - 1)]
        return np.where(macs > self.high, np.inf, bound)


def bucket_width(high: int) -> int:
    """Multiply-accumulates of a bucket."""
    return max(1, high // BUCKETS)


def _window_min(table: Floats, length: int) -> Floats:
    """Minimum of `length` entries from each entry on."""
    full, live = np.full(table.shape, np.inf), np.isfinite(table).any(axis=1)
    padded = np.concatenate([table[live], np.full((live.sum(), length), np.inf)], axis=1)
    result, done = padded, 1
    while done * 2 <= length:
        result = np.minimum(result[:, : result.shape[1] - done], result[:, done:])
        done *= 2
    if done < length:
        shift = length - done
        result = np.minimum(result[:, : result.shape[1] - shift], result[:, shift:])
    full[live] = result[:, : table.shape[1]]
    return full


def _best_per_bucket(layer: Layer, width: int) -> Layer:
    """The fastest option of each bucket and pair of states."""
    some = layer.take(np.lexsort((layer.ms, layer.macs // width, layer.target, layer.source)))
    return some.take(_begins(some.source, some.target, some.macs // width))


@dataclass(frozen=True)
class _Budget:
    """A bound on what a path loses, at a price."""

    most: float  # Most loss.
    price: float  # Of the loss, ms.
    bounds: Completion  # Lower bounds on what completing a path costs at that price.
    ahead: list[Floats]  # The least loss from each state to the end, before each layer and behind the last.


def _search(
    layers: Sequence[Layer], bounds: Completion, start: int, final_ms: Floats, limit: float, beam: int | None, budget: _Budget | None
) -> tuple[tuple[tuple[int, ...], float, int] | None, bool]:
    """Best path that is faster than `limit` and within the budget, and whether nothing was left out."""

    def score(i: int, labels: _Labels) -> Floats:
        if budget is None:
            return labels.ms + bounds.of(i, labels.state, labels.macs)
        return labels.ms + budget.price * labels.loss + budget.bounds.of(i, labels.state, labels.macs)

    zero = np.zeros(1, np.int64)
    labels = _Labels(np.array([start]), zero, np.zeros(1), None if budget is None else np.zeros(1), zero, zero)
    history = [labels]
    complete = True
    for i, layer in enumerate(layers):
        parts: list[tuple[Ints, Ints]] = []
        count = 0
        step = max(1, CHUNK // max(1, len(layer.ms)))
        by_bound = np.argsort(score(i, labels), kind="stable")
        for begin in range(0, len(by_bound), step):
            chunk = by_bound[begin : begin + step]
            rows, edges = np.nonzero(labels.state[chunk][:, None] == layer.source[None, :])
            parents = chunk[rows]
            state, macs, ms = layer.target[edges], labels.macs[parents] + layer.macs[edges], labels.ms[parents] + layer.ms[edges]
            keep = ms + bounds.of(i + 1, state, macs) < limit - TIE
            if budget is not None:
                loss = labels.loss[parents] + layer.loss[edges]
                keep &= loss + budget.ahead[i + 1][state] <= budget.most + TIE
                keep &= ms + budget.price * loss + budget.bounds.of(i + 1, state, macs) < limit + budget.price * budget.most - TIE
            parts.append((parents[keep], edges[keep]))
            count += int(keep.sum())
            if beam is None and count > MAX_LABELS:
                complete = False
                break
        labels = _extended(labels, layer, *(np.concatenate(column) for column in zip(*parts, strict=True)))
        if beam is not None and len(labels.ms) > beam:
            labels = labels.take(np.argsort(score(i + 1, labels), kind="stable")[:beam])
            complete = False
        history.append(labels)
        if not len(labels.ms):
            return None, complete
    inside = (labels.macs >= bounds.low) & (labels.macs <= bounds.high)
    if budget is not None:
        inside &= labels.loss <= budget.most + TIE
    finish = np.where(inside, labels.ms + final_ms[labels.state], np.inf)
    winner = int(np.argmin(finish))
    if not np.isfinite(finish[winner]):
        return None, complete
    options, at = [], winner
    for layer, some in zip(reversed(layers), reversed(history), strict=False):
        options.append(int(layer.option[some.edge[at]]))
        at = int(some.parent[at])
    return (tuple(reversed(options)), float(finish[winner]), int(labels.macs[winner])), complete


def _extended(labels: _Labels, layer: Layer, parents: Ints, edges: Ints) -> _Labels:
    """New labels; of those with equal state and multiply-accumulates only the ones that no other beats."""
    loss = None if labels.loss is None else labels.loss[parents] + layer.loss[edges]
    new = _Labels(layer.target[edges], labels.macs[parents] + layer.macs[edges], labels.ms[parents] + layer.ms[edges], loss, parents, edges)
    order = np.lexsort((edges, *(() if loss is None else (loss,)), new.ms, new.macs, new.state))
    return new.take(order[_kept(_begins(new.state[order], new.macs[order]), None if loss is None else loss[order])])


def backward(layers: Sequence[Layer], final: Floats, cost: Callable[[Layer], Floats]) -> list[Floats]:
    """The least cost from each state to the end, before each layer and behind the last."""
    distances = [final]
    for layer in reversed(layers):
        before = np.full(len(final), np.inf)
        np.minimum.at(before, layer.source, distances[-1][layer.target] + cost(layer))
        distances.append(before)
    return distances[::-1]


def eliminate(
    layers: Sequence[Layer], reduced: Sequence[Layer], start: int, final_ms: Floats, low: int, high: int, limit: float
) -> list[Layer]:
    """Layers without the options that no path faster than `limit` can use (Lagrangian bound, at a price that is good for the `reduced` layers)."""
    if not np.isfinite(limit):
        return list(layers)

    def to_ends(some: Sequence[Layer], price: float) -> list[Floats]:
        return backward(some, final_ms, lambda layer: layer.ms - price * layer.macs)

    def refund(price: float) -> float:
        return price * (low if price >= 0 else high)

    def bound(price: float) -> float:
        return float(to_ends(reduced, price)[0][start]) + refund(price)

    scale = limit / max(low, 1)
    price, _ = highest(bound, -4 * scale, 4 * scale, 2 * STEPS)
    to_end = to_ends(layers, price)
    reached = np.full(len(final_ms), np.inf)
    reached[start] = refund(price)
    kept = []
    for i, layer in enumerate(layers):
        until = reached[layer.source] + layer.ms - price * layer.macs
        kept.append(layer.take(until + to_end[i + 1][layer.target] < limit))
        reached = np.full(len(final_ms), np.inf)
        np.minimum.at(reached, layer.target, until)
    return kept


@dataclass(frozen=True)
class _Problem:
    """A shortest path, with a bound on its loss where there is one."""

    layers: list[Layer]  # One per segment, each with a loss where that is bounded.
    start: int  # State before the first layer.
    final_ms: Floats  # Time to finish from each state.
    low: int  # Fewest multiply-accumulates.
    high: int  # Most multiply-accumulates.
    most: float | None  # Most loss.

    def priced(self, price: float) -> list[Layer]:
        """Layers whose time is that of their options and what their loss costs; options are numbered in order."""
        return [replace(layer, ms=layer.ms + price * layer.loss, option=np.arange(len(layer.ms)), loss=None) for layer in self.layers]

    def least_to_end(self) -> list[Floats]:
        """The least loss from each state to the end, before each layer and behind the last, multiply-accumulates aside."""
        return backward(self.layers, np.where(np.isfinite(self.final_ms), 0.0, np.inf), lambda layer: layer.loss)

    def search(self, layers: Sequence[Layer], free: Completion, price: float, limit: float, beam: int | None):
        budget = None
        if self.most is not None:
            at = Completion(self.priced(price), self.final_ms, self.low, self.high) if price else free
            budget = _Budget(self.most, price, at, self.least_to_end())
        return _search(layers, free, self.start, self.final_ms, limit, beam, budget)


def _affordable(problem: _Problem) -> _Problem:
    """The problem without options that lose too much in whatever path."""
    if problem.most is None:
        return problem
    ahead = problem.least_to_end()
    behind = np.full(len(problem.final_ms), np.inf)
    behind[problem.start] = 0.0
    layers = []
    for i, layer in enumerate(problem.layers):
        until = behind[layer.source] + layer.loss
        kept = until + ahead[i + 1][layer.target] <= problem.most + TIE
        layers.append(layer.take(kept))
        behind = np.full(len(problem.final_ms), np.inf)
        np.minimum.at(behind, layers[-1].target, until[kept])
    return replace(problem, layers=layers)


def _best_price(problem: _Problem) -> tuple[float, float]:
    """The price of a loss that gives the highest lower bound, and that bound; multiply-accumulates have a price of their own."""

    def bound(price: float, of_macs: float) -> float:
        refund = of_macs * (problem.low if of_macs >= 0 else problem.high)
        paid = backward(problem.layers, problem.final_ms, lambda item: item.ms + price * item.loss - of_macs * item.macs)
        return float(paid[0][problem.start]) + refund - price * problem.most

    def over_macs(price: float) -> float:
        scale = 4 * max(abs(bound(price, 0.0)) + price * abs(problem.most), 1e-6) / max(problem.high, 1)
        return highest(lambda of_macs: bound(price, of_macs), -scale, scale)[1]

    free = over_macs(0.0)
    dear = max(abs(free), 1e-6) / max(abs(problem.most), 1e-6)
    at_dear = over_macs(dear)
    for _ in range(8):
        dearer = over_macs(4 * dear)
        if dearer <= at_dear:
            break
        dear, at_dear = 4 * dear, dearer
    price, value = highest(over_macs, 0.0, 4 * dear)
    return (price, value) if value > free + TIE else (0.0, free)


def highest(function: Callable[[float], float], left: float, right: float, steps: int = STEPS) -> tuple[float, float]:
    """Where a concave function is highest between two numbers, nearly, and how high (golden section)."""
    a, b = right - GOLDEN * (right - left), left + GOLDEN * (right - left)
    at_a, at_b = function(a), function(b)
    for _ in range(steps):
        if at_a < at_b:
            left, a, at_a = a, b, at_b
            b = left + GOLDEN * (right - left)
            at_b = function(b)
        else:
            right, b, at_b = b, a, at_a
            a = right - GOLDEN * (right - left)
            at_a = function(a)
    return (a, at_a) if at_a > at_b else (b, at_b)


def _useful(problem: _Problem, coarse: Sequence[Layer], price: float, limit: float) -> list[Layer]:
    """Layers without options that no faster path within the bound can use, at no price and at this one."""
    rest = problem.start, problem.final_ms, problem.low, problem.high
    if problem.most is None:
        return eliminate(problem.layers, coarse, *rest, limit)
    for at in dict.fromkeys((0.0, price)):
        priced = problem.priced(at)
        kept = eliminate(priced, priced, *rest, limit + at * problem.most)
        problem = replace(problem, layers=[layer.take(left.option) for layer, left in zip(problem.layers, kept, strict=True)])
    return problem.layers
