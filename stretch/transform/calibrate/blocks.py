"""Choose the original's blocks that each branch of a segment reproduces, by images."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from predictors.graph import OpGraph
from predictors.joins import join_of
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.network.segments import Block, Segment
from stretch.transform.calibrate.layers import Matches, Regression, rows_of, same_structure
from stretch.transform.calibrate.statistics import Batches
from stretch.transform.model import Branch
from stretch.transform.tensors import evenly_spread

#: Number of images for the choice, and approximate maximum number of runs of the segment per branch.
IMAGES, RUNS = 64, 96
#: Number of blocks whose removal is tried again after another removal: those with the lowest error before.
TRIED = 4
#: Number of output pixels per channel for the regressions.
PIXELS = 32


def choose_blocks(
    part: SegmentDesign, segment: Segment, sources: Sequence[OpGraph], original_branch: Branch, original_inputs: Batches, ridge: float
) -> list[Matches]:
    """Choose the blocks of the original for each branch such that the segment's error is small.

    Blocks are removed from the original one by one. Each step removes the block without which the remaining segment predicts the output
    best by a linear map, as a join does. Branches are chosen in order, each given those before it, if a join adds up or the next
    segment reads all backbones together, so that they complement each other. The design sets the number of blocks
    per run; blocks that change the shape always stay, and runs of different blocks are left unchanged.
    """
    left_out = [_dropped_counts(segment, source) for source in sources]
    if not any(left_out):
        return [{} for _ in sources]
    chosen = evenly_spread(torch.cat(list(original_inputs)), IMAGES)
    whole = ReducedSegment.of(segment, original_branch, chosen.split(len(original_inputs[0])))
    runs = {run for counts in left_out for run in counts}
    alone = {i: whole.without(i).rows for i, block in enumerate(segment.blocks) if block.removable and block.run in runs}
    join, outputs, branch_matches, start = join_of(part.join), list[torch.Tensor](), [], 0
    for scale, source, counts in zip(part.branches, sources, left_out, strict=True):
        partition = slice(start, start + scale.partition) if join.divides else slice(None)
        start += scale.partition
        reduced = _choose(whole, alone, counts, partition, outputs, ridge)
        branch_matches.append(_matches(segment, source, [segment.blocks[i] for i in sorted(reduced.removed)]))
        if join.adds or join.widens:
            outputs.append(reduced.rows)
    return branch_matches


@dataclass(frozen=True)
class ReducedSegment:
    """A segment of the original with some blocks replaced by identities, and its values on some images."""

    segment: Segment
    original_branch: Branch
    starts: list[dict[str, torch.Tensor]]  # Input tensors of blocks by name, for each batch.
    outputs: Batches
    removed: frozenset[int] = frozenset()  # Indices of the removed blocks.

    @classmethod
    def of(cls, segment: Segment, original_branch: Branch, batches: Batches) -> "ReducedSegment":
        """Return the segment with all its blocks."""
        starts = [{original_branch.sources[0]: x} for x in batches]
        return cls(segment, original_branch, starts, [_run_without(segment, original_branch, (), values, 0) for values in starts])

    def without(self, number: int) -> "ReducedSegment":
        """Remove one more block; only the operators after that block run again."""
        block, removed, starts = self.segment.blocks[number], self.removed | {number}, [dict(values) for values in self.starts]
        behind = 1 + next(i for i, (name, _, _) in enumerate(self.original_branch.steps) if name == block.end)
        for values in starts:
            values[block.end] = values[block.start]
        outputs = [_run_without(self.segment, self.original_branch, removed, values, behind) for values in starts]
        return replace(self, starts=starts, outputs=outputs, removed=removed)

    @property
    def rows(self) -> torch.Tensor:
        """Sample of the output's pixels, (rows, channels)."""
        images = sum(map(len, self.outputs))
        return torch.cat([rows_of(y, -(-PIXELS * y.shape[1] // images)) for y in self.outputs])


def _run_without(
    segment: Segment, original_branch: Branch, removed: Collection[int], starts: dict[str, torch.Tensor], first: int
) -> torch.Tensor:
    """Run a segment from step `first` on, with some blocks replaced by identities; input tensors of blocks are stored in `starts`."""
    ends = {segment.blocks[i].end: segment.blocks[i].start for i in removed}
    dropped = {name for i in removed for name in segment.blocks[i].ops}
    begun, values = {block.start for block in segment.blocks}, dict(starts)
    for name, reads, done in original_branch.steps[first:]:
        if name in ends:
            values[name] = values[ends[name]]
        elif name not in dropped:
            values[name] = original_branch.get_submodule(name)(*(values[read] for read in reads))
            for old in done:
                del values[old]
        if name in begun and name in values:
            starts[name] = values[name]
    return values[original_branch.results[0]]


def _dropped_counts(segment: Segment, source: OpGraph) -> dict[int, int]:
    """Return the number of blocks that a branch leaves out of each run; only for runs with a choice."""
    counts: dict[int, int] = {}
    for block in segment.blocks:
        if block.ops[0] not in source.by_name:
            counts[block.run] = counts.get(block.run, 0) + 1
    return {run: count for run, count in counts.items() if _is_repeated(segment, run)}


def _is_repeated(segment: Segment, run: int) -> bool:
    """Return whether the removable blocks of a run have the same structure."""
    first, *others = (block for block in segment.blocks if block.run == run and block.removable)
    return all(same_structure(segment.graph, first, other) for other in others)


def _choose(
    whole: ReducedSegment,
    alone: Mapping[int, torch.Tensor],
    counts: dict[int, int],
    partition: slice,
    outputs: Sequence[torch.Tensor],
    ridge: float,
) -> ReducedSegment:
    """Remove the given number of blocks per run, each time those whose removal changes the output least."""
    blocks, remaining, target = whole.segment.blocks, dict(counts), whole.rows[:, partition]
    errors = {i: _residual_variance([*outputs, rows], target, ridge) for i, rows in alone.items() if blocks[i].run in counts}
    # remove blocks one by one if that is cheap, otherwise several at a time
    at_once = max(1, -(-sum(counts.values()) * len(errors) // (2 * RUNS)))
    best = whole
    while any(remaining.values()):
        for i in sorted(errors, key=lambda i: errors[i])[:at_once]:
            if remaining[blocks[i].run]:
                remaining[blocks[i].run] -= 1
                best = best.without(i)
        errors = {i: error for i, error in errors.items() if i not in best.removed and remaining[blocks[i].run]}
        # removals never make another block less important, so blocks with large errors are not tried again
        for i in sorted(errors, key=lambda i: errors[i])[: max(at_once, TRIED)] if any(remaining.values()) else ():
            errors[i] = _residual_variance([*outputs, best.without(i).rows], target, ridge)
    return best


def _residual_variance(inputs: Sequence[torch.Tensor], target: torch.Tensor, ridge: float) -> float:
    """Return the squared error of the best linear map, relative to the variance of the target."""
    x = torch.cat(list(inputs), 1)
    sums = Regression(1, x.shape[1], target.shape[1], x.device)
    sums.add(x, target)
    weight, bias = sums.solve(ridge, torch.zeros(target.shape[1], x.shape[1], device=x.device))
    return float((x @ weight.T + bias - target).square().sum() / (target - target.mean(0)).square().sum().clamp_min(1e-12))


def _matches(segment: Segment, source: OpGraph, removed: Sequence[Block]) -> Matches:
    """Return the operators of a branch's blocks, with the operators of the blocks that they reproduce instead."""
    matches: Matches = {}
    for run in {block.run for block in removed}:
        blocks = [block for block in segment.blocks if block.run == run]
        branch_blocks = [block for block in blocks if block.ops[0] in source.by_name]
        remaining = [block for block in blocks if block not in removed]
        for branch_block, original_block in zip(branch_blocks, remaining, strict=True):
            if branch_block is not original_block:
                matches.update(zip(branch_block.ops, original_block.ops, strict=True))
    return matches
