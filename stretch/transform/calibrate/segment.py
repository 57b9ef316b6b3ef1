"""Calibration of one segment: several fits, and the choice between them on images that none of them saw."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn

from predictors.graph import OpGraph
from predictors.joins import join_of
from stretch.capture import Captured
from stretch.planning.design.branch_design import SegmentDesign, safe_name
from stretch.planning.design.scale import JOIN_CONV
from stretch.planning.network.segments import Segment
from stretch.planning.network.units import Block
from stretch.transform.build import fill_branch, start_joins
from stretch.transform.calibrate.channels import ChannelChoice, find_covariances
from stretch.transform.calibrate.layers import BranchFit, Look, look
from stretch.transform.calibrate.match import Matches, candidate_matches, same_structure
from stretch.transform.calibrate.pixels import pixels_for, rows_of
from stretch.transform.calibrate.regression import Regression
from stretch.transform.calibrate.split import Split
from stretch.transform.calibrate.statistics import rebase_statistics, renewed_trunk
from stretch.transform.calibrate.walk import Batches, trunk_of
from stretch.transform.model import Branch, BranchedSegment
from stretch.transform.width import Heritage

#: Number of images for the choice, and approximate maximum number of runs of the segment per branch.
IMAGES, RUNS = 64, 96
#: Pixels of the output per channel.
PIXELS = 32


def choose_blocks(
    part: SegmentDesign, segment: Segment, sources: Sequence[OpGraph], whole: Branch, there: Batches, ridge: float
) -> list[Matches]:
    """Choose the original's blocks of each branch such that the segment's error is small.

    One block after the other is left out of the original, each time the one without which its output is best told from what
    is left, by the linear map that a join is. Branches whose join adds up, or whose trunks the next segment reads together,
    are chosen one after the other, each given those before it, so that they complement each other. How many blocks of each
    run stay is the design's, blocks that change the shape always do, and where the blocks of a run differ, it stays as it is.
    """
    left_out = [_left_out(segment, source) for source in sources]
    if not any(left_out):
        return [{} for _ in sources]
    images = torch.cat(list(there))
    x = images[torch.arange(min(len(images), IMAGES)) * len(images) // min(len(images), IMAGES)]
    join, known, branch_matches, start = join_of(part.join), [], [], 0
    wanted = _rows(whole(x))
    for scale, source, counts in zip(part.branches, sources, left_out, strict=True):
        partition = slice(start, start + scale.partition) if join.divides else slice(None)
        start += scale.partition
        gone = _choose(segment, whole, x, counts, wanted[:, partition], known, ridge)
        branch_matches.append(_matches(segment, source, gone))
        if join.adds or join.widens:
            known.append(_rows(output_without(whole, gone, x)))
    return branch_matches


def output_without(whole: Branch, gone: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
    """Output of a segment with some blocks replaced by identities."""
    instead: dict[str, str] = {}
    for block in gone:
        instead[block.end] = instead.get(block.start, block.start)
    dropped = {name for block in gone for name in block.ops}
    steps = [(name, [instead.get(read, read) for read in reads]) for name, reads, _ in whole.steps if name not in dropped]
    (source,), (result,) = whole.sources, whole.results
    last = {read: name for name, reads in steps for read in reads} | {instead.get(result, result): ""}
    values = {source: x}
    for name, reads in steps:
        values[name] = whole.get_submodule(name)(*(values[read] for read in reads))
        for read in dict.fromkeys(reads):
            if last[read] == name:
                del values[read]
    return values[instead.get(result, result)]


def _left_out(segment: Segment, source: OpGraph) -> dict[int, int]:
    """Number of blocks that a branch leaves out of each run, for runs with a choice."""
    counts: dict[int, int] = {}
    for block in segment.blocks:
        if block.ops[0] not in source.by_name:
            counts[block.run] = counts.get(block.run, 0) + 1
    return {run: count for run, count in counts.items() if _alike(segment, run)}


def _alike(segment: Segment, run: int) -> bool:
    """Whether the removable blocks of a run have the same structure."""
    first, *others = (block for block in segment.blocks if block.run == run and block.removable)
    return all(same_structure(segment.graph, first, other) for other in others)


def _choose(
    segment: Segment,
    whole: Branch,
    x: torch.Tensor,
    counts: dict[int, int],
    wanted: torch.Tensor,
    known: Sequence[torch.Tensor],
    ridge: float,
) -> list[Block]:
    """Blocks whose removal changes the output least, in their order, with the given number per run."""
    still, gone = dict(counts), set()
    candidates = [i for i, block in enumerate(segment.blocks) if block.removable and block.run in still]
    # greedy one by one if that is cheap; else several at a time
    at_once = max(1, -(-sum(counts.values()) * len(candidates) // (2 * RUNS)))
    while any(still.values()):
        errors = {}
        for i in candidates:
            if i not in gone and still[segment.blocks[i].run]:
                rows = _rows(output_without(whole, [segment.blocks[j] for j in sorted({*gone, i})], x))
                errors[i] = _unexplained([*known, rows], wanted, ridge)
        for i in sorted(errors, key=lambda i: errors[i])[:at_once]:
            run = segment.blocks[i].run
            if still[run]:
                still[run] -= 1
                gone.add(i)
    return [segment.blocks[i] for i in sorted(gone)]


def _unexplained(inputs: Sequence[torch.Tensor], wanted: torch.Tensor, ridge: float) -> float:
    """Squared error of the best linear map over the variance."""
    x = torch.cat(list(inputs), 1)
    sums = Regression(1, x.shape[1], wanted.shape[1], x.device)
    sums.add(x, wanted)
    weight, bias = sums.solve(ridge, torch.zeros(wanted.shape[1], x.shape[1], device=x.device))
    return float((x @ weight.T + bias - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum().clamp_min(1e-12))


def _rows(output: torch.Tensor) -> torch.Tensor:
    return rows_of(output, -(-PIXELS * output.shape[1] // len(output)))


def _matches(segment: Segment, source: OpGraph, gone: Sequence[Block]) -> Matches:
    """Operators of the blocks that a branch has, and those of the blocks that stay; only where they are others."""
    matches: Matches = {}
    for run in {block.run for block in gone}:
        blocks = [block for block in segment.blocks if block.run == run]
        branch_blocks = [block for block in blocks if block.ops[0] in source.by_name]
        stay = [block for block in blocks if block not in gone]
        for mine, other in zip(branch_blocks, stay, strict=True):
            if mine is not other:
                matches.update(zip(mine.ops, other.ops, strict=True))
    return matches


def fit_join(part: SegmentDesign, segment: BranchedSegment, trunks: Sequence[torch.Tensor], target: torch.Tensor, ridge: float) -> None:
    """Put the regressions into the 1×1 convolutions of a join.

    A join that adds up, such as `sum`, regresses the whole trunk on all branches together;
    others regress each branch's part of it, or all of it, on that branch alone. Joins
    without convolutions have no weights.
    """
    join = join_of(part.join)
    if not join.convolves:
        return
    convolutions = [segment.get_submodule(f"{safe_name(b.processor)}.{JOIN_CONV}") for b in part.branches]
    groups = [list(range(len(convolutions)))] if join.adds else [[i] for i in range(len(convolutions))]
    start = 0
    for group in groups:
        convs = [convolutions[i] for i in group]
        prior = torch.cat([conv.weight.flatten(1) for conv in convs], 1)
        stop = start + len(prior)
        sums = Regression(1, prior.shape[1], len(prior), prior.device)
        sums.add(torch.cat([trunks[i] for i in group], 1), target[:, start:stop])
        weight, bias = sums.solve(ridge, prior)
        for conv, part_weight in zip(convs, weight.split([conv.weight.shape[1] for conv in convs], 1), strict=True):
            assert isinstance(conv, nn.Conv2d)
            assert conv.bias is not None
            conv.weight.copy_(part_weight[:, :, None, None])
            # A sum adds up the biases of its branches: the first carries it.
            conv.bias.copy_(bias if conv is convs[0] else torch.zeros_like(bias))
        start = 0 if join.whole else stop


def readout(output: torch.Tensor, target: torch.Tensor, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The map that makes the most of a join without convolutions: of the original's trunk on the concatenated one.

    Those who read the trunk are fitted after it; this says what they can get from it.
    """
    prior = torch.zeros(target.shape[1], output.shape[1], device=target.device)
    sums = Regression(1, prior.shape[1], len(prior), prior.device)
    sums.add(output, target)
    return sums.solve(ridge, prior)


#: A smaller error than this is rounding: the segment computes what the original does.
_SAME = 1e-9

State = dict[str, torch.Tensor]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Trunk:
    """What a join and its error need of a branch."""

    rows: torch.Tensor  # Pixels before the join of the images that fits look at, (rows, channels).
    held: Batches  # All that is before the join of the images for the choice, in batches.


@dataclass(frozen=True)
class Choices:
    """What is chosen on activations, beside ways that the design alone suggests."""

    channels: bool = True  # Which channels a branch keeps (`ChannelChoice`).
    blocks: bool = True  # Which blocks it reproduces (`choose_blocks`).


#: Whatever can be chosen so.
ALL = Choices()


@dataclass(frozen=True)
class Fitted:
    """One branch, fitted in one way."""

    matches: Matches  # Blocks of the original that its own reproduce.
    heritage: Heritage  # What it keeps of the original.
    state: State  # Its weights and statistics.
    trunk: Trunk  # What it computes before the join.


@dataclass
class Job:
    """One segment: what is fitted, to what.

    Args:
        part: The segment's design.
        split: Which batches are for fits, which for the choice.

    Attributes:
        targets: What the original computes, once `calibrate` is done.
        outputs: What the calibrated segment computes.
    """

    captured: Captured
    part: SegmentDesign
    original: Segment
    family: list[Heritage]
    segment: BranchedSegment
    whole: Branch
    arriving: Batches
    there: Batches
    split: Split
    ridge: float
    targets: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    def calibrate(self, layers: bool, choices: Choices) -> tuple[float, float]:
        """Keep what is best on the images for the choice, the segment as it was built among it.

        Args:
            layers: Whether layers are fitted, not statistics and joins alone.

        Returns:
            The errors as built and in the end.
        """
        branches, fitted = self._branches(), self.split.fitted
        ways = self._ways(choices) if layers else []
        options = [_distinct(way[i] for way in ways) for i in range(len(branches))]
        looks = {
            one
            for i, branch_options in enumerate(options)
            for m in branch_options
            for one in self._branch_fit(self.family[i], branches[i], m).looks
        }
        self.targets, rows_by_look = look(self.whole, self.there, fitted, looks)
        # A join reads all branches: no regression of it has more inputs.
        joined = sum(h.branch.graph.by_name[_trunk_name(h, branch)].shape[1] for h, branch in zip(self.family, branches, strict=True))
        self._count = pixels_for(self.split.images, joined)
        self._wanted = torch.cat([rows_of(y, self._count) for y in self.targets[:fitted]])
        before = self._error(self._trunks(branches))
        if before <= _SAME:
            self.outputs = [self.segment(x) for x in self.arriving]
            return before, before
        self._best, self._least = _state(self.segment), before
        renewed = [self._trunk(renewed_trunk(branch, self.arriving, fitted)) for branch in branches]
        start = [_state(branch) for branch in branches]
        self._offer(self.family, renewed)
        if ways:
            self._fit_ways(ways, options, start, rows_by_look, choices)
        self.segment.load_state_dict(self._best)
        self.outputs = rebase_statistics(self.segment, self.arriving)
        return before, self._least

    def _ways(self, choices: Choices) -> list[list[Matches]]:
        """Which blocks of the original the branches reproduce, way by way."""
        sources = [h.branch.source for h in self.family]
        ways = candidate_matches(self.original, sources)
        if choices.blocks:
            fitted = self.there[: self.split.fitted]
            ways.append(choose_blocks(self.part, self.original, sources, self.whole, fitted, self.ridge))
        return _distinct(ways)

    def _fit_ways(
        self,
        ways: Sequence[list[Matches]],
        options: Sequence[Sequence[Matches]],
        start: Sequence[State],
        rows_by_look: Mapping[Look, Batches],
        choices: Choices,
    ) -> None:
        """Fit all layers in every way, and offer what comes of it."""
        kept = (
            self._chosen(options)
            if choices.channels
            else [[built] * len(branch_options) for built, branch_options in zip(self.family, options, strict=True)]
        )
        done = [
            [self._fit(i, start[i], heritage, matches, rows_by_look) for heritage, matches in zip(heritages, branch_options, strict=True)]
            for i, (heritages, branch_options) in enumerate(zip(kept, options, strict=True))
        ]
        best, least = ways[0], float("inf")
        for way in ways:
            chosen = [branch_options[list(matches).index(m)] for branch_options, matches, m in zip(done, options, way, strict=True)]
            error = self._offer_fitted(chosen)
            if error < least:
                best, least = way, error
        # channels by the norm of their weights, where that is something else, for the best way alone
        if any(h is not built for branch_options, built in zip(kept, self.family, strict=True) for h in branch_options):
            self._offer_fitted([self._fit(i, start[i], self.family[i], m, rows_by_look) for i, m in enumerate(best)])

    def _chosen(self, options: Sequence[Sequence[Matches]]) -> list[list[Heritage]]:
        """What each branch keeps for each of its ways, chosen on activations."""
        narrowed = any(h.branch.kept[g] < units for h in self.family for g, units in h.branch.channels.units.items())
        if not narrowed:
            return [[built] * len(branch_options) for built, branch_options in zip(self.family, options, strict=True)]
        there = self.there[: self.split.fitted]
        known = find_covariances(self.whole, self.original.graph, there, self.split.images)
        choice = ChannelChoice(self.captured, self.part, known, self.ridge)
        chosen: list[list[Heritage]] = []
        for i, (built, branch_options) in enumerate(zip(self.family, options, strict=True)):
            others = [before[-1] for before in chosen]
            chosen.append([choice.choose(i, built, matches, others) for matches in branch_options])
        return chosen

    def _offer_fitted(self, fitted: Sequence[Fitted]) -> float:
        """Put fitted branches into the segment, fit their join, and offer that."""
        for branch, one in zip(self._branches(), fitted, strict=True):
            branch.load_state_dict(one.state)
        return self._offer([one.heritage for one in fitted], [one.trunk for one in fitted])

    def _offer(self, family: Sequence[Heritage], trunks: Sequence[Trunk]) -> float:
        """Fit the join of the segment as it is, and keep all of it if it is the best so far; gives its error."""
        start_joins(self.segment, self.part, family)
        fit_join(self.part, self.segment, [trunk.rows for trunk in trunks], self._wanted, self.ridge)
        error = self._error(trunks)
        if error < self._least:
            self._best, self._least = _state(self.segment), error
        return error

    def _branch_fit(self, heritage: Heritage, branch: Branch, matches: Matches) -> BranchFit:
        return BranchFit(heritage, branch, matches, self.split.images)

    def _branches(self) -> list[Branch]:
        return [branch for branch in self.segment.children() if isinstance(branch, Branch)]

    def _fit(self, index: int, start: State, heritage: Heritage, matches: Matches, rows_by_look: Mapping[Look, Batches]) -> Fitted:
        branch, fitted = self._branches()[index], self.split.fitted
        branch.load_state_dict(start)
        if heritage is not self.family[index]:
            fill_branch(branch, self.captured, heritage, self.part.branches[index], matches)
            renewed_trunk(branch, self.arriving[:fitted], fitted)
        elif matches:
            fill_branch(branch, self.captured, heritage, self.part.branches[index], matches, only=matches)
        trunk = self._trunk(self._branch_fit(heritage, branch, matches).run(self.arriving, fitted, rows_by_look, self.ridge))
        return Fitted(matches, heritage, _state(branch), trunk)

    def _trunk(self, batches: Batches) -> Trunk:
        return Trunk(torch.cat([rows_of(x, self._count) for x in batches[: self.split.fitted]]), batches[self.split.held :])

    def _trunks(self, branches: list[Branch]) -> list[Trunk]:
        """Trunks of the branches as they are; rows only where the error needs them."""
        if join_of(self.part.join).widens:
            return [self._trunk([trunk_of(branch, x) for x in self.arriving]) for branch in branches]
        none = torch.empty(0)
        return [Trunk(none, [trunk_of(branch, x) for x in self.arriving[self.split.held :]]) for branch in branches]

    def _reader(self, trunks: Sequence[Trunk]) -> Callable[[torch.Tensor], torch.Tensor]:
        """Makes the segment's output comparable with the original's."""
        if not join_of(self.part.join).widens:
            return lambda output: output
        weight, bias = readout(torch.cat([trunk.rows for trunk in trunks], 1), self._wanted, self.ridge)
        return lambda output: torch.einsum("oc,nc...->no...", weight, output) + bias.reshape(-1, *[1] * (output.dim() - 2))

    def _error(self, trunks: Sequence[Trunk]) -> float:
        """Squared error over the square of the original's output, for the images of the choice."""
        wrong = total = 0.0
        read = self._reader(trunks)
        joins = [branch.get_submodule(JOIN_CONV) if hasattr(branch, JOIN_CONV) else None for branch in self._branches()]
        for number, target in enumerate(self.targets[self.split.held :]):
            parts = [join(t.held[number]) if join else t.held[number] for join, t in zip(joins, trunks, strict=True)]
            output = self.segment.join(*parts) if len(parts) > 1 else parts[0]
            wrong += float((read(output) - target).square().sum(dtype=torch.float64))
            total += float(target.square().sum(dtype=torch.float64))
        return wrong / total if total > 0 else wrong


def _trunk_name(heritage: Heritage, branch: Branch) -> str:
    """The operator that a branch's join reads, or its last."""
    return next((reads[0] for name, reads, _ in branch.steps if name == JOIN_CONV), heritage.branch.graph.output)


def _distinct(ways: Iterable[_T]) -> list[_T]:
    """Each once, in order."""
    distinct: list[_T] = []
    for one in ways:
        if one not in distinct:
            distinct.append(one)
    return distinct


def _state(module: torch.nn.Module) -> State:
    return {key: value.clone() for key, value in module.state_dict().items()}
