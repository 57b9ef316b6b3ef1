"""Choice of the blocks that branches of a stretched segment keep, by the measured loss without each block.

A depth only states the number of kept blocks, and drops blocks evenly from all runs of equal blocks. But blocks differ much in their
importance and in their time. So one branch keeps the most important blocks for their time, and the others keep some that it lacks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np

from stretch.planning.config import only_latency
from stretch.planning.cost.accuracy import AccuracySource, Sensitivity
from stretch.planning.cost.branch import Costs, Floats
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import legal_widths, missing_blocks
from stretch.planning.network.segments import Segment, backbone_of
from stretch.planning.result import Kept, PlanResult, Shortened, sides_on
from stretch.planning.search.space import LazyOptions, Rules, evenly_spaced

#: Returns the relative squared error of the outputs without each single removable block of a design's segment, by block number.
Losses = Callable[[BranchDesign, Segment], Mapping[int, float]]

#: Maximum sets of missing blocks and maximum widths of a branch, because every combination of two branches is evaluated.
MAX_SETS, MAX_WIDTHS = 350, 4
#: Maximum loss without a block, and the loss assumed for blocks that cannot be removed.
FULL_SLACK = 1.0
#: Share of a block's worth that counts if another branch keeps it and the main branch does not. Chosen on EfficientNet-Lite1.
OTHER_LOSS = 0.3
#: Attempts at a design that uses the time up to the limit, because a timeline differs slightly from the sum of its segments' options.
MAX_ATTEMPTS = 4


def keep_blocks(planned: PlanResult, losses: Losses) -> tuple[BranchDesign, list[str]]:
    """Return a plan's design with the most important blocks kept in stretched segments, within the plan's time or the latency budget.

    Meeting points, processors and joins do not change. Designs for objectives other than latency, and branches with all blocks, do not change.

    Returns:
        The design, and notes on its changed segments.
    """
    config, costs, design = planned.config, planned.costs, planned.design
    notes: list[str] = []
    if not only_latency(config) or config.widens or config.params is not None:
        return design, notes
    limit = max(config.latency_budget or 0.0, planned.run.makespan_ms)
    for number, row in enumerate(planned.run.segments):
        segment, part = row.segment, row.design
        if part.whole or part.division is not None or all(branch.depth == segment.depth for branch in part.branches):
            continue
        search = _BlockSearch(planned, design, number, losses(planned.design, segment))
        slack, used, best = limit - timeline(planned.graph, design, costs).makespan_ms, -np.inf, design
        for _ in range(MAX_ATTEMPTS):
            changed = search.choose(slack)
            if changed is None:
                break
            left = limit - timeline(planned.graph, changed, costs).makespan_ms
            if left >= -1e-9 * limit and slack > used:
                used, best = slack, changed
            slack += left
        if best is not design:
            before, after = (search.loss_of(item) for item in (design, best))
            notes.append(
                f"blocks of `{segment.name}` were chosen by what the network loses on images without each: its main branch lacks {after:.0%} "
                f"of that, and would lack {before:.0%} of it with blocks taken evenly"
            )
            design = best
    return design, notes


def shorten(planned: PlanResult, losses: Losses | None, source: AccuracySource | None = None) -> Shortened | None:
    """Return the original without its least important blocks on the best single processor, within the plan's time or the latency budget.

    Without losses, blocks are dropped evenly, as in plans. A sensitivity as `source` predicts the agreement of both networks.

    Returns:
        None if nothing is stretched, the original is as fast, or removing blocks cannot make it as fast.
    """
    single, limit = planned.best_single, max(planned.config.latency_budget or 0.0, planned.run.makespan_ms)
    if single.ms <= limit or (planned.exact and planned.config.min_agreement is None):
        return None
    graph, costs = planned.graph, planned.costs.replace_precision(single.processor, single.precision)
    segments = [row.segment for row in planned.run.segments]
    options: list[_ShortenedOption] = [(0.0, 0.0, ())]
    for segment in segments:
        of_segment = _shortened_options(segment, losses and losses(planned.design, segment), single.processor, costs)
        options = _undominated((ms + more, lost + of, (*sets, dropped)) for ms, lost, sets in options for more, of, dropped in of_segment)
    # slower options lose less, so try the slowest first; a network's time differs slightly from the sum of its segments' times
    for _, _, sets in reversed([option for option in options if option[0] <= limit]):
        parts = []
        for segment, dropped in zip(segments, sets, strict=True):
            depth, align = segment.depth - len(dropped), costs.align(single.processor)
            branch = BranchScale(single.processor, depth, segment.width, align=align, dropped=dropped)
            parts.append(SegmentDesign(segment.name, segment.start, segment.end, (branch,)))
        design = replace(planned.design, segments=tuple(parts), sides=sides_on(graph, single.processor))
        run = timeline(graph, design, costs)
        if run.makespan_ms > limit * (1 + 1e-9):
            continue
        kept = None
        if isinstance(source, Sensitivity):
            branched, shortened = (source.value(source.loss(graph, item)) for item in (planned.design, design))
            kept = Kept(basis="sensitivity", branched=branched, shortened=shortened, images=source.on.held_back)
        elif losses:
            branched, shortened = (kept_worth(planned, item, losses) for item in (planned.design, design))
            kept = Kept(basis="blocks", branched=branched, shortened=shortened)
        return Shortened(
            processor=single.processor,
            precision=single.precision,
            ms=run.makespan_ms,
            macs_ratio=run.macs / graph.macs,
            dropped={part.name: list(part.branches[0].dropped) for part in parts if part.branches[0].dropped},
            blocks=sum(segment.depth for segment in segments),
            design=design,
            kept=kept,
        )
    return None


#: Time of a segment without some blocks, ms, the loss, and the blocks' numbers; for several segments, a tuple of numbers for each.
_ShortenedOption = tuple[float, float, tuple[Any, ...]]


def _shortened_options(segment: Segment, loss: Mapping[int, float] | None, processor: str, costs: Costs) -> list[_ShortenedOption]:
    """Return the undominated options of a segment on one processor without some of its blocks."""
    if loss is None:
        sets = [tuple(sorted(missing_blocks(segment, depth))) for depth in range(segment.min_depth, segment.depth + 1)]
        # squares spread the missing blocks evenly over segments
        lost = [len(dropped) ** 2 / segment.depth for dropped in sets]
    else:
        sets, worth = block_sets(segment, loss), worths(segment, loss)
        lost = [float(worth[list(dropped)].sum()) for dropped in sets]
    ms = (costs.branch(segment, processor, segment.depth - len(dropped), segment.width, None, dropped).ms for dropped in sets)
    return _undominated(zip(ms, lost, sets, strict=True))


def _undominated(options: Iterable[_ShortenedOption]) -> list[_ShortenedOption]:
    """Return the options that are Pareto-optimal in time and loss, the fastest first."""
    best: list[_ShortenedOption] = []
    for option in sorted(options):
        if not best or option[1] < best[-1][1]:
            best.append(option)
    return best


def worths(segment: Segment, loss: Mapping[int, float]) -> Floats:
    """Return the worth of each block: the loss without it, `FULL_SLACK` for a block that cannot be removed."""
    return np.array([min(loss.get(n, FULL_SLACK), FULL_SLACK) for n in range(segment.depth)])


def kept_worth(planned: PlanResult, design: BranchDesign, losses: Losses) -> float:
    """Return the share of the worth of all blocks that a design with the plan's segments keeps, by the rule of `_BlockSearch`."""
    kept = total = 0.0
    for row, part in zip(planned.run.segments, design.segments, strict=True):
        worth, segment = worths(row.segment, losses(planned.design, row.segment)), row.segment
        total += float(worth.sum())
        if part.division is not None:
            kept += float(worth.sum())
            continue
        has = np.array([[n not in missing_blocks(segment, b.depth, b.dropped) for n in range(segment.depth)] for b in part.branches])
        scaled = has * np.array([[b.width / segment.width] for b in part.branches])
        others_keep = [np.delete(scaled, i, axis=0).max(axis=0, initial=0.0) for i in range(len(scaled))]
        kept += max(float(scaled[i] @ worth + OTHER_LOSS * ((1 - has[i]) * worth) @ elsewhere) for i, elsewhere in enumerate(others_keep))
    return kept / max(total, 1e-30)


class _BlockSearch:
    """Search for the best blocks of one stretched segment of a design.

    The worth of a block is the loss without it, and worth adds up: the sum ranks calibrated networks better than the loss without several blocks
    at once. The worth of a branch is the sum over its blocks, times its width over the segment's. Other segments of the plan's design may
    have changed already.
    """

    def __init__(self, planned: PlanResult, design: BranchDesign, number: int, loss: Mapping[int, float]) -> None:
        part, costs = design.segments[number], planned.costs
        self._design, self._number, self._costs = design, number, costs
        self._segment = segment = planned.run.segments[number].segment
        self._rules = rules = Rules.of(planned.config)
        self._now = [(b.width, tuple(sorted(missing_blocks(segment, b.depth, b.dropped)))) for b in part.branches]
        depths = set(rules.depths(segment))
        sets = dict.fromkeys((*block_sets(segment, loss), *(dropped for _, dropped in self._now)))
        offered = [dropped for dropped in sets if segment.depth - len(dropped) in depths]
        processors = tuple(b.processor for b in part.branches)
        widths = []
        for b in part.branches:
            legal = rules.widths(segment, legal_widths(costs.rewritten(segment, b.processor), costs.align(b.processor)))
            widths.append(sorted({*evenly_spaced(legal, MAX_WIDTHS), b.width}))
        fixed_scales = tuple((branch_widths, offered) for branch_widths in widths)
        self._offer = LazyOptions(segment, processors, part.join, segment.in_width, costs, rules, fixed_scales=fixed_scales)
        self._alone_ms = min(costs.whole(segment, processor).ms for processor in processors)
        self._loss = worths(segment, loss)
        self._removable = np.array([n in loss for n in range(segment.depth)])
        low, high = (share * backbone_of(planned.graph).graph.macs for share in planned.config.macs)
        other_macs = sum(row.macs for row in timeline(planned.graph, design, costs).segments) - planned.run.segments[number].macs
        self._macs = low - other_macs, high - other_macs

    def choose(self, slack: float) -> BranchDesign | None:
        """Return the design with the best blocks that takes up to `slack` ms longer; None if none is better."""
        candidates, costs = [list(scales) for scales in self._offer.candidates], self._costs
        sizes = [len(scales) for scales in candidates]
        now = [[(cost.width, cost.dropped) for cost in scales].index(at) for scales, at in zip(candidates, self._now, strict=True)]
        best = np.array(now)
        # 1 for each block that a candidate keeps, else 0 (candidates × blocks), and its width over the segment's (candidates × 1)
        kept = [np.array([[n not in cost.dropped for n in range(len(self._loss))] for cost in scales], float) for scales in candidates]
        widths = [np.array([[cost.width / self._segment.width] for cost in scales]) for scales in candidates]
        start = self._offer.options((costs.host,), np.array([np.ravel_multi_index(now, sizes)]))
        limit, best_score = float(start.ms[0, 0]) + slack, -np.inf
        # more than two branches are optimised in pairs, given the blocks that the other branches keep
        for pair in list(combinations(range(len(sizes)), 2)) * (1 if len(sizes) == 2 else 2):
            combinations_of_pair = np.repeat(best[:, None], prod(sizes[i] for i in pair), axis=1)
            combinations_of_pair[list(pair)] = np.indices([sizes[i] for i in pair]).reshape(2, -1)
            kept_by_others = [kept[i][best[i]] * widths[i][best[i]] for i in range(len(sizes)) if i not in pair]
            first, second = ((kept[i], widths[i]) for i in pair)
            worth = self._pair_worth(first, second, np.max([np.zeros(len(self._loss)), *kept_by_others], axis=0)).reshape(-1)
            options = self._offer.options((costs.host,), np.ravel_multi_index(tuple(combinations_of_pair), sizes))
            allowed = self._rules.allowed(options, self._alone_ms)[0] & (options.ms[0] <= limit + 1e-9)
            allowed &= (options.macs >= self._macs[0]) & (options.macs <= self._macs[1])
            # prefer the faster of equals; the present combination may break a rule by rounding
            score = np.where(allowed, worth - 1e-6 * options.ms[0] / limit, -np.inf)
            at = int(score.argmax())
            before = float(worth[np.ravel_multi_index([best[i] for i in pair], [sizes[i] for i in pair])])
            if score[at] > max(before, best_score) + 1e-5:
                best, best_score = combinations_of_pair[:, at], float(score[at])
        if (best == now).all():
            return None
        chosen = self._offer.options((costs.host,), np.array([np.ravel_multi_index(best.tolist(), sizes)])).design(0, costs)
        parts = (chosen if i == self._number else part for i, part in enumerate(self._design.segments))
        return replace(self._design, segments=tuple(parts))

    def loss_of(self, design: BranchDesign) -> float:
        """Return the worth of the blocks that the main branch lacks, over the worth of all removable blocks."""
        missing = [list(missing_blocks(self._segment, b.depth, b.dropped)) for b in design.segments[self._number].branches]
        return float(min(self._loss[blocks].sum() for blocks in missing) / max(self._loss[self._removable].sum(), 1e-30))

    def _pair_worth(self, first: tuple[Floats, Floats], second: tuple[Floats, Floats], others: Floats) -> Floats:
        """Return the worth of each combination of two branches: the better branch's, plus a share for its missing blocks that others keep."""

        def of(main: tuple[Floats, Floats], beside: tuple[Floats, Floats]) -> Floats:
            elsewhere = np.maximum(beside[0] * beside[1], others)
            value: Floats = (main[0] @ self._loss)[:, None] * main[1] + OTHER_LOSS * ((1 - main[0]) * self._loss) @ elsewhere.T
            return value

        return np.asarray(np.maximum(of(first, second), of(second, first).T))


def block_sets(segment: Segment, loss: Mapping[int, float]) -> list[tuple[int, ...]]:
    """Return the sets of blocks to remove, each with the least important blocks of every run of equal blocks; at most `MAX_SETS` sets."""
    runs: dict[int, list[int]] = {}
    for number in sorted(loss, key=lambda n: (loss[n], -n)):
        runs.setdefault(segment.blocks[number].run, []).append(number)
    counts = [list(range(len(units) + 1)) for units in runs.values()]
    while prod(map(len, counts)) > MAX_SETS:
        longest = max(range(len(counts)), key=lambda i: len(counts[i]))
        counts[longest] = evenly_spaced(counts[longest], len(counts[longest]) - 1)
    return [
        tuple(sorted(n for units, count in zip(runs.values(), sizes, strict=True) for n in units[:count])) for sizes in product(*counts)
    ]
