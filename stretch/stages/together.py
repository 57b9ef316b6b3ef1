"""Designs of two networks for concurrent runs: the pair of candidates whose simulated concurrent run is the best.

Candidates are different designs for every set of processors, and the whole network on each processor. Every pair is
simulated; their subgraphs take turns as in a `scheduler.Scheduler`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product
from operator import attrgetter
from typing import Literal, get_args

import msgspec

from predictors.devices import DeviceProfile
from predictors.errors import InfeasibleError, UsageError
from predictors.graph import OpGraph
from predictors.predictor import Estimate
from predictors.side_by_side import contention_factors
from predictors.structs import Answer
from scheduler.bundle.manifest import JoinEntry
from scheduler.progress import Progress, silent
from scheduler.runtime.plan import PlannedSubgraph, build_plan
from scheduler.simulate.clock import Clock, SimulationResult, TurnTaking
from scheduler.simulate.networks import Network, StepTime, device_placement
from scheduler.simulate.scene import Scene
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import Timeline, timeline
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.pareto import describe_segment, trace_diverse
from stretch.planning.plan import PlanningProblem, design_of
from stretch.planning.result import ranked_singles


def network_of(name: str, run: Timeline, costs: Costs) -> Network:
    """Return a predicted run as a network for simulations, with one subgraph per branch or whole segment."""
    if run.sides:
        raise UsageError(f"{name} has several inputs or outputs, which are not planned together with another network", "plan it alone")
    device, subgraphs, joins = costs.predictor.device, list[PlannedSubgraph](), list[JoinEntry]()
    times: dict[str, StepTime] = {}
    arriving: tuple[str, ...] = ("x",)
    for number, row in enumerate(run.segments):
        segment, written = f"{number}.{row.design.name}", list[str]()
        several = len({branch.scale.processor for branch in row.branches}) > 1
        for i, branch in enumerate(row.branches):
            family = device.processor(branch.scale.processor).family
            begins = not number and not branch.waits and all(time.processor != family for time in times.values())
            step, reads = f"{segment}.{i}.{family}", tuple(written[wait] for wait in branch.waits) or arriving
            subgraphs.append(PlannedSubgraph(step, segment, "", family, reads, (f"{step}.y",)))
            last = branch is row.branches[-1] and row is run.segments[-1]
            out_ms = branch.out_ms + (run.output_ms if last else 0.0)
            # the time of a branch already includes contention
            contention = None if several else contention_factors(device, family, branch.estimate.computing.shares, device.processors)
            start_ms = run.handover.ms if begins else 0.0
            times[step] = StepTime.of(family, branch.in_ms, branch.ms + branch.contention_ms, out_ms, contention, start_ms=start_ms)
            written.append(f"{step}.y")
        arriving = tuple(written)
        if row.join_ms:
            joined, host = f"{segment}.join", device.processor(costs.host).family
            joins.append(JoinEntry(joined, segment, "sum", arriving, f"{joined}.y", host))
            times[joined], arriving = StepTime(host, (("join", row.join_ms),)), (f"{joined}.y",)
    places = {subgraph.name: device_placement(subgraph.processor, device) for subgraph in subgraphs}
    return Network(name, build_plan(("x",), arriving, subgraphs, joins), places, times)


def single_network(name: str, estimate: Estimate, device: DeviceProfile) -> Network:
    """Return a whole network on one processor as a network for simulations, with one subgraph."""
    family = device.processor(estimate.processor).family
    contention = contention_factors(device, family, estimate.computing.shares, device.processors)
    time = StepTime.of(family, estimate.handover_ms, estimate.computing_ms, 0.0, contention)
    plan = build_plan(("x",), ("all.y",), [PlannedSubgraph("all", "all", "", family, ("x",), ("all.y",))], ())
    return Network(name, plan, {"all": device_placement(family, device)}, {"all": time})


#: Objective of a pair.
Goal = Literal["makespan", "latency", "throughput"]
GOALS: tuple[Goal, ...] = get_args(Goal)

#: Number of inferences of each network in a simulation of throughput, and number in flight.
ROUNDS, IN_FLIGHT = 8, 2


@dataclass(frozen=True)
class Candidate:
    """One option to run a network."""

    network: Network  # The network for simulations.
    design: BranchDesign | None  # The design; None for the whole network on one processor.
    processors: tuple[str, ...]  # Families of its processors.
    alone_ms: float  # Time of an inference without another network.


@dataclass(frozen=True)
class CandidatePair:
    """Two candidates with the results of their concurrent simulation: one inference of each, and for throughput many."""

    first: Candidate
    second: Candidate
    latencies_ms: tuple[float, float]  # Latency of one inference of each; both start at once.
    makespan_ms: float  # Time until both have ended.
    #: Inferences of each network per second, with several of each in flight; None if not simulated.
    pairs_per_second: float | None

    def value(self, goal: Goal) -> float:
        """Return the value to minimise, ms."""
        if goal == "makespan":
            return self.makespan_ms
        if goal == "latency":
            return sum(self.latencies_ms) / 2
        assert self.pairs_per_second is not None
        return 1e3 / self.pairs_per_second


@dataclass(frozen=True)
class BestPair:
    """The best pair, and its baselines."""

    best: CandidatePair  # The best of all pairs of candidates.
    fixed: CandidatePair  # The best pair with each network undivided on one processor.
    #: The fastest candidate of each network alone; in sequence they take the sum of their times.
    alone: tuple[Candidate, Candidate]
    goal: Goal  # Objective of the pair.
    candidates: tuple[int, int]  # Number of candidates of each network.
    device: DeviceProfile  # The device.
    processors: tuple[str, ...]  # Allowed processors.

    @property
    def sequential(self) -> CandidatePair:
        """The networks in sequence, each as its fastest candidate; the shorter one runs first."""
        times = tuple(item.alone_ms for item in self.alone)
        makespan = sum(times)
        late = makespan if times[0] > times[1] else times[0]
        return CandidatePair(*self.alone, (late, makespan if late == times[0] else times[1]), makespan, 1e3 / makespan)


def candidates(graph: OpGraph, device: DeviceProfile, config: PlanConfig, top: int, within: float) -> list[Candidate]:
    """Return the candidates of a network for concurrent runs.

    Each set of processors contributes up to `top` designs with at most `within` times the best design's time.
    """
    request = PlanningProblem.of(graph, device, config)
    processors, precision = request.config.processors, request.config.precision
    result: list[Candidate] = []
    planned: set[BranchDesign] = set()
    for size in range(2, len(processors) + 1):
        for subset in combinations(processors, size):
            changed = msgspec.structs.replace(config, processors=subset, precision={name: precision[name] for name in subset})
            with suppress(InfeasibleError):
                problem = PlanningProblem.of(graph, device, changed)
                for found in trace_diverse(problem, top, within)[1]:
                    design = design_of(problem, found)
                    if design not in planned:
                        planned.add(design)
                        network = network_of(graph.name, timeline(graph, design, request.costs), request.costs)
                        result.append(_candidate(network, design))
    families: set[str] = set()
    for single in ranked_singles(graph, request.costs, processors):
        family = device.processor(single.processor).family
        if family not in families:
            families.add(family)
            result.append(_candidate(single_network(graph.name, single, device), None))
    return result


def best_pair(
    first: Sequence[Candidate],
    second: Sequence[Candidate],
    device: DeviceProfile,
    processors: tuple[str, ...],
    goal: Goal = "makespan",
    progress: Progress = silent,
) -> BestPair:
    """Return the pair of candidates with the best concurrent run, by makespan, mean latency, or throughput."""

    def value(pair: CandidatePair) -> float:
        return pair.value(goal)

    pairs: list[CandidatePair] = []
    for number, (one, other) in enumerate(product(first, second), 1):
        pairs.append(simulate_pair(one, other, throughput=goal == "throughput"))
        if number % 100 == 0:
            progress(f"{number} of {len(first) * len(second)} pairs")
    fixed = [pair for pair in pairs if pair.first.design is None and pair.second.design is None]
    alone = (min(first, key=attrgetter("alone_ms")), min(second, key=attrgetter("alone_ms")))
    counts = (len(first), len(second))
    return BestPair(min(pairs, key=value), min(fixed, key=value), alone, goal, counts, device, processors)


def simulate_pair(first: Candidate, second: Candidate, *, throughput: bool = False) -> CandidatePair:
    """Simulate the concurrent run of two candidates."""

    def simulated(scene: Scene) -> SimulationResult:
        return Clock(first.network, scene, [(second.network, scene)], sharing=TurnTaking()).run(all_clients=True)

    once = simulated(Scene())
    rate = 1e3 * ROUNDS / simulated(Scene(runs=ROUNDS, in_flight=IN_FLIGHT)).elapsed_ms if throughput else None
    first_ms, second_ms = (user.latencies_ms[0] for user in once.clients)
    return CandidatePair(first, second, (first_ms, second_ms), once.elapsed_ms, rate)


def _candidate(network: Network, design: BranchDesign | None) -> Candidate:
    used = tuple(dict.fromkeys(place.processor for place in network.placements.values()))
    (alone,) = Clock(network, Scene()).run().latencies_ms
    return Candidate(network, design, used, alone)


class PairedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One network of a pair."""

    model: str  # The network.
    processors: list[str]  # Processors of the design.
    branches: list[str]  # Description of each branched segment; empty if the network stays whole.
    alone_ms: float  # Time of an inference without another network.
    best_alone_ms: float  # Time of the fastest candidate without the other network.
    latency_ms: float  # Latency of an inference that starts together with one of the other network.
    design: BranchDesign | None  # Content of its design file; None for the whole network on one processor.
    file: str | None = None  # Path of its design file, if written.


class TogetherAnswer(Answer, frozen=True, kw_only=True):
    """Two networks on one device."""

    device: str  # Id of the device's profile.
    processors: list[str]  # Allowed processors.
    goal: str  # Objective of the pair: makespan, latency or throughput.
    designs: list[PairedAnswer]  # Results of both networks.
    makespan_ms: float  # Time until one inference of each has ended; both start at once.
    pairs_per_second: float | None  # Inferences of each per second with several in flight; None for other goals.
    sequential_ms: float  # Time of both in sequence, each as its fastest candidate.
    fixed_ms: float  # Makespan of the best pair with each network undivided on one processor.
    fixed_per_second: float | None  # `pairs_per_second` of this pair.
    fixed: list[str]  # Processor of each network in this pair.
    speedup_over_sequential: float  # Speed-up over both in sequence, in the pair's objective.
    speedup_over_fixed: float  # Speed-up over the best undivided pair, in the pair's objective.
    candidates: list[int]  # Number of candidates of each network; every pair of them was simulated.
    seconds: dict[str, float]  # Wall time by phase.
    source: str = "simulated"  # Source of the numbers.
    warnings: list[str] = msgspec.field(default_factory=list)  # Warnings for the user.


def together_answer(result: BestPair, seconds: dict[str, float]) -> TogetherAnswer:
    """Return the answer with the best pair and its baselines."""
    best, fixed = result.best, result.fixed
    value, sequential, mapped = (pair.value(result.goal) for pair in (best, result.sequential, fixed))
    both = zip((best.first, best.second), result.alone, best.latencies_ms, strict=True)
    return TogetherAnswer(
        device=result.device.id,
        processors=list(result.processors),
        goal=result.goal,
        designs=[
            PairedAnswer(
                model=candidate.network.name,
                processors=list(candidate.processors),
                branches=[describe_segment(part) for part in (candidate.design.segments if candidate.design else ()) if not part.whole],
                alone_ms=candidate.alone_ms,
                best_alone_ms=alone.alone_ms,
                latency_ms=ms,
                design=candidate.design,
            )
            for candidate, alone, ms in both
        ],
        makespan_ms=best.makespan_ms,
        pairs_per_second=best.pairs_per_second,
        sequential_ms=result.sequential.makespan_ms,
        fixed_ms=fixed.makespan_ms,
        fixed_per_second=fixed.pairs_per_second,
        fixed=[item.processors[0] for item in (fixed.first, fixed.second)],
        speedup_over_sequential=sequential / value,
        speedup_over_fixed=mapped / value,
        candidates=list(result.candidates),
        seconds=seconds,
    )
