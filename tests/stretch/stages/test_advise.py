import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from predictors.devices import load_device
from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.compare import MIN_GAIN
from stretch.planning.plan import plan
from stretch.stages.advise import _min_divided_ms, advise, min_divided_ms, precisions_at
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified, with_speed

GRAPH = small_resnet(96)


@pytest.mark.slow
def test_answers_equal_separate_plans_with_the_fastest_first():
    # these devices share backends, so results for the first device are used for the second
    names = ("pixel4", "mi9")
    answers = advise("small", GRAPH, [load_device(name) for name in names]).answers
    ms = [(getattr(answer, answer.recommended, None) or answer.best_single).ms for answer in answers]
    assert (ms, len(ms)) == (sorted(ms), len(names))
    compared = 0
    for answer in answers:
        device = load_device(answer.device)
        for branches, options in ((answer.exact, {"lossless": True}), (answer.stretched, {"kinds": ("stretch",)})):
            if branches is None:
                continue
            result = plan(GRAPH, device, PlanConfig(precision=precisions_at(device, None), **options))
            single = next(control for control in result.recommendation.compared if control.name.startswith("single:"))
            assert (branches.recommended, branches.ms) == (result.recommended, pytest.approx(result.run.makespan_ms))
            assert (branches.speedup, branches.low, branches.high) == pytest.approx((single.ratio, single.low, single.high))
            best = answer.best_single
            assert (best.ms, best.low_ms, best.high_ms) == pytest.approx((result.best_single.ms, single.low_ms, single.high_ms))
            compared += 1
    assert compared


def test_exact_branches_are_not_planned_if_a_bound_excludes_their_gain():
    device = with_speed(msgspec.structs.replace(specified("mi9"), fits={}), "gpu", 0.001)
    device = msgspec.structs.replace(device, processors={name: device.processors[name] for name in ("cpu", "gpu")})
    [answer] = advise("small", GRAPH, [device]).answers
    assert answer.exact is None
    assert 0 < answer.exact_at_most < MIN_GAIN
    result = plan(GRAPH, device, PlanConfig(lossless=True, precision=precisions_at(device, None)))
    assert result.recommended.startswith("single:")


def test_precision_is_the_narrowest_that_is_as_wide_as_requested():
    assert precisions_at(load_device("mi9"), "fp16") == {"cpu": "fp32", "gpu": "fp16"}
    # its NPU runs only int8
    [answer] = advise("small", GRAPH, [load_device("rb3gen2")], "fp16").answers
    assert (answer.recommended, answer.best_single.precision) == ("single:cpu", "fp32")
    assert answer.reason == "cpu is the only processor with that precision or a wider one"


SHAPES = st.tuples(st.integers(2, 3), st.integers(1, 8))


@given(SHAPES.flatmap(lambda shape: arrays(float, shape, elements=st.floats(0.01, 50))), st.floats(0, 20))
def test_bound_equals_the_linear_program(times, last_exchange):
    exchange = np.linspace(0, last_exchange, len(times))
    processors, groups = times.shape
    # the last variable is the time at which all processors are done
    ends = np.zeros((processors, processors * groups + 1))
    for p in range(processors):
        ends[p, p * groups : (p + 1) * groups], ends[p, -1] = times[p], -1
    whole = np.hstack([np.tile(np.eye(groups), processors), np.zeros((groups, 1))])
    optimum = linprog([0.0] * (processors * groups) + [1.0], ends, -exchange, whole, np.ones(groups)).fun
    bound = _min_divided_ms(times, exchange)
    assert bound <= optimum * (1 + 1e-6)
    if processors == 2:
        assert bound == pytest.approx(optimum, rel=1e-6)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("device", [specified("mi9"), with_speed(specified("mi9"), "gpu", 0.2), *map(load_device, ("pixel4", "q6690"))])
def test_no_exact_plan_is_faster_than_the_bound(device):
    graph = small_resnet(64)
    precision = {name: device.processor(name).default_precision for name in device.processors}
    bound = min_divided_ms(graph, Costs(LatencyPredictor(device), precision))
    result = plan(graph, device, PlanConfig(lossless=True, precision=precision, alpha=10.0))
    assert 0 < bound <= result.run.makespan_ms
