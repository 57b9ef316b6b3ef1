"""Which of the original's blocks a branch's blocks reproduce."""

from collections.abc import Sequence

from predictors.graph import OpGraph
from stretch.planning.network.segments import Block, Segment

#: Operator of a branch → operator of the original that it reproduces, where it is another one.
Matches = dict[str, str]


def candidate_matches(segment: Segment, sources: Sequence[OpGraph]) -> list[list[Matches]]:
    """Ways to divide a segment's blocks among its branches.

    A branch that drops blocks keeps the first ones of each run. Its join does better
    if another branch then computes what the last ones add, so that together they
    cover the whole segment. Which branch takes which end is for the data to say.
    """
    late = [_late(segment, source) for source in sources]
    options: list[list[Matches]] = [[{} for _ in sources]]
    for first in range(len(sources)):
        way = [{} if i == first else branch_matches for i, branch_matches in enumerate(late)]
        if way not in options:
            options.append(way)
    return options


def _late(segment: Segment, source: OpGraph) -> Matches:
    """Matches with the last blocks of each run, where they have the same structure."""
    matches: Matches = {}
    for run in dict.fromkeys(block.run for block in segment.blocks):
        blocks = [block for block in segment.blocks if block.run == run]
        kept = [block for block in blocks if block.ops[0] in source.by_name]
        for kept_block, other in zip(reversed(kept), reversed(blocks), strict=False):
            if kept_block is not other and same_structure(segment.graph, kept_block, other):
                matches.update(zip(kept_block.ops, other.ops, strict=True))
    return matches


def same_structure(graph: OpGraph, a: Block, b: Block) -> bool:
    """Whether two blocks are the same operators in the same order, reading each other in the same way."""
    names = {a.start: b.start} | dict(zip(a.ops, b.ops, strict=False))
    pairs = [(graph.by_name[x], graph.by_name[y]) for x, y in zip(a.ops, b.ops, strict=False)]
    return len(a.ops) == len(b.ops) and all(
        x.kind == y.kind and x.shape == y.shape and x.attrs == y.attrs and tuple(names.get(n) for n in x.inputs) == y.inputs
        for x, y in pairs
    )
