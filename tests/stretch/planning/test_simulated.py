"""Predicted runs as networks of a simulation take what the planner's arithmetic says."""

import pytest

from scheduler.simulate.clock import Clock
from scheduler.simulate.scene import Scene
from scheduler.simulate.sharing import Sharing
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.plan import Asked
from stretch.planning.search.controls import ranked_singles
from stretch.planning.several import several
from stretch.planning.together import network_of, single_network
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE

GRAPH, MI9 = small_resnet(96), specified("mi9")


@pytest.mark.slow
@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "dsp"), ("cpu", "gpu", "dsp")])
@pytest.mark.parametrize("more", [LOOSE, {"lossless": True}, {**LOOSE, "kinds": ("stretch", "rows", "graph")}], ids=str)
def test_simulated_alone_a_design_takes_its_makespan(processors, more):
    config = PlanConfig(processors=processors, **more)
    asked = Asked.of(GRAPH, MI9, config)
    for each in several(GRAPH, MI9, config, 3, 1.5).designs:
        run = timeline(GRAPH, each.design, asked.costs)
        network = network_of("n", run, asked.costs)
        for sharing in (None, Sharing()):
            (ms,) = Clock(network, Scene(), sharing=sharing).run().latencies_ms
            assert ms == pytest.approx(run.makespan_ms)


def test_simulated_alone_a_whole_network_takes_its_time():
    asked = Asked.of(GRAPH, MI9, PlanConfig(processors=("cpu", "gpu", "dsp")))
    for single in ranked_singles(GRAPH, asked.costs, asked.config.processors):
        network = single_network("n", GRAPH, single, asked.costs)
        assert {place.queue for place in network.placements.values()} == {single.processor.partition("[")[0]}
        (ms,) = Clock(network, Scene()).run().latencies_ms
        assert ms == pytest.approx(single.ms)
