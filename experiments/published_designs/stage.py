"""The branched stage of paper 003's figure 8 among all designs of that stage."""

from collections.abc import Iterator
from itertools import product

from experiments.lossless.run import profile
from experiments.published_designs.designs_file import PublishedDesign
from experiments.published_designs.predict import BASES, Basis, network
from experiments.published_designs.tables import StageTable, draft_of, original_of
from experiments.records import Row
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.resolve import resolve_design
from stretch.planning.design.widths import aligns
from stretch.planning.plan import Asked

#: The least depth and width of the text, over the original's, and the step of widths that the published ones are multiples of.
FLOOR, STEP = 0.5, 8


def stage_rows(design: PublishedDesign) -> list[Row]:
    """The published stage, its rank, and the fastest one, by every profile.

    Args:
        design: Branched in one stage alone, on two processors.
    """
    return [row for basis in BASES for row in _rows(design, basis)]


def _rows(design: PublishedDesign, basis: Basis) -> Iterator[Row]:
    (stage,) = {i for table in design.branches.values() for i, depth in enumerate(table.depths) if depth}
    device, graph = profile(basis.which, design.device), network(design)
    names = {name: basis.processor(name) for name in design.branches}
    host = names["cpu"]
    asked = Asked.of(graph, device, PlanConfig(processors=tuple(names.values())))
    align = aligns(device, names.values())

    def run(tables: dict[str, StageTable]) -> tuple[float, float]:
        """Milliseconds of the stage, and its multiply-accumulates over the original's."""
        rewrites = {names[name]: each for name, each in design.rewrites.items()}
        made = resolve_design(
            draft_of(graph, {names[name]: table for name, table in tables.items()}, host, design.join, rewrites),
            graph,
            device.id,
            align,
            host,
        )
        (row,) = (each for each in timeline(graph, made, asked.costs).segments if len(each.branches) > 1)
        return row.ms, sum(branch.macs for branch in row.branches) / row.segment.graph.macs

    known = original_of(design.model).table
    depth, width = known.depths[stage], known.widths[stage]
    published, cost = run(design.branches)
    sizes = [(d, w) for d in range(_least(depth), depth + 1) for w in range(_least(width // STEP) * STEP, width + 1, STEP)]
    found = []
    for pair in product(sizes, repeat=2):
        ms, macs = run({name: _one(known, stage, *size) for name, size in zip(names, pair, strict=True)})
        # the paper keeps the cost of the network: designs that do less than the published one would win by that
        if macs >= cost:
            found.append((ms, macs, pair))
    ms, macs, best = min(found)
    words = {name: f"{table.depths[stage]}×{table.widths[stage]}" for name, table in design.branches.items()}
    where = f"{basis.name}: "
    rank = sum(each[0] < published for each in found) + 1
    yield {
        "profile and design": where + ", ".join(f"{name} {size}" for name, size in words.items()) + ", published",
        "ms of the stage": round(published, 3),
        "MACs over the original stage's": round(cost, 3),
        "place": rank,
        "of designs that do as much": len(found),
    }
    yield {
        "profile and design": where + ", ".join(f"{name} {d}×{w}" for name, (d, w) in zip(names, best, strict=True)) + ", fastest",
        "ms of the stage": round(ms, 3),
        "MACs over the original stage's": round(macs, 3),
        "place": 1,
        "of designs that do as much": len(found),
    }


def _least(count: int) -> int:
    """The fewest that the floor leaves."""
    return -int(-count * FLOOR // 1)


def _one(known: StageTable, stage: int, depth: int, width: int) -> StageTable:
    """A table of one stage alone."""
    zeros = [0] * len(known.depths)
    return StageTable(
        tuple(depth if i == stage else 0 for i in range(len(zeros))),
        tuple(width if i == stage else own for i, own in enumerate(known.widths)),
    )
