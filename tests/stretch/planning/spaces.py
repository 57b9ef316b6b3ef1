"""Small design spaces for tests."""

import msgspec
import numpy as np

from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.segments import split_segments
from stretch.planning.search.rules import Rules
from stretch.planning.search.space import DesignSpace
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

#: A large α lets the short segments of a small network branch.
LOOSE = {"alpha": 10.0, "beta": 10.0, "balance": 0.01}


def make_space(graph=None, device="mi9", processors=("cpu", "gpu"), join="project", **changes):
    profile = specified(device)
    config = PlanConfig(processors=processors, **(LOOSE | changes)).checked(profile)
    costs = Costs(LatencyPredictor(profile), config.precision)
    graph = graph or small_resnet()
    return DesignSpace(split_segments(graph), config.processors, costs, Rules.of(config), join)


def as_design(graph, segments):
    return BranchDesign(graph.name, "mi9", tuple(segments))


def relaxed(config, **changes):
    return msgspec.structs.replace(config, **changes)


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
                best = min(best, ms + space.costs.transfer(space.holders[holder], space.costs.host, elements))
            continue
        for options in space.options[at]:
            branched = len(options.candidates) > 1
            after = space.holders.index(space.costs.host if branched else options.processors[0])
            open_paths += [
                (at + options.span, after, macs + int(options.macs[i]), met + branched, ms + float(options.ms[holder, i]))
                for i in np.flatnonzero(options.allowed[holder])
            ]
    return best, count
