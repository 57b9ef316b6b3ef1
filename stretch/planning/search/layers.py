"""Exact shortest path through layers of options, within a range of total multiply-accumulates and a bound on the loss.

Every segment is a layer. A state is the processor that holds the tensor, or its width. An option leads from a state to a state before a later
segment, and costs time and multiply-accumulates. Time adds up, so the best design is a shortest path with multiply-accumulates in
the range. Two bounds make it exact and fast:

1. a backward table over buckets of multiply-accumulates, rounded down: a lower bound on the time to complete any path;
2. a beam search guided by that bound: an upper bound, usually already the optimum.

The search then covers all remaining paths, unless they exceed `MAX_LABELS`; in this case the answer states its gap.

Loss adds up along a path, too. With a bound, a partial path is only dropped if a path with the same state and
multiply-accumulates is no slower and loses no more. A Lagrangian multiplier on the loss, chosen for the highest lower bound, makes
this fast: a path within the bound that beats a known path costs less, penalty included, than the known time plus the penalty of the bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

BUCKETS = 2000
BEAM = 400
MAX_LABELS = 400_000
#: Pairs of a label and an option per chunk.
CHUNK = 4_000_000
#: Times that differ by less, in ms, count as equal, because the order of a sum changes its rounding.
TIE = 1e-9
#: Steps of the golden-section searches for the multiplier of the loss and, nested in it, of the multiply-accumulates.
STEPS = 18
GOLDEN = (5**0.5 - 1) / 2
#: Factors on the multiplier to try in the beam search for a path within the bound.
MULTIPLIER_FACTORS = (1.0, 4.0, 64.0)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layer:
    """Options that begin at one segment."""

    source: Ints  # State before each option.
    target: Ints  # State after it.
    macs: Ints  # Multiply-accumulates.
    ms: Floats  # Time in ms.
    option: Ints  # The caller's number of the option.
    loss: Floats  # Second bounded quantity, in addition to multiply-accumulates.
    span: Ints  # Number of layers that it covers.

    def take(self, keep: NDArray[np.bool_] | Ints) -> "Layer":
        """Return the layer with only the options that `keep` selects, by mask or by index."""
        return Layer(*(column[keep] for column in vars(self).values()))


@dataclass(frozen=True)
class Path:
    """A path through all layers."""

    options: tuple[int, ...]  # Numbers of its options, in order.
    macs: int  # Total multiply-accumulates.
    ms: float  # Total time in ms.
    bound: float  # Lower bound on the time of every path in the range, ms.
    optimal: bool  # Whether this path is proved to be the fastest.

    @property
    def gap(self) -> float:
        """Fraction by which another path might be faster."""
        return 0.0 if self.optimal else self.ms / self.bound - 1


@dataclass
class _Labels:
    """Partial paths up to one layer, each with its previous label and last option."""

    state: Ints
    macs: Ints
    ms: Floats
    loss: Floats
    place: Ints  # Layer of the previous label.
    parent: Ints  # Number of the previous label in that layer.
    option: Ints  # Number of the last option.

    def take(self, keep: Ints) -> "_Labels":
        return _Labels(*(column[keep] for column in vars(self).values()))


def _group_starts(*keys: Ints) -> NDArray[np.bool_]:
    """Return a mask of the first entry of each group; entries are sorted by `keys`."""
    first = np.ones(len(keys[0]), bool)
    first[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return first


def _undominated_mask(begins: NDArray[np.bool_], loss: Floats) -> NDArray[np.bool_]:
    """Return a mask of entries that lose less than every faster entry of their group; entries are sorted by group and time."""
    if not loss.any():
        return begins
    # the keys of each group are below those of all earlier groups, which restarts the running minimum
    order = np.unique(loss, return_inverse=True)[1].astype(np.int64)
    key = order - (np.cumsum(begins) - 1) * (int(order.max()) + 1)
    keep = np.ones(len(loss), bool)
    keep[1:] = key[1:] < np.minimum.accumulate(key)[:-1]
    return keep


def remove_dominated(layer: Layer) -> Layer:
    """Return a layer without dominated options: Pareto-optimal in time and loss among equal states and MACs, the first of equals."""
    ordered = layer.take(np.lexsort((layer.option, layer.loss, layer.ms, layer.macs, layer.target, layer.span, layer.source)))
    return ordered.take(_undominated_mask(_group_starts(ordered.source, ordered.span, ordered.target, ordered.macs), ordered.loss))


def shortest_path(layers: Sequence[Layer], start: int, final_ms: Floats, low: int, high: int, max_loss: float = np.inf) -> Path | None:
    """Return the fastest path with `low` to `high` multiply-accumulates and a loss up to `max_loss`; None if none exists or is found."""
    finite = [np.isfinite(layer.ms) & np.isfinite(layer.loss) & (layer.macs <= high) for layer in layers]
    pruned = [remove_dominated(layer.take(finite_options)) for layer, finite_options in zip(layers, finite, strict=True)]
    problem, bounded = _Problem(pruned, start, final_ms, low, high, max_loss), max_loss < np.inf
    if bounded:
        problem = problem.drop_lossy_options()
    # the table over buckets only depends on the best option of each bucket
    coarse = problem.layers if bounded else [_best_per_bucket(layer, bucket_width(high)) for layer in problem.layers]
    latency_bound = Completion(coarse, final_ms, low, high)
    lower_bound = float(latency_bound.lower_bound(0, np.array([start]), np.zeros(1, np.int64))[0])
    if not np.isfinite(lower_bound):
        return None
    multiplier, dual = _best_multiplier(problem) if bounded else (0.0, lower_bound)
    lower_bound = max(lower_bound, dual)
    for factor in MULTIPLIER_FACTORS if multiplier else (0.0,):
        best, complete = problem.search(coarse, latency_bound, multiplier * factor, np.inf, BEAM)
        if best is not None or complete:
            break
    if best is None and bounded:
        # no path was found: the path of least loss shows whether one exists
        losses = [replace(layer, ms=layer.loss, loss=np.zeros(len(layer.ms)), option=np.arange(len(layer.ms))) for layer in problem.layers]
        least_lossy = shortest_path(losses, start, np.where(np.isfinite(final_ms), 0.0, np.inf), low, high)
        if least_lossy is None or (least_lossy.optimal and least_lossy.ms > max_loss + TIE):
            return None
    if best is not None and best.ms <= lower_bound + TIE:
        return replace(best, bound=lower_bound, optimal=True)
    result, complete = problem.search(problem.layers, latency_bound, multiplier, np.inf if best is None else best.ms, None)
    best = result or best
    return None if best is None else replace(best, bound=best.ms if complete else lower_bound, optimal=complete)


class Completion:
    """Lower bound on the time to the end, by layer, state and multiply-accumulates so far."""

    def __init__(self, layers: Sequence[Layer], final_ms: Floats, low: int, high: int) -> None:
        self.width = bucket_width(high)
        self.low, self.high = low, high
        size, count = high // self.width + 1, len(layers)
        tables = np.full((count + 1, len(final_ms), size), np.inf)
        tables[count, :, 0] = final_ms
        for i in reversed(range(count)):
            reduced = _best_per_bucket(layers[i], self.width)
            columns = (reduced.source, reduced.target, reduced.span, reduced.macs // self.width, reduced.ms)
            for s, t, span, m, ms in zip(*(column.tolist() for column in columns), strict=True):
                np.minimum(tables[i, s, m:], tables[i + span, t, : size - m] + ms, out=tables[i, s, m:])
        # a sum of rounded-down numbers is up to one bucket per layer below the rounded sum
        self._left = np.arange(count, -1, -1)
        lengths = ((high - low) // self.width + left + 2 for left in self._left.tolist())
        self._windows = np.stack([_window_min(table, length) for table, length in zip(tables, lengths, strict=True)])

    def lower_bound(self, place: int, state: Ints, macs: Ints) -> Floats:
        """Return the bounds, ms, for labels before layer `place`, or after the last layer."""
        first = (self.low - macs) // self.width - self._left[place]
        bound = self._windows[place][state, np.clip(first, 0, self._windows.shape[2] - 1)]
        return np.where(macs > self.high, np.inf, bound)


def bucket_width(high: int) -> int:
    """Return the number of multiply-accumulates per bucket."""
    return max(1, high // BUCKETS)


def _window_min(table: Floats, length: int) -> Floats:
    """Return the minimum of the `length` entries that begin at each entry."""
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
    """Return the fastest option of each bucket and pair of states."""
    ordered = layer.take(np.lexsort((layer.ms, layer.macs // width, layer.target, layer.span, layer.source)))
    return ordered.take(_group_starts(ordered.source, ordered.span, ordered.target, ordered.macs // width))


def costs_to_end(layers: Sequence[Layer], final: Floats, cost: Callable[[Layer], Floats]) -> Floats:
    """Return the lowest cost to the end, before each layer and after the last (layers + 1 × states)."""
    to_end = np.full((len(layers) + 1, len(final)), np.inf)
    to_end[-1] = final
    for i, layer in reversed(list(enumerate(layers))):
        np.minimum.at(to_end[i], layer.source, to_end[i + layer.span, layer.target] + cost(layer))
    return to_end


def remaining_costs(layers: Sequence[Layer], start: int, final: Floats, cost: Callable[[Layer], Floats]) -> list[Floats]:
    """Return, for each layer, the lowest cost of a whole path through each option, without the option's own cost."""
    to_end, reached = costs_to_end(layers, final, cost), np.full((len(layers) + 1, len(final)), np.inf)
    reached[0, start] = 0.0
    for i, layer in enumerate(layers):
        np.minimum.at(reached, (i + layer.span, layer.target), reached[i, layer.source] + cost(layer))
    return [reached[i, layer.source] + to_end[i + layer.span, layer.target] for i, layer in enumerate(layers)]


@dataclass(frozen=True)
class _Problem:
    """A shortest-path problem with a bound on the loss."""

    layers: list[Layer]  # One per segment.
    start: int  # State before the first layer.
    final_ms: Floats  # Time to finish from each state, ms.
    low: int  # Minimum multiply-accumulates.
    high: int  # Maximum multiply-accumulates.
    max_loss: float  # Maximum loss.

    def drop_lossy_options(self) -> "_Problem":
        """Return the problem without options that exceed the loss bound on every path."""
        ends = np.where(np.isfinite(self.final_ms), 0.0, np.inf)
        losses = remaining_costs(self.layers, self.start, ends, lambda layer: layer.loss)
        pairs = zip(self.layers, losses, strict=True)
        return replace(self, layers=[layer.take(rest + layer.loss <= self.max_loss + TIE) for layer, rest in pairs])

    def penalized_layers(self, multiplier: float) -> list[Layer]:
        """Return the layers with the penalty of the loss added to the time."""
        return [replace(layer, ms=layer.ms + multiplier * layer.loss) for layer in self.layers] if multiplier else self.layers

    def lagrangian_bound(self, layers: Sequence[Layer], macs_multiplier: float) -> float:
        """Return the Lagrangian lower bound on the time of paths through `layers`, at a multiplier of MACs."""
        to_end = costs_to_end(layers, self.final_ms, lambda layer: layer.ms - macs_multiplier * layer.macs)
        return float(to_end[0, self.start]) + macs_multiplier * (self.low if macs_multiplier >= 0 else self.high)

    def search(
        self, layers: Sequence[Layer], latency_bound: Completion, multiplier: float, upper_bound: float, beam: int | None
    ) -> tuple[Path | None, bool]:
        """Return the best path through `layers` below `upper_bound`, and whether the search was complete.

        With a `multiplier` of the loss, the penalised cost to complete a path is a second bound.
        """
        penalized_bound = Completion(self.penalized_layers(multiplier), self.final_ms, self.low, self.high) if multiplier else latency_bound
        # the least loss from each state to the end
        remaining_loss = costs_to_end(self.layers, np.where(np.isfinite(self.final_ms), 0.0, np.inf), lambda layer: layer.loss)
        zero, complete = np.zeros(1, np.int64), True
        history: list[_Labels] = []
        arriving: list[list[_Labels]] = [[] for _ in range(len(layers) + 1)]
        arriving[0].append(_Labels(np.array([self.start]), zero, np.zeros(1), np.zeros(1), zero, zero, zero))
        for i, arriving_labels in enumerate(arriving):
            labels = _merge_labels(arriving_labels)
            bound = labels.ms + multiplier * labels.loss + penalized_bound.lower_bound(i, labels.state, labels.macs)
            by_bound = np.argsort(bound, kind="stable")
            if beam is not None and len(labels.ms) > beam:
                labels, by_bound, complete = labels.take(by_bound[:beam]), np.arange(beam), False
            history.append(labels)
            if i == len(layers):
                break
            count = 0
            for span in np.unique(layers[i].span).tolist():
                layer, target = layers[i].take(layers[i].span == span), i + span
                step = max(1, CHUNK // max(1, len(layer.ms)))
                for begin in range(0, len(by_bound) if beam is not None or count <= MAX_LABELS else 0, step):
                    chunk = by_bound[begin : begin + step]
                    rows, edges = np.nonzero(labels.state[chunk][:, None] == layer.source[None, :])
                    parents, state = chunk[rows], layer.target[edges]
                    macs, ms = labels.macs[parents] + layer.macs[edges], labels.ms[parents] + layer.ms[edges]
                    fast = np.flatnonzero(ms + latency_bound.lower_bound(target, state, macs) < upper_bound - TIE)
                    parents, edges, state = (column[fast] for column in (parents, edges, state))
                    macs, ms = macs[fast], ms[fast]
                    loss = labels.loss[parents] + layer.loss[edges]
                    keep = loss + remaining_loss[target, state] <= self.max_loss + TIE
                    if multiplier:
                        penalized = ms + multiplier * loss + penalized_bound.lower_bound(target, state, macs)
                        keep &= penalized < upper_bound + multiplier * self.max_loss - TIE
                    new = _Labels(state, macs, ms, loss, np.full(len(ms), i), parents, layer.option[edges])
                    arriving[target].append(new.take(np.flatnonzero(keep)))
                    count += int(keep.sum())
                    if beam is None and count > MAX_LABELS:
                        complete = False
                        break
        feasible = (labels.macs >= self.low) & (labels.macs <= self.high) & (labels.loss <= self.max_loss + TIE)
        finish = np.where(feasible, labels.ms + self.final_ms[labels.state], np.inf)
        winner = int(np.argmin(finish)) if len(finish) else 0
        if not len(finish) or not np.isfinite(finish[winner]):
            return None, complete
        options, place, at = [], len(layers), winner
        while place > 0:
            label = history[place].take(np.array([at]))
            place, at = int(label.place[0]), int(label.parent[0])
            options.append(int(label.option[0]))
        return Path(tuple(reversed(options)), int(labels.macs[winner]), float(finish[winner]), -np.inf, False), complete


def _merge_labels(arriving: Sequence[_Labels]) -> _Labels:
    """Return the labels at one layer that are Pareto-optimal among labels of equal state and multiply-accumulates."""
    if not arriving:
        none = np.zeros(0, np.int64)
        return _Labels(none, none, np.zeros(0), np.zeros(0), none, none, none)
    labels = _Labels(*(np.concatenate(column) for column in zip(*(vars(label_set).values() for label_set in arriving), strict=True)))
    labels = labels.take(np.lexsort((labels.option, labels.loss, labels.ms, labels.macs, labels.state)))
    return labels.take(np.flatnonzero(_undominated_mask(_group_starts(labels.state, labels.macs), labels.loss)))


def _best_multiplier(problem: _Problem) -> tuple[float, float]:
    """Return the multiplier of the loss with the highest lower bound, and this bound; MACs have a separate multiplier."""

    def bound_at(multiplier: float) -> float:
        penalized, max_penalty = problem.penalized_layers(multiplier), multiplier * problem.max_loss
        scale = 4 * max(abs(problem.lagrangian_bound(penalized, 0.0) - max_penalty) + abs(max_penalty), 1e-6) / max(problem.high, 1)
        return maximize_concave(lambda macs: problem.lagrangian_bound(penalized, macs), -scale, scale)[1] - max_penalty

    unpenalized_bound = bound_at(0.0)
    high_multiplier = max(abs(unpenalized_bound), 1e-6) / max(abs(problem.max_loss), 1e-6)
    bound_at_high = bound_at(high_multiplier)
    for _ in range(8):
        next_bound = bound_at(4 * high_multiplier)
        if next_bound <= bound_at_high:
            break
        high_multiplier, bound_at_high = 4 * high_multiplier, next_bound
    multiplier, value = maximize_concave(bound_at, 0.0, 4 * high_multiplier)
    return (multiplier, value) if value > unpenalized_bound + TIE else (0.0, unpenalized_bound)


def maximize_concave(function: Callable[[float], float], left: float, right: float, steps: int = STEPS) -> tuple[float, float]:
    """Return the approximate argument and value of a concave function's maximum between two numbers (golden-section search)."""
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
