"""Small design spaces for tests."""

import msgspec

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
