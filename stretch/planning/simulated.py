"""Predicted runs as networks of a simulation: subgraphs, joins and what each takes, without a bundle."""

from dataclasses import dataclass, field
from math import prod

from predictors.errors import UsageError
from predictors.graph import OpGraph
from scheduler.placement.place import Placement
from scheduler.placement.processors import device_dispatch
from scheduler.runtime.plan import PlannedJoin, PlannedSubgraph, plan_of
from scheduler.simulate.networks import Network
from scheduler.simulate.times import Doing, StepTime
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.times import BranchTime, SegmentTime, Timeline
from stretch.planning.search.controls import Single


@dataclass
class _Steps:
    """Steps of a plan while it is made."""

    subgraphs: list[PlannedSubgraph] = field(default_factory=list)
    joins: list[PlannedJoin] = field(default_factory=list)
    times: dict[str, StepTime] = field(default_factory=dict)

    def add(
        self, name: str, segment: str, processor: str, reads: tuple[str, ...], parts: tuple[tuple[Doing, float], ...], contention: float
    ) -> str:
        """A subgraph; gives the tensor that it writes."""
        self.subgraphs.append(PlannedSubgraph(name, segment, "", processor, reads, (f"{name}.y",)))
        self.times[name] = StepTime(processor, tuple(part for part in parts if part[1]) or (("subgraph", 0.0),), contention)
        return f"{name}.y"

    def network(self, name: str, outputs: tuple[str, ...], costs: Costs) -> Network:
        """All of it."""
        processors = {each.processor for each in self.subgraphs}
        places = {processor: _place(processor, costs) for processor in processors}
        plan = plan_of(("x",), outputs, self.subgraphs, self.joins)
        return Network(name, plan, {each.name: places[each.processor] for each in self.subgraphs}, self.times)


def network_of(name: str, run: Timeline, costs: Costs) -> Network:
    """A predicted run as a network: a subgraph for each branch of each segment, and for each segment that stays whole."""
    if run.sides:
        raise UsageError(f"{name} has several inputs or outputs, which are not planned together with another network", "plan it alone")
    steps, arriving = _Steps(), ("x",)
    for number, row in enumerate(run.segments):
        last = run.output_ms if number == len(run.segments) - 1 else 0.0
        arriving = _segment(steps, f"{number}.{row.design.name}", row, arriving, last, costs)
    return steps.network(name, arriving, costs)


def single_network(name: str, graph: OpGraph, single: Single, costs: Costs) -> Network:
    """A whole network on one processor as a network of one subgraph."""
    estimate = costs.predictor.predict(graph, single.processor, single.precision)
    alone = costs.at(single.processor, single.precision)
    family = costs.predictor.device.processor(single.processor).family
    into = sum(alone.transfer(costs.host, single.processor, prod(op.shape)) for op in graph.inputs)
    out = single.ms - estimate.computing_ms - into
    steps = _Steps()
    contention = estimate.contended_ms / estimate.computing_ms if estimate.computing_ms else 1.0
    written = steps.add("all", "all", family, ("x",), (("in", into), ("subgraph", estimate.computing_ms), ("out", out)), contention)
    return steps.network(name, (written,), costs)


def _segment(steps: _Steps, name: str, row: SegmentTime, arriving: tuple[str, ...], output_ms: float, costs: Costs) -> tuple[str, ...]:
    """The steps of a segment; gives the tensors that the next one reads."""
    written: list[str] = []
    for number, branch in enumerate(row.branches):
        reads = tuple(written[each] for each in branch.waits) or arriving
        out = branch.out_ms + (output_ms if number == len(row.branches) - 1 else 0.0)
        parts: tuple[tuple[Doing, float], ...] = (("in", branch.in_ms), ("subgraph", branch.ms + branch.contention_ms), ("out", out))
        processor = branch.scale.processor
        family = costs.predictor.device.processor(processor).family
        written.append(steps.add(f"{name}.{number}.{family}", name, family, reads, parts, _contention(row, branch)))
    if not row.join_ms:
        return tuple(written)
    joined = f"{name}.join"
    host = costs.predictor.device.processor(costs.host).family
    steps.joins.append(PlannedJoin(joined, name, "sum", tuple(written), f"{joined}.y", host))
    steps.times[joined] = StepTime(host, (("join", row.join_ms),))
    return (f"{joined}.y",)


def _contention(row: SegmentTime, branch: BranchTime) -> float:
    """Contention factor of a subgraph; the time of a branch contains contention already."""
    if len({each.scale.processor for each in row.branches}) > 1 or not branch.estimate.computing_ms:
        return 1.0
    return branch.estimate.contended_ms / branch.estimate.computing_ms


def _place(processor: str, costs: Costs) -> Placement:
    backend = costs.predictor.device.processor(processor).profile.backend
    return Placement(processor, backend, (), processor, device_dispatch(processor), False, "predicted")
