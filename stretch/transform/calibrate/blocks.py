"""Choice of the original's blocks that the branches reproduce, by the error of the segment's output without the others."""

from collections.abc import Sequence

import torch

from predictors.graph import OpGraph
from predictors.joins import join_of
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.network.segments import Segment
from stretch.planning.network.units import Block
from stretch.transform.calibrate.match import Matches, same_structure
from stretch.transform.calibrate.pixels import rows_of
from stretch.transform.calibrate.regression import Regression
from stretch.transform.calibrate.walk import Batches
from stretch.transform.model import Branch

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
