"""Small design spaces for tests."""

import msgspec
import numpy as np

from predictors.devices import NotNegative
from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.segments import split_segments
from stretch.planning.search.space import DesignSpace, Rules
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

#: A large α lets the short segments of a small network branch.
LOOSE = {"alpha": 10.0, "beta": 10.0, "balance": 0.01}


def make_space(graph=None, device="mi9", processors=("cpu", "gpu"), join="project", **changes):
    profile = specified(device) if isinstance(device, str) else device
    config = PlanConfig(processors=processors, **(LOOSE | changes)).resolve(profile)
    costs = Costs(LatencyPredictor(profile), config.precision)
    graph = graph or small_resnet()
    return DesignSpace.of(split_segments(graph), config.processors, costs, Rules.of(config), join)


def losses(options):
    """Losses of options, invented so that narrow or shallow designs lose."""
    return 0.1 * np.maximum(1.5 - options.macs / options.segment.graph.macs, 0) if options.branched else np.zeros(len(options.macs))


def as_design(graph, segments):
    return BranchDesign(graph.name, "mi9", tuple(segments))


def fastest_by_brute_force(space, low, high, n_meet):
    """Time of the fastest design in ms, and the number of designs."""
    times = [ms for _, ms, _ in every_design(space, low, high, n_meet, loads=False)]
    return min(times, default=np.inf), len(times)


def every_design(space, low, high, n_meet, loads=True):
    """Picks, makespan and computing time by processor of every design, by the arithmetic of the timeline."""
    host, elements = space.costs.host, int(np.prod(space.segments[-1].graph.by_name[space.segments[-1].end].shape))
    open_paths = [(0, host, 0, 0, 0.0, {}, ())]
    while open_paths:
        at, holder, macs, met, ms, busy, picks = open_paths.pop()
        if macs > high:
            continue
        if at == len(space.segments):
            if macs >= low and met >= n_meet:
                yield picks, ms + space.costs.transfer(holder, host, elements) + space.costs.handover(host).ms, busy
            continue
        row = space.holders.index(holder)
        for options in space.options[at]:
            current = {name: np.broadcast_to(item, options.ms.shape)[row] for name, item in options.busy().items()} if loads else {}
            for i in np.flatnonzero(options.allowed[row] & np.isfinite(options.ms[row])):
                now = busy | {name: busy.get(name, 0.0) + float(item[i]) for name, item in current.items()}
                then = at + options.span, options.holder(host), macs + int(options.macs[i]), met + options.branched
                open_paths.append((*then, ms + float(options.ms[row, i]), now, (*picks, (options, int(i)))))


def waiting():
    """A profile whose processors draw power (in W) while they wait, and half of that power while they idle."""
    profile, change = specified("mi9"), msgspec.structs.replace
    power = {
        n: {"waiting_w": NotNegative(w, "x"), "idle_w": NotNegative(w / 2, "x")} for n, w in (("cpu", 0.4), ("gpu", 0.3), ("dsp", 0.2))
    }
    return change(profile, processors={name: change(processor, **power[name]) for name, processor in profile.processors.items()})
