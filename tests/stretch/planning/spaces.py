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


def as_design(graph, segments):
    return BranchDesign(graph.name, "mi9", tuple(segments))


def fastest_by_brute_force(space, low, high, n_meet):
    """Fastest design by following every sequence of options, merged or not, on the timeline's own arithmetic."""
    elements = int(np.prod(space.segments[-1].graph.by_name[space.segments[-1].end].shape))
    best, count = np.inf, 0
    open_paths = [(0, space.holders.index(space.costs.host), 0, 0, 0.0)]
    while open_paths:
        at, holder, macs, met, ms = open_paths.pop()
        if macs > high:
            continue
        if at == len(space.segments):
            count += 1
            if macs >= low and met >= n_meet:
                out_ms = space.costs.transfer(space.holders[holder], space.costs.host, elements)
                best = min(best, ms + out_ms + space.costs.handover(space.costs.host).ms)
            continue
        for options in space.options[at]:
            branched = len(options.candidates) > 1
            after = space.holders.index(space.costs.host if branched else options.processors[0])
            open_paths += [
                (at + options.span, after, macs + int(options.macs[i]), met + branched, ms + float(options.ms[holder, i]))
                for i in np.flatnonzero(options.allowed[holder])
            ]
    return best, count


def waiting(device="mi9", watts=None):
    """A profile whose processors take power while they wait, W by name, and half of it while they idle."""
    profile = specified(device)
    waits = {"cpu": 0.4, "gpu": 0.3, "dsp": 0.2} if watts is None else watts
    result = {
        name: msgspec.structs.replace(processor, waiting_w=NotNegative(waits[name], "x"), idle_w=NotNegative(waits[name] / 2, "x"))
        if waits.get(name)
        else processor
        for name, processor in profile.processors.items()
    }
    return msgspec.structs.replace(profile, processors=result)


def every_design(space, low, high, n_meet):
    """Picks, makespan and computing time by processor of every design, on the timeline's own arithmetic."""
    open_paths = [(0, 0, 0, 0.0, {}, ())]
    while open_paths:
        at, macs, met, ms, busy, picks = open_paths.pop()
        holder = picks[-1][0].holder(space.costs.host) if picks else space.costs.host
        if macs > high:
            continue
        if at == len(space.segments):
            if macs >= low and met >= n_meet:
                yield picks, ms + space.finish_ms(holder), busy
            continue
        row = space.holders.index(holder)
        for options in space.options[at]:
            current = {name: np.broadcast_to(item, options.ms.shape)[row] for name, item in options.busy().items()}
            for i in np.flatnonzero(options.allowed[row] & np.isfinite(options.ms[row])):
                now = {name: busy.get(name, 0.0) + float(current[name][i] if name in current else 0.0) for name in {**busy, **current}}
                more = ms + float(options.ms[row, i])
                open_paths.append(
                    (at + options.span, macs + int(options.macs[i]), met + options.branched, more, now, (*picks, (options, int(i))))
                )
