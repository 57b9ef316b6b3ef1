"""What the simulation of a bundle showed, as plain data: JSON and the terminal's table both read these structs, whose fields are the JSON's keys."""

from pathlib import Path

import msgspec

from scheduler.simulate.load import Frequency, Load


class BusyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a processor was with the bundle's subgraphs.

    Args:
        ms: Of one inference, mean.
        share: Of the whole time.
    """

    ms: float
    share: float


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that inferences could run.

    Args:
        bundle: Its folder.
        makespan_ms: One inference with nothing that disturbs it.
        inferences: How many ran it.
    """

    bundle: str
    makespan_ms: float
    inferences: int


class DecisionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A decision on what the next inferences run.

    Args:
        inference: Number of the inference after which it was made, from 0.
        at_ms: When.
        kind: ``move``, ``probe``, ``return`` or ``stay away``.
        before: Bundle that was run.
        after: Bundle to run.
        reason: In words.
        factors: Measured over expected time of the processors that counted as contended.
    """

    inference: int
    at_ms: float
    kind: str
    before: str
    after: str
    reason: str
    factors: dict[str, float]


class HeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How hot the chip became.

    Args:
        source: Where the numbers of its description come from.
        start_c: Temperature at the start, °C.
        end_c: At the end.
        hottest_c: The highest.
        slowest: Least speed that this led to, as a share of the full one.
        throttled: Share of the time in which any step was in force.
        changes: How often the speed changed.
        first_tenth_ms: Median latency of the first tenth of the inferences.
        last_tenth_ms: Of the last tenth.
    """

    source: str
    start_c: float
    end_c: float
    hottest_c: float
    slowest: float
    throttled: float
    changes: int
    first_tenth_ms: float
    last_tenth_ms: float


class BesideAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that ran beside, for another user.

    Args:
        bundle: Its folder.
        model: Its network.
        arrivals: When its inferences were asked for; None for each as soon as the last one was over.
        makespan_ms: One inference with nothing that disturbs it.
        inferences: How many ended before the first bundle's last one did.
        p50_ms: Median latency of these, from request to output; None if none ended.
        p90_ms: What nine of ten stay under.
        p99_ms: What 99 of 100 stay under.
        deadline_ms: Latency allowed; None if none was stated.
        missed: Inferences over it.
    """

    bundle: Path
    model: str
    arrivals: str | None
    makespan_ms: float
    inferences: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    deadline_ms: float | None
    missed: int | None


class DemandAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a bundle, and how it was met in the simulation of all.

    Args:
        bundle: Its folder.
        per_second: Requests a second.
        deadline_ms: Latency allowed; None where there only has to be room for each request when it comes.
        requests: How many were simulated; none where a processor has more to do than there is time.
        missed: How many of them were not over in time.
        worst_ms: Longest time from a request to its output.
    """

    bundle: str
    per_second: float
    deadline_ms: float | None
    requests: int
    missed: int
    worst_ms: float | None


class AdmissionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the rates that are asked for can be held.

    Args:
        holds: Whether.
        reason: In a sentence.
        factor: Factor on all rates up to which they are held; 0 if none was found.
        busy: Share of the time for which each processor would have work.
        demands: Of each bundle, this one first.
    """

    holds: bool
    reason: str
    factor: float
    busy: dict[str, float]
    demands: tuple[DemandAnswer, ...]


class SimulateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle under the clock of the simulation.

    Args:
        bundle: Its folder.
        model: The network.
        device: What it is simulated on.
        planned_for: The device that it was planned for.
        calibrated: Whether the times it was planned with were fitted to measurements.
        source: Where the times come from.
        runs: Inferences.
        in_flight: How many of them there were at once.
        arrivals: When they were asked for; None for each as soon as there was a lane for it.
        busy_with_others: What else took a share of the processors.
        frequencies: When processors ran at other speeds.
        jitter: Standard deviation of the logarithm of computing times.
        seed: Of everything random.
        makespan_ms: One inference with nothing that disturbs it.
        p50_ms: Median latency, from request to output.
        p90_ms: What nine of ten stay under.
        p99_ms: What 99 of 100 stay under.
        elapsed_ms: From the start of the clock to the end of the last inference.
        per_second: Inferences a second in that time.
        busy: How long each processor computed, for this bundle and those beside.
        communication_ms: Exchanges and joins of one inference, mean, whatever went on beside them.
        deadline_ms: Latency allowed; None if none was stated.
        missed: Inferences over it.
        ideal_split_ms: The original divided over the processors without any loss, as planned; None where the bundle does not say.
        ideal_fraction: That over the median latency.
        efficiency: What the slowest branches take alone, as planned, over the median latency.
        plans: The bundles that inferences could run, this one first.
        decisions: Why which of them was run when.
        beside: Bundles of other users.
        shared: Whether they took turns on processors by deadlines and fair shares, as the bundles of a `Scheduler` do.
        admission: Whether the rates can be held; None where that was not asked.
        energy_mj: Energy of the processors in an inference, those beside included, mean; None where the profile states no power of one.
        heat: How hot the chip became; None where that was left out.
        trace: File with the timeline.
        warnings: What a person should know.
    """

    bundle: Path
    model: str
    device: str
    planned_for: str
    calibrated: bool
    source: str
    runs: int
    in_flight: int
    arrivals: str | None
    busy_with_others: tuple[Load, ...]
    frequencies: tuple[Frequency, ...]
    jitter: float
    seed: int
    makespan_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    elapsed_ms: float
    per_second: float
    busy: dict[str, BusyAnswer]
    communication_ms: float
    deadline_ms: float | None
    missed: int | None
    ideal_split_ms: float | None
    ideal_fraction: float | None
    efficiency: float | None
    plans: tuple[PlanAnswer, ...]
    decisions: tuple[DecisionAnswer, ...]
    beside: tuple[BesideAnswer, ...]
    shared: bool
    admission: AdmissionAnswer | None
    energy_mj: float | None
    heat: HeatAnswer | None
    trace: Path | None
    warnings: list[str]
