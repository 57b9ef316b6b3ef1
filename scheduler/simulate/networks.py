"""What a simulation runs: a plan, where its steps run, and what each takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.adapt.alternatives import Alternative, Work
from scheduler.placement.place import Placement
from scheduler.runtime.machine import CALLING_THREAD
from scheduler.runtime.plan import ExecutionPlan
from scheduler.simulate.times import StepTime


@dataclass(frozen=True)
class Network:
    """A bundle, as a simulation sees it."""

    name: str  # Unique in a simulation.
    plan: ExecutionPlan  # What each inference runs.
    placements: Mapping[str, Placement]  # Where each subgraph runs.
    times: Mapping[str, StepTime]  # Of each step.
    #: What each processor takes more while it computes, for a policy that minds energy.
    watts: Mapping[str, float] = field(default_factory=dict)


def alternative_of(network: Network) -> Alternative:
    """The network as the policy sees it that chooses between several."""
    plan, places = network.plan, network.placements
    inline = next((place.queue for place in places.values() if place.dispatch == "inline"), CALLING_THREAD)
    writers = {tensor: name for name in plan.order for tensor in plan.step(name).outputs}
    work = []
    for name in plan.order:
        time = network.times[name]
        # what the host joins grows with what else uses it, as what it computes does
        computing = sum(ms for doing, ms in time.parts if doing in ("subgraph", "join"))
        before = tuple(dict.fromkeys(writers[tensor] for tensor in plan.step(name).inputs if tensor in writers))
        queue = places[name].queue if name in places else inline
        work.append(Work(name, time.processor, queue, computing, sum(ms for _, ms in time.parts) - computing, before))
    return Alternative(network.name, tuple(work), network.watts)
