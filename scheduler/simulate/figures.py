"""What the simulation of a bundle showed, as plain data: JSON and the terminal's table both read these structs, whose fields are the JSON's keys."""

from pathlib import Path

import msgspec

from scheduler.simulate.load import Frequency, Load


class BusyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a processor was with the bundle's subgraphs."""

    ms: float  # Of one inference, mean.
    share: float  # Of the whole time.


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that inferences could run."""

    bundle: str  # Its folder.
    makespan_ms: float  # One inference with nothing that disturbs it.
    inferences: int  # How many ran it.


class DecisionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A decision on what the next inferences run."""

    inference: int  # Number of the inference after which it was made, from 0.
    at_ms: float  # When.
    kind: str  # ``move``, ``probe``, ``return`` or ``stay away``.
    before: str  # Bundle that was run.
    after: str  # Bundle to run.
    reason: str  # In words.
    factors: dict[str, float]  # Measured over expected time of the processors that counted as contended.


class HeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How hot the chip became."""

    source: str  # Where the numbers of its description come from.
    start_c: float  # Temperature at the start, °C.
    end_c: float  # At the end.
    hottest_c: float  # The highest.
    slowest: float  # Least speed that this led to, as a share of the full one.
    throttled: float  # Share of the time in which any step was in force.
    changes: int  # How often the speed changed.
    first_tenth_ms: float  # Median latency of the first tenth of the inferences.
    last_tenth_ms: float  # Of the last tenth.


class WorkloadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a concurrent workload."""

    bundle: Path  # Its folder.
    model: str  # Its network.
    arrivals: str | None  # When its inferences were asked for; None for each as soon as the last one was over.
    makespan_ms: float  # One inference with nothing that disturbs it.
    inferences: int  # How many ended before the first bundle's last one did.
    p50_ms: float | None  # Median latency of these, from request to output; None if none ended.
    p90_ms: float | None  # What nine of ten stay under.
    p99_ms: float | None  # What 99 of 100 stay under.
    deadline_ms: float | None  # Latency allowed; None if none was stated.
    missed: int | None  # Inferences over it.


class DemandAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a bundle, and how it was met in the simulation of all."""

    bundle: str  # Its folder.
    per_second: float  # Requests a second.
    deadline_ms: float | None  # Latency allowed; None where there only has to be room for each request when it comes.
    requests: int  # How many were simulated; none where a processor has more to do than there is time.
    missed: int  # How many of them were not over in time.
    worst_ms: float | None  # Longest time from a request to its output.


class AdmissionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the rates that are asked for can be held."""

    holds: bool  # Whether.
    reason: str  # In a sentence.
    factor: float  # Factor on all rates up to which they are held; 0 if none was found.
    busy: dict[str, float]  # Share of the time for which each processor would have work.
    demands: tuple[DemandAnswer, ...]  # Of each bundle, this one first.


class SimulateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle under the clock of the simulation."""

    bundle: Path  # Its folder.
    model: str  # The network.
    device: str  # What it is simulated on.
    planned_for: str  # The device that it was planned for.
    calibrated: bool  # Whether the times it was planned with were fitted to measurements.
    source: str  # Where the times come from.
    runs: int  # Inferences.
    in_flight: int  # How many of them there were at once.
    arrivals: str | None  # When they were asked for; None for each as soon as there was a lane for it.
    busy_with_others: tuple[Load, ...]  # What else took a share of the processors.
    frequencies: tuple[Frequency, ...]  # When processors ran at other speeds.
    jitter: float  # Standard deviation of the logarithm of computing times.
    seed: int  # Of everything random.
    makespan_ms: float  # One inference with nothing that disturbs it.
    p50_ms: float  # Median latency, from request to output.
    p90_ms: float  # What nine of ten stay under.
    p99_ms: float  # What 99 of 100 stay under.
    elapsed_ms: float  # From the start of the clock to the end of the last inference.
    per_second: float  # Inferences a second in that time.
    busy: dict[str, BusyAnswer]  # How long each processor computed, for all bundles.
    communication_ms: float  # Exchanges and joins of one inference, mean, overlapping or not.
    deadline_ms: float | None  # Latency allowed; None if none was stated.
    missed: int | None  # Inferences over it.
    #: The original divided over the processors without any loss, as planned; None where the bundle does not say.
    ideal_split_ms: float | None
    ideal_fraction: float | None  # That over the median latency.
    efficiency: float | None  # What the slowest branches take alone, as planned, over the median latency.
    plans: tuple[PlanAnswer, ...]  # The bundles that inferences could run, this one first.
    decisions: tuple[DecisionAnswer, ...]  # Why which of them was run when.
    beside: tuple[WorkloadAnswer, ...]  # Concurrent workloads.
    shared: bool  # Whether they took turns on processors by deadlines and fair shares, as the bundles of a `Scheduler` do.
    admission: AdmissionAnswer | None  # Whether the rates can be held; None where that was not asked.
    #: Energy of the processors in an inference, concurrent workloads included, mean; None where the profile states no power of one.
    energy_mj: float | None
    heat: HeatAnswer | None  # How hot the chip became; None where that was left out.
    trace: Path | None  # File with the timeline.
    warnings: list[str]  # What a person should know.
