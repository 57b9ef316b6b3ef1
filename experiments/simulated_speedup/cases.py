"""One network on one device: what is planned, and the rows that it gives."""

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.lossless.paths import own_precisions, schedule_bound_ms
from experiments.lossless.run import DEVICES, KINDS, MODELS, PROFILES, profile
from experiments.records import Row, Value
from experiments.simulated_speedup.devices import CHANGES, changes_for
from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.cost.compare import Rival
from stretch.planning.plan import plan
from stretch.planning.result import PlanResult

#: Multiply-accumulates of a design over the original's.
MACS = (0.97, 1.03)

#: How stages become segments: each of its own, or several as one where that is faster.
STAGES, MERGED = "stages apart", "stages merged"
MERGES = {STAGES: "never", MERGED: "always"}

#: Exact kinds divide runs of blocks wherever they are, so merging changes nothing about them.
DESIGNS = (
    ("exact", STAGES),
    ("stretched", STAGES),
    ("mixed", STAGES),
    ("stretched", MERGED),
    ("mixed", MERGED),
)

#: The kind of designs that are planned anew where a number of the device is another: it holds all others.
VARIED = ("mixed", MERGED)


@dataclass(frozen=True)
class Case:
    """What one plan is made for."""

    model: str  # Name of the network.
    which: str  # Profile: of version 0.1.0, or as it is now.
    device: str  # The device's id.
    processors: str  # With commas.
    kind: str  # Of designs: exact, stretched or mixed.
    merged: str  # How stages become segments.
    change: str = ""  # What of the device is another; empty for nothing.

    @property
    def place(self) -> str:
        """Device and profile in words."""
        return f"{self.device} {self.processors}, {self.which}"

    @property
    def name(self) -> str:
        """The case in words, which no other has."""
        parts = (MODELS[self.model], self.place, self.kind, self.merged, self.change)
        return ", ".join(part for part in parts if part)


def cases_of(model: str) -> Iterator[Case]:
    """Everything that is planned for a network."""
    for which in PROFILES:
        for device, processors in DEVICES:
            for kind, merged in DESIGNS:
                yield Case(model, which, device, processors, kind, merged)
            for change in changes_for(processors):
                yield Case(model, which, device, processors, *VARIED, change)


def planned_row(case: Case, graph: OpGraph, cuts: str = "stages") -> Row:
    """Plan a case; its figures, all None where there is no design.

    Args:
        case: The case.
        graph: Its network.
        cuts: Where segments may end.
    """
    device = profile(case.which, case.device)
    if case.change:
        device = CHANGES[case.change](device)
    options = own_precisions(device, case.processors)
    config = PlanConfig(macs=MACS, kinds=KINDS[case.kind], merge=MERGES[case.merged], cuts=cuts, **options)
    try:
        result = plan(graph, device, config)
    except InfeasibleError:
        return {"case": case.name} | dict.fromkeys(COLUMNS)
    bound = schedule_bound_ms(graph, device, config.checked(device))
    return {"case": case.name} | _figures(result, bound)


#: Columns of a case beside its name.
COLUMNS = (
    "makespan ms", "low ms", "high ms", "best single", "best single ms", "sequential ms", "speed-up", "speed-up low", "speed-up high",
    "over sequential", "over sequential low", "over sequential high", "faster than all", "ideal ms", "of ideal", "bound ms",
    "efficiency", "moving %", "contention %", "MACs ratio", "meetings", "recommended",
)  # fmt: skip


def _figures(plan_result: PlanResult, bound_ms: float) -> dict[str, Value]:
    """What a plan says, as columns."""
    run, certainty = plan_result.run, plan_result.certainty
    rivals = {rival.name.partition(":")[0]: rival for rival in plan_result.recommendation.rivals}
    single, same = rivals["single"], rivals.get("sequential_same_macs")
    values = (
        round(run.makespan_ms, 3),
        round(certainty.makespan_low_ms, 3),
        round(certainty.makespan_high_ms, 3),
        f"{plan_result.best_single.processor} {plan_result.best_single.precision}",
        round(single.ms, 3),
        None if same is None else round(same.ms, 3),
        *_ratio(single),
        *_ratio(same),
        round(certainty.probability_faster["all"], 3),
        round(plan_result.ideal_split_ms, 3),
        round(plan_result.ideal_split_ms / run.makespan_ms, 3),
        round(bound_ms, 3),
        round(run.efficiency, 3),
        round(100 * run.communication_ms / run.makespan_ms, 1),
        round(100 * _contention_ms(plan_result) / run.makespan_ms, 1),
        round(plan_result.macs_ratio, 4),
        plan_result.design.n_meet,
        plan_result.recommended.replace("_", " "),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _ratio(rival: Rival | None) -> tuple[Value, Value, Value]:
    """A control's time over the branches', and the ends of its 90 % interval."""
    return (None, None, None) if rival is None else (round(rival.ratio, 3), round(rival.low, 3), round(rival.high, 3))


def _contention_ms(plan_result: PlanResult) -> float:
    """What the branches that each segment waits for take longer because others compute, ms."""
    return sum(max(row.branches, key=lambda branch: branch.start_ms + branch.total_ms).contention_ms for row in plan_result.run.segments)
