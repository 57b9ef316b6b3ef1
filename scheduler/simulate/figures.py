"""Results of a simulation as plain data; the fields of the structs are the keys of the JSON."""

from pathlib import Path

import msgspec

from scheduler.simulate.load import Frequency, Load


class BusyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Utilisation of a processor by the bundle's subgraphs."""

    ms: float  # Mean computing time per inference.
    share: float  # Share of the elapsed time.


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An alternative plan."""

    bundle: str  # Its folder.
    makespan_ms: float  # Latency without disturbances.
    inferences: int  # Number of inferences with this plan.


class DecisionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the policy."""

    inference: int  # Last inference before the decision, from 0.
    at_ms: float  # Simulated time.
    kind: str  # ``move``, ``probe``, ``return`` or ``stay away``.
    before: str  # Previous plan.
    after: str  # Next plan.
    reason: str
    factors: dict[str, float]  # Measured over expected time of the contended processors.


class HeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Temperature and throttling of the chip."""

    source: str  # Source of the thermal model.
    start_c: float  # Temperature at the start, °C.
    end_c: float  # Temperature at the end.
    hottest_c: float  # Highest temperature.
    slowest: float  # Lowest speed, as a share of full speed.
    throttled: float  # Share of the time with throttling.
    changes: int  # Number of changes of speed.
    first_tenth_ms: float  # Median latency of the first tenth of the inferences.
    last_tenth_ms: float  # Median latency of the last tenth.


class WorkloadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a concurrent workload."""

    bundle: Path  # Its folder.
    model: str  # Its network.
    arrivals: str | None  # Arrival process; None for back-to-back inferences.
    makespan_ms: float  # One inference with nothing that disturbs it.
    inferences: int  # Number that ended before the last one of the first bundle.
    p50_ms: float | None  # Median latency from request to output; None if none ended.
    p90_ms: float | None  # 90th percentile.
    p99_ms: float | None  # 99th percentile.
    deadline_ms: float | None  # Latency allowed; None if none was stated.
    missed: int | None  # Number of inferences over the deadline.


class DemandAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Rate and deadline of a bundle, and how the simulation meets them."""

    bundle: str  # Its folder.
    per_second: float  # Requests a second.
    deadline_ms: float | None  # Deadline; None if each request only needs a free lane.
    requests: int  # Number of simulated requests; 0 if a processor is overloaded.
    missed: int  # Number of late requests.
    worst_ms: float | None  # Largest latency.


class AdmissionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the requested rates can be held."""

    holds: bool
    reason: str
    factor: float  # Largest factor on all rates that can be held; 0 if none.
    busy: dict[str, float]  # Utilisation of each processor.
    demands: tuple[DemandAnswer, ...]  # Of each bundle, this one first.


class SimulateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `stretch simulate`."""

    bundle: Path  # Its folder, or the file of a table of steps.
    model: str  # The network; of a table the name of its file.
    device: str | None  # Simulated device; None for the times of a table alone.
    planned_for: str | None  # Device of the plan; of a table the simulated one.
    calibrated: bool  # Whether predicted times were fitted to measurements.
    source: str  # Source of the times.
    runs: int  # Number of inferences.
    in_flight: int  # Number of concurrent inferences.
    arrivals: str | None  # Arrival process; None for an inference as soon as a lane is free.
    busy_with_others: tuple[Load, ...]  # Background load.
    frequencies: tuple[Frequency, ...]  # Changes of processor speed.
    jitter: float  # Standard deviation of the logarithm of computing times.
    seed: int  # Seed of the random numbers.
    makespan_ms: float  # One inference with nothing that disturbs it.
    p50_ms: float  # Median latency, from request to output.
    p90_ms: float  # 90th percentile.
    p99_ms: float  # 99th percentile.
    elapsed_ms: float  # From the start of the clock to the end of the last inference.
    per_second: float  # Inferences a second in that time.
    busy: dict[str, BusyAnswer]  # Computing time of each processor, for all bundles.
    communication_ms: float  # Exchanges and joins of one inference, mean, overlapping or not.
    deadline_ms: float | None  # Latency allowed; None if none was stated.
    missed: int | None  # Number of inferences over the deadline.
    #: Predicted latency of an ideal split over the processors; None if the bundle does not state it.
    ideal_split_ms: float | None
    ideal_fraction: float | None  # Ideal split over the median latency.
    efficiency: float | None  # Predicted time of the slowest branches over the median latency.
    plans: tuple[PlanAnswer, ...]  # Alternative plans, this bundle first.
    decisions: tuple[DecisionAnswer, ...]  # Decisions among them.
    beside: tuple[WorkloadAnswer, ...]  # Concurrent workloads.
    shared: bool  # Whether bundles share processors by deadlines and weights, as in a `Scheduler`.
    admission: AdmissionAnswer | None  # Admission; None if not requested.
    #: Energy of the processors in an inference, concurrent workloads included, mean; None where the profile states no power of one.
    energy_mj: float | None
    heat: HeatAnswer | None  # Temperature; None if not simulated.
    trace: Path | None  # File with the timeline.
    warnings: list[str]
