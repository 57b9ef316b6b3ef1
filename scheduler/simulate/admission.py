"""Whether several bundles can hold rates on the same processors, predicted by utilisation and a simulation.

No order of subgraphs holds rates at which a processor had more to do than there is time: utilisation, as Liu and Layland (1973)
have it. Below that it depends on who waits for whom: subgraphs are not interrupted, and branches wait for each other. So the
requests are simulated, at equal distances and all beginning together, taking turns as those of a `Scheduler` do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite

from predictors.errors import UsageError
from scheduler.runtime.inputs import check_deadline, check_priority
from scheduler.simulate.clock import ClientResult, Clock, TurnTaking
from scheduler.simulate.networks import Network
from scheduler.simulate.scene import MAX_RUNS, Arrivals, Scene

#: Requests of the rarest demand that are simulated.
REQUESTS = 100

#: Requests of a demand that are simulated at most; of rates that are far apart the rarest has fewer than `REQUESTS` then.
MAX_REQUESTS = 20_000

#: Tolerance of sums of shares above 1.
_ROUNDING = 1e-9

#: Halvings of the interval in which the greatest factor on all rates is looked for.
_HALVINGS = 8


@dataclass(frozen=True)
class Demand:
    """Requested rate of a bundle.

    Args:
        per_second: Requests a second, at equal distances.
        deadline_ms: From a request to its output; None where there only has to be room for each request when it comes.
        priority: As of a request.
        weight: As of a `Scheduler`.

    Raises:
        UsageError: If a number makes no sense.
    """

    per_second: float
    deadline_ms: float | None = None
    priority: int = 0
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not (isfinite(self.per_second) and 1e-6 <= self.per_second <= 1e6):
            raise UsageError(f"{self.per_second:g} requests a second are no rate", "a rate is from 1e-06 to 1e+06")
        check_deadline(self.deadline_ms)
        check_priority(self.priority)


@dataclass(frozen=True)
class DemandResult:
    """How a demand was met in the simulation."""

    requests: int  # How many had to be over before it ended.
    missed: int  # How many of them were not over in time.
    worst_ms: float | None  # Longest time from a request to its output; None if none was over.


@dataclass(frozen=True)
class Admission:
    """Whether rates can be held."""

    holds: bool  # Whether.
    reason: str  # In a sentence; also where they can, then with how busy the busiest processor is.
    busy: Mapping[str, float]  # Share of the time that each processor has to compute, exchange and join: over 1 where it cannot.
    kept: Mapping[str, DemandResult]  # How each demand was met, by name; nothing where a processor has more to do than there is time.
    factor: float  # Factor on all rates up to which a simulation holds them; 0 if none was found.


def admit(networks: Sequence[Network], demands: Sequence[Demand], in_flight: int = 2, jitter: float = 0.0, seed: int = 0) -> Admission:
    """Whether bundles can be run at the rates that are asked for."""
    names = [network.name for network in networks]
    if not names or len(set(names)) < len(names):
        raise UsageError("rates need bundles with distinct names", "give each bundle another name")
    if len(demands) != len(names):
        raise UsageError(f"{len(names)} bundles and {len(demands)} demands do not go together", "state one for each")
    scene = Scene(in_flight=in_flight, jitter=jitter, seed=seed)
    alone_ms = [Clock(network, Scene()).run().latencies_ms[0] for network in networks]
    busy = _busy(networks, demands)
    highest_share = max(busy.values(), default=0.0)

    def simulate(factor: float) -> dict[str, DemandResult]:
        return _simulate(networks, [replace(demand, per_second=demand.per_second * factor) for demand in demands], scene)

    results = simulate(1.0) if highest_share <= 1 + _ROUNDING else {}
    holds = bool(results) and not any(result.missed for result in results.values())
    factor = _greatest(
        lambda factor: not any(result.missed for result in simulate(factor).values()),
        1.0 if holds else 0.0,
        1 / highest_share if highest_share else 1.0,
    )
    return Admission(holds, _reason(names, demands, alone_ms, busy, results, factor), busy, results, factor)


def _busy(networks: Sequence[Network], demands: Sequence[Demand]) -> dict[str, float]:
    """Share of the time that each queue is held by subgraphs; joins run on whichever is there and are left out."""
    busy: dict[str, float] = {}
    for network, demand in zip(networks, demands, strict=True):
        for name, place in network.placements.items():
            duration_ms = sum(ms for _, ms in network.times[name].parts)
            busy[place.queue] = busy.get(place.queue, 0.0) + duration_ms * demand.per_second / 1e3
    return busy


def _simulate(networks: Sequence[Network], demands: Sequence[Demand], scene: Scene) -> dict[str, DemandResult]:
    """How demands are met, simulated until the rarest has come often enough."""
    periods = [1e3 / demand.per_second for demand in demands]
    limits_ms = [demand.deadline_ms or scene.in_flight * period for demand, period in zip(demands, periods, strict=True)]
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
    return {
        network.name: _demand_result(served[index], periods[index], limits_ms[index], ran.elapsed_ms, scenes[index].runs)
        for index, network in enumerate(networks)
    }


def _demand_result(served: ClientResult, period: float, allowed: float, elapsed: float, runs: int) -> DemandResult:
    """How one demand was met."""
    ended = served.latencies_ms
    due = min(runs, max(0, floor((elapsed - allowed) / period) + 1))
    late = sum(ms > allowed for ms in ended)
    return DemandResult(max(due, len(ended)), late + max(0, due - len(ended)), max(ended, default=None))


def _greatest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The greatest factor between two that holds, as halving finds it."""
    if high > low and holds(high):
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _reason(
    names: Sequence[str],
    demands: Sequence[Demand],
    alone: Sequence[float],
    busy: Mapping[str, float],
    results: Mapping[str, DemandResult],
    factor: float,
) -> str:
    most = max(busy, key=busy.__getitem__)
    if busy[most] > 1 + _ROUNDING:
        return f"`{most}` would have {busy[most]:.2f} times as much to do as there is time"
    for name, demand, ms in zip(names, demands, alone, strict=True):
        if demand.deadline_ms is not None and ms > demand.deadline_ms:
            return f"an inference of `{name}` takes {ms:.2f} ms without a concurrent workload, more than its deadline of {demand.deadline_ms:g} ms"
    name = max(results, key=lambda network: results[network].missed)
    result = results[name]
    if result.missed:
        demand = demands[names.index(name)]
        consequence = "have no room when they come" if demand.deadline_ms is None else f"miss the deadline of {demand.deadline_ms:g} ms"
        return f"{result.missed} of {result.requests} simulated requests of `{name}` {consequence}"
    return f"held in a simulation; the busiest is `{most}`, {100 * busy[most]:.0f} % of the time, and {factor:.2f} times the rates are held too"
