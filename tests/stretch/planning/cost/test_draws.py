"""A timeline's parts that are uncertain."""

import numpy as np
import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.draws import ROBUST, kept_ms, uncertain_run
from stretch.planning.cost.makespan import timeline
from stretch.planning.plan import plan
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE


@pytest.mark.slow
def test_parts_of_a_timeline_add_up_to_its_makespan_and_segments_can_be_told_one_by_one():
    graph, device = small_resnet(96), specified("mi9")
    result = plan(graph, device, PlanConfig(processors=("cpu", "gpu"), **LOOSE))
    run = timeline(graph, result.design, Costs(LatencyPredictor(device), result.config.precision))
    whole = uncertain_run(run.segments, device, run.output)
    assert whole.ms() == pytest.approx(run.makespan_ms)
    alone = sum(uncertain_run([row], device).ms() for row in run.segments)
    assert alone + run.output_ms == pytest.approx(run.makespan_ms)


def test_time_that_most_draws_keep_is_a_quantile():
    assert kept_ms(np.arange(101.0)) == pytest.approx(100 * ROBUST)
