"""Which blocks the branches of a stretched segment keep, where it is known what the network loses without each of them.

A depth alone says how many blocks stay, and takes them evenly from all runs of equal blocks. But blocks differ much in what they
matter and in the time they take. So one branch keeps those that matter most for their time, and the others keep some that it lacks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import prod

import numpy as np

from stretch.planning.cost.branch import BranchCost, Floats
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDesign, BranchScale
from stretch.planning.design.scale import legal_widths, missing_blocks
from stretch.planning.network.segments import Segment, backbone_of
from stretch.planning.result import PlanResult
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
    """A plan's design, whose stretched segments keep the blocks that matter most, in the time that the plan takes or its request allows.

    Meeting points, processors and joins stay. Designs for another objective than latency, and those whose branches lack no blocks, stay as they are.

    Returns:
        The design, and what to say of it.
    """
    config, costs, design = planned.config, planned.costs, planned.design
    said: list[str] = []
    if not config.parsed_objective.only_latency or config.widens or config.params is not None:
        return design, said
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
            before, after = (search.loss_of(some) for some in (design, best))
            said.append(
                f"blocks of `{segment.name}` were chosen by what the network loses on images without each: its main branch lacks {after:.0%} "
                f"of that, and would lack {before:.0%} of it with blocks taken evenly"
            )
            design = best
    return design, said


def shorten_single(planned: PlanResult, losses: Losses) -> tuple[BranchDesign, float] | None:
    """The plain network on the best single processor without the blocks of its stretched segments that matter least, as fast there as the plan is.

    Returns:
        Its design, and the worth of its missing blocks over all that can be left out there; None if no blocks make it so fast.
    """
    single, costs, parts, worth = planned.best_single, planned.costs, [], np.zeros(2)
    whole = {row.segment.name: costs.whole(row.segment, single.processor).ms for row in planned.run.segments}
    stretched = [row.segment.name for row in planned.run.segments if not row.design.whole and row.design.division is None]
    # each stretched segment saves its part of the time
    share = (single.ms - planned.run.makespan_ms) / max(sum(whole[name] for name in stretched), 1e-30)
    for row in planned.run.segments:
        segment, removed = row.segment, tuple[int, ...]()
        if segment.name in stretched:
            loss = losses(planned.design, segment)
            counts = {n: min(value, FULL_SLACK) for n, value in loss.items()}
            most = whole[segment.name] * (1 - share)
            fast = [
                some
                for some in block_sets(segment, loss)
                if costs.branch(segment, single.processor, segment.depth - len(some), segment.width, None, some).ms <= most
            ]
            if not fast:
                return None
            removed = min(fast, key=lambda some: sum(counts[n] for n in some))
            worth += np.array([sum(counts[n] for n in removed), sum(counts.values())])
        branch = BranchScale(
            single.processor, segment.depth - len(removed), segment.width, align=costs.align(single.processor), dropped=removed
        )
        parts.append(replace(row.design, branches=(branch,), join="none"))
    sides = tuple(replace(side, processor=single.processor) for side in planned.design.sides)
    return replace(planned.design, segments=tuple(parts), sides=sides), float(worth[0] / max(worth[1], 1e-30))


class _BlockSearch:
    """The best blocks of one stretched segment of a design.

    A block is worth what is lost without it, and worth adds up: the sum ranks calibrated networks better than what is lost without several blocks
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
        offered = [widths_of_branch for widths_of_branch in sets if segment.depth - len(widths_of_branch) in depths]
        processors = tuple(b.processor for b in part.branches)
        widths = []
        for b in part.branches:
            legal = rules.widths(segment, legal_widths(costs.rewritten(segment, b.processor), costs.align(b.processor)))
            widths.append(sorted({*evenly_spaced(legal, MAX_WIDTHS), b.width}))
        fixed_scales = tuple((widths_of_branch, offered) for widths_of_branch in widths)
        self._offer = LazyOptions(segment, processors, part.join, segment.in_width, costs, rules, fixed_scales=fixed_scales)
        self._alone_ms = min(costs.whole(segment, processor).ms for processor in processors)
        self._loss = np.array([min(loss.get(n, FULL_SLACK), FULL_SLACK) for n in range(segment.depth)])
        self._removable = np.array([n in loss for n in range(segment.depth)])
        low, high = (share * backbone_of(planned.graph).graph.macs for share in planned.config.macs)
        others = sum(row.macs for row in timeline(planned.graph, design, costs).segments) - planned.run.segments[number].macs
        self._macs = low - others, high - others

    def choose(self, slack: float) -> BranchDesign | None:
        """The design with the best blocks that takes up to `slack` ms longer; None where there is no better one."""
        candidates, costs = self._offer.candidates, self._costs
        sizes = [len(branch_candidates) for branch_candidates in candidates]
        now = [
            [(cost.width, cost.dropped) for cost in branch_candidates].index(at)
            for branch_candidates, at in zip(candidates, self._now, strict=True)
        ]
        best = np.array(now)
        kept, widths = zip(*(self._kept_blocks(branch_candidates) for branch_candidates in candidates), strict=True)
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
            # of equal ones the faster; what is there may break a rule by rounding
            score = np.where(allowed, worth - 1e-6 * options.ms[0] / limit, -np.inf)
            at = int(score.argmax())
            before = float(worth[np.ravel_multi_index([best[i] for i in pair], [sizes[i] for i in pair])])
            if score[at] > max(before, best_score) + 1e-5:
                best, best_score = combinations_of_pair[:, at], float(score[at])
        if (best == now).all():
            return None
        chosen = self._offer.options((costs.host,), np.array([np.ravel_multi_index(best.tolist(), sizes)])).design(0, costs)
        parts = (chosen if i == self._number else other for i, other in enumerate(self._design.segments))
        return replace(self._design, segments=tuple(parts))

    def loss_of(self, design: BranchDesign) -> float:
        """Return the worth of the blocks that the most worthy branch lacks, over all that can be left out."""
        missing = [list(missing_blocks(self._segment, b.depth, b.dropped)) for b in design.segments[self._number].branches]
        return float(min(self._loss[blocks].sum() for blocks in missing) / max(self._loss[self._removable].sum(), 1e-30))

    def _kept_blocks(self, candidates: Sequence[BranchCost]) -> tuple[Floats, Floats]:
        """Which blocks each candidate keeps, 1 or 0 (candidates × blocks), and its width over the segment's (candidates × 1)."""
        kept = np.ones((len(candidates), len(self._loss)))
        for row, cost in zip(kept, candidates, strict=True):
            row[list(cost.dropped)] = 0.0
        return kept, np.array([[cost.width / self._segment.width] for cost in candidates])

    def _pair_worth(self, first: tuple[Floats, Floats], second: tuple[Floats, Floats], others: Floats) -> Floats:
        """The worth of each combination of two branches: of the worthier one, and of the blocks that it lacks where others keep them."""

        def of(main: tuple[Floats, Floats], beside: tuple[Floats, Floats]) -> Floats:
            elsewhere = np.maximum(beside[0] * beside[1], others)
            value: Floats = (main[0] @ self._loss)[:, None] * main[1] + OTHER_LOSS * ((1 - main[0]) * self._loss) @ elsewhere.T
            return value

        worth: Floats = np.maximum(of(first, second), of(second, first).T)
        return worth


def block_sets(segment: Segment, loss: Mapping[int, float]) -> list[tuple[int, ...]]:
    """Sets of blocks to leave out: of every run of equal blocks so many, those that matter least; at most `MAX_SETS` of them."""
    runs: dict[int, list[int]] = {}
    for number in sorted(loss, key=lambda n: (loss[n], -n)):
        runs.setdefault(segment.blocks[number].run, []).append(number)
    counts = [list(range(len(units) + 1)) for units in runs.values()]
    while prod(map(len, counts)) > MAX_SETS:
        longest = max(range(len(counts)), key=lambda i: len(counts[i]))
        counts[longest] = evenly_spaced(counts[longest], len(counts[longest]) - 1)
    return [tuple(sorted(n for units, count in zip(runs.values(), some, strict=True) for n in units[:count])) for some in product(*counts)]
