"""Exact shortest path through layers of options under a range of total multiply-accumulates.

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
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

BUCKETS = 2000
BEAM = 400
MAX_LABELS = 400_000
#: Pairs of a label and an option that are looked at together.
CHUNK = 4_000_000
#: Times that differ by less, in ms, are equal: sums in another order differ so.
TIE = 1e-9

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
    loss: Floats | None = None  # What is bounded beside multiply-accumulates (`stretch.planning.search.exact`); None where nothing is.

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
    """Partial paths: state, multiply-accumulates, time, and which label and option they came from."""

    state: Ints
    macs: Ints
    ms: Floats
    parent: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    edge: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


def undominated(layer: Layer) -> Layer:
    """Of options with equal states and multiply-accumulates, only the fastest; the choice among equals is the first."""
    order = np.lexsort((layer.option, layer.ms, layer.macs, layer.target, layer.source))
    sorted_ = layer.take(order)
    keys = np.stack([sorted_.source, sorted_.target, sorted_.macs])
    first = np.ones(len(order), bool)
    first[1:] = np.any(keys[:, 1:] != keys[:, :-1], axis=0)
    return sorted_.take(first)


def shortest_path(layers: Sequence[Layer], states: int, start: int, final_ms: Floats, low: int, high: int) -> Path | None:
    """The fastest path whose multiply-accumulates are from `low` to `high`."""
    layers = [undominated(layer.take(np.isfinite(layer.ms) & (layer.macs <= high))) for layer in layers]
    if any(len(layer.ms) == 0 for layer in layers):
        return None
    # a table over buckets sees no other options
    reduced = [_best_per_bucket(layer, bucket_width(high)) for layer in layers]
    bounds = Completion(reduced, states, final_ms, low, high)
    lower = float(bounds.of(0, np.array([start]), np.zeros(1, np.int64))[0])
    if not np.isfinite(lower):
        return None
    best, _ = _search(reduced, bounds, start, final_ms, low, high, np.inf, BEAM)
    limit = best[1] if best else np.inf
    if best and limit <= lower + TIE:
        return Path(best[0], best[2], limit, lower, True)
    useful = eliminate(layers, reduced, states, start, final_ms, low, high, limit)
    result, complete = _search(useful, bounds, start, final_ms, low, high, limit, None)
    best = result if result is not None else best
    if best is None:
        return None
    return Path(best[0], best[2], best[1], best[1] if complete else lower, complete)


class Completion:
    """Lower bound on the time from a state and a number of multiply-accumulates to the end.

    Args:
        layers: One per segment, in order.
    """

    def __init__(self, layers: Sequence[Layer], states: int, final_ms: Floats, low: int, high: int) -> None:
        self.width = bucket_width(high)
        self._low, self._high = low, high
        size = high // self.width + 1
        table = np.full((states, size), np.inf)
        table[:, 0] = final_ms
        tables = [table]
        for layer in reversed(layers):
            table = np.full((states, size), np.inf)
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
        first = (self._low - macs) // self.width - self._left[layer]
        window = self._windows[layer]
        bound = window[state, np.clip(first, 0, window.shape[1] - 1)]
        return np.where(macs > self._high, np.inf, bound)


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
    bucket = layer.macs // width
    order = np.lexsort((layer.ms, bucket, layer.target, layer.source))
    sorted_ = layer.take(order)
    keys = np.stack([sorted_.source, sorted_.target, bucket[order]])
    first = np.ones(len(order), bool)
    first[1:] = np.any(keys[:, 1:] != keys[:, :-1], axis=0)
    return sorted_.take(first)


def _search(
    layers: Sequence[Layer], bounds: Completion, start: int, final_ms: Floats, low: int, high: int, limit: float, beam: int | None
) -> tuple[tuple[tuple[int, ...], float, int] | None, bool]:
    """Best path that is faster than `limit`, and whether nothing was left out."""
    labels = _Labels(np.array([start]), np.zeros(1, np.int64), np.zeros(1))
    history = [labels]
    complete = True
    for i, layer in enumerate(layers):
        parts: list[tuple[Ints, Ints]] = []
        count = 0
        step = max(1, CHUNK // max(1, len(layer.ms)))
        by_bound = np.argsort(labels.ms + bounds.of(i, labels.state, labels.macs), kind="stable")
        for begin in range(0, len(by_bound), step):
            chunk = by_bound[begin : begin + step]
            fits = labels.state[chunk][:, None] == layer.source[None, :]
            rows, edges = np.nonzero(fits)
            parents = chunk[rows]
            macs = labels.macs[parents] + layer.macs[edges]
            total = labels.ms[parents] + layer.ms[edges] + bounds.of(i + 1, layer.target[edges], macs)
            keep = total < limit - TIE
            parts.append((parents[keep], edges[keep]))
            count += int(keep.sum())
            if beam is None and count > MAX_LABELS:
                complete = False
                break
        parents = np.concatenate([p for p, _ in parts])
        edges = np.concatenate([e for _, e in parts])
        labels = _merge(labels, layer, parents, edges)
        if beam is not None and len(labels.ms) > beam:
            score = labels.ms + bounds.of(i + 1, labels.state, labels.macs)
            best = np.argsort(score, kind="stable")[:beam]
            labels = _Labels(labels.state[best], labels.macs[best], labels.ms[best], labels.parent[best], labels.edge[best])
            complete = False
        history.append(labels)
        if not len(labels.ms):
            return None, complete
    finish = np.where((labels.macs >= low) & (labels.macs <= high), labels.ms + final_ms[labels.state], np.inf)
    winner = int(np.argmin(finish))
    if not np.isfinite(finish[winner]):
        return None, complete
    return (options_to(layers, history, winner), float(finish[winner]), int(labels.macs[winner])), complete


class Labelled(Protocol):
    """Paths to one layer, however they are told apart."""

    @property
    def parent(self) -> Ints:
        """Of each, the number of the path before it that it goes on from."""

    @property
    def edge(self) -> Ints:
        """Of each, the number of the option that it took."""


def options_to(layers: Sequence[Layer], history: Sequence[Labelled], at: int) -> tuple[int, ...]:
    """The option of each layer on one of the last paths."""
    options = []
    for layer, labels in zip(reversed(layers), reversed(history), strict=False):
        options.append(int(layer.option[labels.edge[at]]))
        at = int(labels.parent[at])
    return tuple(reversed(options))


def _merge(labels: _Labels, layer: Layer, parents: Ints, edges: Ints) -> _Labels:
    """New labels; of those with equal state and multiply-accumulates only the fastest."""
    state, macs, ms = layer.target[edges], labels.macs[parents] + layer.macs[edges], labels.ms[parents] + layer.ms[edges]
    order = np.lexsort((edges, ms, macs, state))
    first = np.ones(len(order), bool)
    first[1:] = (state[order][1:] != state[order][:-1]) | (macs[order][1:] != macs[order][:-1])
    keep = order[first]
    return _Labels(state[keep], macs[keep], ms[keep], parents[keep], edges[keep])


def eliminate(
    layers: Sequence[Layer], reduced: Sequence[Layer], states: int, start: int, final_ms: Floats, low: int, high: int, limit: float
) -> list[Layer]:
    """Layers without the options that no path faster than `limit` can use (Lagrangian bound).

    Multiply-accumulates are sold at a price, which bounds every path from below
    whatever the price is; a good price is found on the `reduced` layers.
    """
    if not np.isfinite(limit):
        return list(layers)

    def backward(some: Sequence[Layer], price: float) -> list[Floats]:
        distances = [final_ms]
        for layer in reversed(some):
            before = np.full(states, np.inf)
            np.minimum.at(before, layer.source, distances[-1][layer.target] + layer.ms - price * layer.macs)
            distances.append(before)
        return distances[::-1]

    def refund(price: float) -> float:
        return price * (low if price >= 0 else high)

    def bound(price: float) -> float:
        return float(backward(reduced, price)[0][start]) + refund(price)

    scale = limit / max(low, 1)
    left, right = -4 * scale, 4 * scale
    for _ in range(40):
        a, b = left + (right - left) / 3, right - (right - left) / 3
        if bound(a) < bound(b):
            left = a
        else:
            right = b
    price = (left + right) / 2
    to_end = backward(layers, price)
    reached = np.full(states, np.inf)
    reached[start] = refund(price)
    kept = []
    for i, layer in enumerate(layers):
        until = reached[layer.source] + layer.ms - price * layer.macs
        kept.append(layer.take(until + to_end[i + 1][layer.target] < limit))
        reached = np.full(states, np.inf)
        np.minimum.at(reached, layer.target, until)
    return kept
