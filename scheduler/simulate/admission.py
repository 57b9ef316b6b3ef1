"""Whether several bundles can hold rates on the same processors, predicted by utilisation and a simulation.

No order of subgraphs holds rates at which a processor had more to do than there is time: utilisation, as Liu and Layland (1973)
have it. Below that it depends on who waits for whom: subgraphs are not interrupted, and branches wait for each other. So the
requests are simulated, at equal distances and all beginning together, taking turns as those of a `Scheduler` do.
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


class DemandAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Rate and deadline of a bundle, and how the simulation meets them."""

    bundle: str  # Its name, such as its folder.
    per_second: float  # Requests a second.
    deadline_ms: float | None  # Deadline; None if each request only needs a free lane.
    requests: int = 0  # Number of simulated requests; 0 if a processor is overloaded.
    missed: int = 0  # Number of late requests.
    worst_ms: float | None = None  # Largest latency; None if no request ended.


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the requested rates can be held."""

    holds: bool
    reason: str  # Also where they can: then with how busy the busiest processor is.
    factor: float  # Largest factor on all rates that can be held; 0 if none.
    busy: dict[str, float]  # Share of the time that each processor computes, exchanges and joins: above 1 where it cannot.
    demands: tuple[DemandAnswer, ...]  # Of each bundle, in the order of the request.


def admit(networks: Sequence[Network], demands: Sequence[Demand], in_flight: int = 2, jitter: float = 0.0, seed: int = 0) -> Admission:
    """Return whether bundles can be run at the rates that are asked for."""
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
    """Return the share of the time that each queue is held by subgraphs; joins run on whichever is there and are left out."""
    busy: dict[str, float] = {}
    for network, demand in zip(networks, demands, strict=True):
        for name, place in network.placements.items():
            duration_ms = sum(ms for _, ms in network.times[name].parts)
            busy[place.queue] = busy.get(place.queue, 0.0) + duration_ms * demand.per_second / 1e3
    return busy


def _simulate(networks: Sequence[Network], demands: Sequence[Demand], scene: Scene) -> list[DemandAnswer]:
    """Return how demands are met, simulated until the rarest has come often enough."""
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
    """Return the greatest factor between two that holds, as halving finds it."""
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
