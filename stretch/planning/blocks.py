"""Which blocks the branches of a stretched segment keep, where it is known what the network loses without each of them.

A depth alone says how many blocks stay, and takes them evenly from all runs of equal blocks. But blocks differ much in what they
matter and in the time they take. So one branch keeps those that matter most for their time, and the others keep some that it lacks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np

from stretch.planning.cost.branch import Costs, Floats
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import legal_widths, missing_blocks
from stretch.planning.network.segments import Segment, backbone_of
from stretch.planning.result import Kept, PlanResult, Shortened, sides_on
from stretch.planning.search.space import LazyOptions, Rules, evenly_spaced

#: Loss of the outputs, squared error over square, without each single block of a segment of a design, by the block's number: of all that can be left out.
Losses = Callable[[BranchDesign, Segment], Mapping[int, float]]

#: Sets of blocks that a branch may do without, and its widths, at most: every combination of two branches is worked out.
MAX_SETS, MAX_WIDTHS = 350, 4
#: Largest loss without a block, and the loss without one that cannot be left out: everything.
FULL_SLACK = 1.0
#: Share of a block's worth that another branch has which keeps it, where the one that keeps most does not. Chosen on EfficientNet-Lite1.
OTHER_LOSS = 0.3
#: Attempts at a design that uses the time up to the limit: timelines are not quite what the options of their segments add up to.
MAX_ATTEMPTS = 4


def keep_blocks(planned: PlanResult, losses: Losses) -> tuple[BranchDesign, list[str]]:
    """Return a plan's design, whose stretched segments keep the blocks that matter most, in the time that the plan takes or its request allows.

    Meeting points, processors and joins stay. Designs for another objective than latency, and those whose branches lack no blocks, stay as they are.

    Returns:
        The design, and what to say of it.
    """
    config, costs, design = planned.config, planned.costs, planned.design
    notes: list[str] = []
    if not config.parsed_objective.only_latency or config.widens or config.params is not None:
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


def shorten(planned: PlanResult, losses: Losses | None) -> Shortened | None:
    """Return the original without its least important blocks on the best single processor, as fast there as the plan is or its request allows.

    Where no losses are known blocks are taken evenly, as plans take them.

    Returns:
        None where nothing is stretched, the original is as fast, or no blocks that can be left out make it so.
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
    # the slower one is, the less is lost; times of segments are not quite those that a network adds up to
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
        branched, shortened = (kept_worth(planned, item, losses) if losses else 0.0 for item in (planned.design, design))
        return Shortened(
            processor=single.processor,
            precision=single.precision,
            ms=run.makespan_ms,
            macs_ratio=run.macs / graph.macs,
            dropped={part.name: list(part.branches[0].dropped) for part in parts if part.branches[0].dropped},
            blocks=sum(segment.depth for segment in segments),
            design=design,
            kept=Kept(basis="blocks", branched=branched, shortened=shortened) if losses else None,
        )
    return None


#: Time of a segment without some blocks, the loss without them, and their numbers; of several segments the numbers of each.
_ShortenedOption = tuple[float, float, tuple[Any, ...]]


def _shortened_options(segment: Segment, loss: Mapping[int, float] | None, processor: str, costs: Costs) -> list[_ShortenedOption]:
    """Return the ways to run a segment on one processor without some of its blocks."""
    if loss is None:
        sets = [tuple(sorted(missing_blocks(segment, depth))) for depth in range(segment.min_depth, segment.depth + 1)]
        # squares take blocks evenly from all segments
        lost = [len(dropped) ** 2 / segment.depth for dropped in sets]
    else:
        sets, worth = block_sets(segment, loss), worths(segment, loss)
        lost = [float(worth[list(dropped)].sum()) for dropped in sets]
    ms = (costs.branch(segment, processor, segment.depth - len(dropped), segment.width, None, dropped).ms for dropped in sets)
    return _undominated(zip(ms, lost, sets, strict=True))


def _undominated(options: Iterable[_ShortenedOption]) -> list[_ShortenedOption]:
    """Return the sets that no other one beats in time and in loss, the fastest first."""
    best: list[_ShortenedOption] = []
    for option in sorted(options):
        if not best or option[1] < best[-1][1]:
            best.append(option)
    return best


def worths(segment: Segment, loss: Mapping[int, float]) -> Floats:
    """Return the worth of each block: the loss without it, `FULL_SLACK` for a block that cannot be left out."""
    return np.array([min(loss.get(n, FULL_SLACK), FULL_SLACK) for n in range(segment.depth)])


def kept_worth(planned: PlanResult, design: BranchDesign, losses: Losses) -> float:
    """Return the share of the worth of a network's blocks that a design with the plan's segments keeps, as `_BlockSearch` counts it."""
    kept = total = 0.0
    for row, part in zip(planned.run.segments, design.segments, strict=True):
        worth, segment = worths(row.segment, losses(planned.design, row.segment)), row.segment
        total += float(worth.sum())
        if part.division is not None:
            kept += float(worth.sum())
            continue
        has = np.array([[n not in missing_blocks(segment, b.depth, b.dropped) for n in range(segment.depth)] for b in part.branches])
        scaled = has * np.array([[b.width / segment.width] for b in part.branches])
        others = [np.delete(scaled, i, axis=0).max(axis=0, initial=0.0) for i in range(len(scaled))]
        kept += max(float(scaled[i] @ worth + OTHER_LOSS * ((1 - has[i]) * worth) @ elsewhere) for i, elsewhere in enumerate(others))
    return kept / max(total, 1e-30)


class _BlockSearch:
    """The best blocks of one stretched segment of a design.

    A block is worth the loss without it, and worth adds up: the sum ranks calibrated networks better than the loss without several blocks
    at once. A branch is worth its blocks, times its width over the segment's.

    Args:
        planned: The plan.
        design: Its design, of which other segments may have been changed.
        number: Of the segment.
        loss: Without each of its blocks that can be left out.
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
        others = sum(row.macs for row in timeline(planned.graph, design, costs).segments) - planned.run.segments[number].macs
        self._macs = low - others, high - others

    def choose(self, slack: float) -> BranchDesign | None:
        """Return the design with the best blocks that takes up to `slack` ms longer; None where there is no better one."""
        candidates, costs = [list(scales) for scales in self._offer.candidates], self._costs
        sizes = [len(scales) for scales in candidates]
        now = [[(cost.width, cost.dropped) for cost in scales].index(at) for scales, at in zip(candidates, self._now, strict=True)]
        best = np.array(now)
        # which blocks each candidate keeps, 1 or 0 (candidates × blocks), and its width over the segment's (candidates × 1)
        kept = [np.array([[n not in cost.dropped for n in range(len(self._loss))] for cost in scales], float) for scales in candidates]
        widths = [np.array([[cost.width / self._segment.width] for cost in scales]) for scales in candidates]
        start = self._offer.options((costs.host,), np.array([np.ravel_multi_index(now, sizes)]))
        limit, best_score = float(start.ms[0, 0]) + slack, -np.inf
        # of more than two branches two at a time, in addition to the blocks that the others keep
        for pair in list(combinations(range(len(sizes)), 2)) * (1 if len(sizes) == 2 else 2):
            combinations_of_pair = np.repeat(best[:, None], prod(sizes[i] for i in pair), axis=1)
            combinations_of_pair[list(pair)] = np.indices([sizes[i] for i in pair]).reshape(2, -1)
            others = [kept[i][best[i]] * widths[i][best[i]] for i in range(len(sizes)) if i not in pair]
            first, second = ((kept[i], widths[i]) for i in pair)
            worth = self._pair_worth(first, second, np.max([np.zeros(len(self._loss)), *others], axis=0)).reshape(-1)
            options = self._offer.options((costs.host,), np.ravel_multi_index(tuple(combinations_of_pair), sizes))
            allowed = self._rules.allowed(options, self._alone_ms)[0] & (options.ms[0] <= limit + 1e-9)
            allowed &= (options.macs >= self._macs[0]) & (options.macs <= self._macs[1])
            # of equal ones the faster; the present one may break a rule by rounding
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
        """Return the worth of the blocks that the most worthy branch lacks, over all that can be left out."""
        missing = [list(missing_blocks(self._segment, b.depth, b.dropped)) for b in design.segments[self._number].branches]
        return float(min(self._loss[blocks].sum() for blocks in missing) / max(self._loss[self._removable].sum(), 1e-30))

    def _pair_worth(self, first: tuple[Floats, Floats], second: tuple[Floats, Floats], others: Floats) -> Floats:
        """Return the worth of each combination of two branches: of the worthier one, and of the blocks that it lacks where others keep them."""

        def of(main: tuple[Floats, Floats], beside: tuple[Floats, Floats]) -> Floats:
            elsewhere = np.maximum(beside[0] * beside[1], others)
            value: Floats = (main[0] @ self._loss)[:, None] * main[1] + OTHER_LOSS * ((1 - main[0]) * self._loss) @ elsewhere.T
            return value

        return np.asarray(np.maximum(of(first, second), of(second, first).T))


def block_sets(segment: Segment, loss: Mapping[int, float]) -> list[tuple[int, ...]]:
    """Return the sets of blocks to leave out: the least important ones of every run of equal blocks; at most `MAX_SETS` sets."""
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
