"""Admission: whether several bundles can hold their request rates on shared processors, by utilisation and a simulation.

If the rates need more time of a processor than there is, no order of subgraphs can hold them: utilisation, as in Liu and
Layland (1973). Below that limit the waiting between subgraphs decides: they are not interrupted, and branches wait for each
other. So the requests are simulated, periodic and all starting together, taking turns as in a `Scheduler`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite

import msgspec

from predictors.errors import UsageError
from scheduler.runtime.inputs import check_deadline, check_priority
from scheduler.simulate.clock import Clock, TurnTaking
from scheduler.simulate.networks import Network
from scheduler.simulate.scene import MAX_RUNS, Arrivals, Scene

#: Number of simulated requests of the demand with the lowest rate.
REQUESTS = 100

#: Maximum number of simulated requests of a demand; if rates are far apart, the lowest rate gets fewer than `REQUESTS`.
MAX_REQUESTS = 20_000

#: Tolerance of sums of shares above 1.
_ROUNDING = 1e-9

#: Number of halvings of the interval in the search for the greatest factor on all rates.
_HALVINGS = 8


@dataclass(frozen=True)
class Demand:
    """Requested rate of a bundle.

    Args:
        per_second: Requests per second, periodic.
        deadline_ms: Maximum time from a request to its output; None if a free lane at each request is enough.
        priority: Priority of the requests.
        weight: Weight as in a `Scheduler`.

    Raises:
        UsageError: If a number is out of range.
    """

    per_second: float
    deadline_ms: float | None = None
    priority: int = 0
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Check that all numbers are in range."""
        if not (isfinite(self.per_second) and 1e-6 <= self.per_second <= 1e6):
            raise UsageError(f"{self.per_second:g} requests a second are no rate", "a rate is from 1e-06 to 1e+06")
        check_deadline(self.deadline_ms)
        check_priority(self.priority)


class DemandAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Rate and deadline of a bundle, and the result of the simulation."""

    bundle: str  # Name of the bundle, such as its folder.
    per_second: float  # Requests per second.
    deadline_ms: float | None  # Deadline; None if each request only needs a free lane.
    requests: int = 0  # Number of simulated requests; 0 if a processor is overloaded.
    missed: int = 0  # Number of late requests.
    worst_ms: float | None = None  # Largest latency; None if no request ended.


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an admission check: whether the requested rates can be held."""

    holds: bool
    reason: str  # Reason; if the rates can be held, the utilisation of the busiest processor.
    factor: float  # Largest factor on all rates that can be held; 0 if none.
    busy: dict[str, float]  # Share of the time in which each processor computes, exchanges and joins; above 1 it is overloaded.
    demands: tuple[DemandAnswer, ...]  # Result for each bundle, in the order of the request.


def admit(networks: Sequence[Network], demands: Sequence[Demand], in_flight: int = 2, jitter: float = 0.0, seed: int = 0) -> Admission:
    """Return whether bundles can run at the requested rates."""
    names = [network.name for network in networks]
    if not names or len(set(names)) < len(names):
        raise UsageError("rates need bundles with distinct names", "give each bundle another name")
    if len(demands) != len(names):
        raise UsageError(f"{len(names)} bundles and {len(demands)} demands do not go together", "state one for each")
    scene = Scene(in_flight=in_flight, jitter=jitter, seed=seed)
    alone_ms = [Clock(network, Scene()).run().latencies_ms[0] for network in networks]
    busy = _busy(networks, demands)
    highest_share = max(busy.values(), default=0.0)

    def simulate(factor: float) -> list[DemandAnswer]:
        return _simulate(networks, [replace(demand, per_second=demand.per_second * factor) for demand in demands], scene)

    results = [
        DemandAnswer(bundle=name, per_second=demand.per_second, deadline_ms=demand.deadline_ms)
        for name, demand in zip(names, demands, strict=True)
    ]
    if fits := highest_share <= 1 + _ROUNDING:
        results = simulate(1.0)
    holds = fits and not any(result.missed for result in results)
    factor = _greatest(
        lambda factor: not any(result.missed for result in simulate(factor)),
        1.0 if holds else 0.0,
        1 / highest_share if highest_share else 1.0,
    )
    return Admission(holds=holds, reason=_reason(results, alone_ms, busy, factor), factor=factor, busy=busy, demands=tuple(results))


def _busy(networks: Sequence[Network], demands: Sequence[Demand]) -> dict[str, float]:
    """Return the share of the time in which subgraphs hold each queue, without joins, which any queue may run."""
    busy: dict[str, float] = {}
    for network, demand in zip(networks, demands, strict=True):
        for name, place in network.placements.items():
            duration_ms = sum(ms for _, ms in network.times[name].parts)
            busy[place.queue] = busy.get(place.queue, 0.0) + duration_ms * demand.per_second / 1e3
    return busy


def _simulate(networks: Sequence[Network], demands: Sequence[Demand], scene: Scene) -> list[DemandAnswer]:
    """Return the result for each demand, simulated until the lowest rate has had enough requests."""
    periods = [1e3 / demand.per_second for demand in demands]
    span = min(max(REQUESTS * period for period in periods), min(MAX_REQUESTS * period for period in periods))
    order = sorted(range(len(networks)), key=lambda index: -periods[index])
    scenes: dict[int, Scene] = {}
    for index in order:
        demand, arrivals = demands[index], Arrivals("periodic", periods[index])
        runs = MAX_RUNS if scenes else max(1, ceil(span / periods[index]))
        scenes[index] = replace(scene, runs=runs, arrivals=arrivals, deadline_ms=demand.deadline_ms, priority=demand.priority)
    (network, first), *others = ((networks[index], scenes[index]) for index in order)
    ran = Clock(network, first, others, sharing=TurnTaking(tuple(demands[index].weight for index in order))).run()
    served = dict(zip(order, ran.clients, strict=True))
    results = []
    for index, (network, demand, period) in enumerate(zip(networks, demands, periods, strict=True)):
        ended, allowed = served[index].latencies_ms, demand.deadline_ms or scene.in_flight * period
        due = min(scenes[index].runs, max(0, floor((ran.elapsed_ms - allowed) / period) + 1))
        late = sum(ms > allowed for ms in ended) + max(0, due - len(ended))
        met = DemandAnswer(
            bundle=network.name,
            per_second=demand.per_second,
            deadline_ms=demand.deadline_ms,
            requests=max(due, len(ended)),
            missed=late,
            worst_ms=max(ended, default=None),
        )
        results.append(met)
    return results


def _greatest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the greatest factor from `low` to `high` that holds, found by halving."""
    if high > low and holds(high):
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _reason(results: Sequence[DemandAnswer], alone: Sequence[float], busy: Mapping[str, float], factor: float) -> str:
    most = max(busy, key=busy.__getitem__)
    if busy[most] > 1 + _ROUNDING:
        return f"`{most}` would have {busy[most]:.2f} times as much to do as there is time"
    for result, ms in zip(results, alone, strict=True):
        if result.deadline_ms is not None and ms > result.deadline_ms:
            taken = f"an inference of `{result.bundle}` takes {ms:.2f} ms without a concurrent workload"
            return f"{taken}, more than its deadline of {result.deadline_ms:g} ms"
    worst = max(results, key=lambda result: result.missed)
    if worst.missed:
        consequence = "have no room when they come" if worst.deadline_ms is None else f"miss the deadline of {worst.deadline_ms:g} ms"
        return f"{worst.missed} of {worst.requests} simulated requests of `{worst.bundle}` {consequence}"
    return f"held in a simulation; the busiest is `{most}`, {100 * busy[most]:.0f} % of the time, and {factor:.2f} times the rates are held too"
