"""No exact division of a network is faster than the bound says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from experiments.simulated_speedup.devices import with_speed
from predictors.devices import load_device
from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.compare import _least, least_divided_ms
from stretch.planning.plan import plan
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

SHAPES = st.tuples(st.integers(2, 3), st.integers(1, 8))


@given(SHAPES.flatmap(lambda shape: arrays(float, shape, elements=st.floats(0.01, 50))), st.floats(0, 20))
def test_bound_is_that_of_the_linear_program(times, last_exchange):
    exchange = np.linspace(0, last_exchange, len(times))
    processors, groups = times.shape
    # the last variable is the time when all is done
    ends = np.zeros((processors, processors * groups + 1))
    for p in range(processors):
        ends[p, p * groups : (p + 1) * groups], ends[p, -1] = times[p], -1
    whole = np.hstack([np.tile(np.eye(groups), processors), np.zeros((groups, 1))])
    fun = linprog([0.0] * (processors * groups) + [1.0], ends, -exchange, whole, np.ones(groups)).fun
    bound = _least(times, exchange)
    assert bound <= fun * (1 + 1e-6)
    if processors == 2:
        assert bound == pytest.approx(fun, rel=1e-6)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("device", [specified("mi9"), with_speed(specified("mi9"), "gpu", 0.2), *map(load_device, ("pixel4", "q6690"))])
def test_no_exact_plan_is_faster_than_the_bound(device):
    graph = small_resnet(64)
    precision = {name: device.processor(name).default_precision for name in device.processors}
    bound = least_divided_ms(graph, Costs(LatencyPredictor(device), precision))
    result = plan(graph, device, PlanConfig(lossless=True, precision=precision, alpha=10.0))
    assert 0 < bound <= result.run.makespan_ms
