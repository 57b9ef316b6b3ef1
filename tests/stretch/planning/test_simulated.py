"""Predicted runs as networks of a simulation take what the planner's arithmetic says."""

import pytest

from scheduler.simulate.clock import Clock
from scheduler.simulate.scene import Scene
from stretch.planning.config import PlanConfig
from stretch.planning.plan import Asked
from stretch.planning.search.controls import ranked_singles
from stretch.planning.simulated import single_network
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

GRAPH, MI9 = small_resnet(96), specified("mi9")


def test_simulated_alone_a_whole_network_takes_its_time():
    asked = Asked.of(GRAPH, MI9, PlanConfig(processors=("cpu", "gpu", "dsp")))
    for single in ranked_singles(GRAPH, asked.costs, asked.config.processors):
        network = single_network("n", GRAPH, single, asked.costs)
        assert {place.queue for place in network.placements.values()} == {single.processor.partition("[")[0]}
        (ms,) = Clock(network, Scene()).run().latencies_ms
        assert ms == pytest.approx(single.ms)
