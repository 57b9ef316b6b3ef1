"""The branched stage of paper 003's figure 8 among all designs of that stage."""

from collections.abc import Iterator, Mapping
from itertools import product

from experiments.published_designs.designs_file import PublishedDesign
from experiments.published_designs.predict import BASES, Basis, network, profile
from experiments.published_designs.tables import original_of, stage_ends
from experiments.records import Row
from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import SegmentTime, timeline
from stretch.planning.design.branch_design import BranchDraft, DesignDraft, SegmentDraft
from stretch.planning.design.scale import aligns, resolve_design
from stretch.planning.network.segments import cut_segment
from stretch.planning.plan import PlanningProblem

#: The least depth and width of the text, over the original's, and the step of widths that the published ones are multiples of.
FLOOR, STEP = 0.5, 8
#: Multiply-accumulates over the published design's: one that does less would be faster for that alone.
COST = (1.0, 1.1)

#: Depth and width of a branch.
Size = tuple[int, int]


class Stage:
    """A stage as a network of its own, on a device.

    Args:
        design: Branched in that stage alone.
        basis: What to predict it from.
    """

    def __init__(self, design: PublishedDesign, basis: Basis) -> None:
        (at,) = {i for table in design.branches.values() for i, depth in enumerate(table.depths) if depth}
        known, whole = original_of(design.model), network(design)
        ends = stage_ends(whole, known)
        self.size: Size = known.table.depths[at], known.table.widths[at]
        self.published: dict[str, Size] = {name: (table.depths[at], table.widths[at]) for name, table in design.branches.items()}
        self._design = design
        self._device = profile(basis, design.device)
        self._graph: OpGraph = cut_segment(whole, f"s{at + 1}", ends[at], ends[at + 1]).graph
        self._align = aligns(self._device, design.branches)
        self._costs = PlanningProblem.of(self._graph, self._device, PlanConfig(processors=design.processors)).costs
        self._join = design.join or known.join

    def run(self, sizes: Mapping[str, Size]) -> SegmentTime:
        """A design of the stage as it is predicted to run.

        Args:
            sizes: Of each branch, by the file's name of its processor.
        """
        branches = [
            BranchDraft(processor=name, depth=d, width=w, align=STEP, rewrites=self._design.rewrites.get(name, ()))
            for name, (d, w) in sizes.items()
        ]
        segment = SegmentDraft(
            branches=branches,
            name="stage",
            start=self._graph.input.name,
            end=self._graph.output,
            join=self._join if len(branches) > 1 else None,
        )
        host = branches[0].processor
        built = resolve_design(DesignDraft(segments=[segment]), self._graph, self._device.id, self._align, host)
        return timeline(self._graph, built, self._costs).segments[0]

    def cost(self, sizes: Mapping[str, Size]) -> int:
        """Multiply-accumulates of branches, without their join."""
        return sum(branch.macs for branch in self.run(sizes).branches)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the original stage."""
        return self._graph.macs


def stage_rows(design: PublishedDesign) -> list[Row]:
    """The published stage, its rank, and the fastest one, by every profile.

    Args:
        design: Branched in one stage alone, on two processors.
    """
    return [row for basis in BASES for row in _rows(Stage(design, basis), basis)]


def _rows(stage: Stage, basis: Basis) -> Iterator[Row]:
    depth, width = stage.size
    sizes = [(d, w) for d in range(_least(depth), depth + 1) for w in range(_least(width // STEP) * STEP, width + 1, STEP)]
    costs = {name: {size: stage.cost({name: size}) for size in sizes} for name in stage.published}
    wanted = sum(costs[name][size] for name, size in stage.published.items())
    rows = []
    for pair in product(sizes, repeat=len(costs)):
        chosen = dict(zip(costs, pair, strict=True))
        if COST[0] <= sum(costs[name][size] for name, size in chosen.items()) / wanted <= COST[1]:
            rows.append((stage.run(chosen).ms, pair, chosen))
    published = stage.run(stage.published)
    fastest = min(rows)
    for name, sizes_of, ms in (("published", stage.published, published.ms), ("fastest", fastest[2], fastest[0])):
        yield {
            "profile and design": f"{basis.name}: {', '.join(f'{p} {d}×{w}' for p, (d, w) in sizes_of.items())}, {name}",
            "ms of the stage": round(ms, 3),
            "over the fastest": round(ms / fastest[0], 3),
            "MACs over the original stage's": round(sum(branch.macs for branch in stage.run(sizes_of).branches) / stage.macs, 3),
            "place": sum(row[0] < ms for row in rows) + 1,
            "of designs of that cost": len(rows),
        }


def _least(count: int) -> int:
    """The fewest that the floor leaves."""
    return -int(-count * FLOOR // 1)
