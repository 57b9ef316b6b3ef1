"""Networks of paper 003 planned as the paper makes them: segments that are stretched, several stages as one where that is faster."""

from experiments.simulated_speedup.run import MACS
from predictors.devices import load_device
from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.planning.result import PlanResult


def stretched(graph: OpGraph, device: str, processors: str) -> PlanResult | None:
    """The fastest design of stretched segments about as costly as the original; None where the rules leave none.

    Args:
        graph: The network.
        device: The device's id.
        processors: With commas.
    """
    config = PlanConfig(processors=tuple(processors.split(",")), macs=MACS, kinds=("stretch",), merge="always")
    try:
        return plan(graph, load_device(device), config)
    except InfeasibleError:
        return None
