"""A request without designs is told which rule gives way."""

import re

import pytest

from predictors.errors import InfeasibleError, TightRule
from stretch.planning.config import PlanConfig
from stretch.planning.messages import as_flag, as_key, error_spelled
from stretch.planning.plan import plan
from stretch.planning.search.goal import tightest
from tests.predictors.networks import Net, resnet50, small_resnet
from tests.predictors.specified import specified

PIXEL6 = specified("pixel6")


def refusal(graph, **request):
    with pytest.raises(InfeasibleError) as caught:
        plan(graph, PIXEL6, PlanConfig(**request))
    assert caught.value.exit_code == 4
    return caught.value


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        ({"alpha": 0.02}, "alpha"),
        ({"beta": 0.3}, "beta"),
        pytest.param({"macs": (1.6, 1.7)}, "macs", marks=pytest.mark.slow),
        ({"n_meet": 5}, "n_meet"),
        ({"latency_budget": 10.0}, "latency_budget"),
        pytest.param({"params": (0.5, 0.6)}, "params", marks=pytest.mark.slow),
        ({"peak_memory": 100_000}, "peak_memory"),
        pytest.param({"min_depth": 1.0, "min_width": 1.0}, "min_", marks=pytest.mark.slow),
    ],
)
def test_named_value_is_feasible_when_used(request_, rule):
    graph = resnet50()
    error = refusal(graph, **request_)
    (tight,) = error.rules
    assert tight.rule.startswith(rule)
    assert tight.value == request_[tight.rule]
    assert re.search(rf"the nearest value with a design is `{tight.rule}=\(?[\d.]+", error.hint)
    result = plan(graph, PIXEL6, PlanConfig(**(request_ | {tight.rule: tight.nearest})))
    assert result.design.n_meet >= 1


def test_network_without_stages_to_branch_is_refused():
    net = Net(1, 3, 8, 8)
    net.conv(8, 3)
    net.head(10)
    error = refusal(net.graph("toy"), kinds=("stretch",))
    assert "no segment that can branch" in error.message


def test_segments_too_short_for_their_communication_name_alpha():
    error = refusal(small_resnet(), kinds=("stretch",))
    assert "alpha=0.2" in error.message


ALPHA, MACS = TightRule("alpha", 0.2, 0.676), TightRule("macs", (3.0, 4.0), (1.503, 4.0))


@pytest.mark.parametrize(
    ("spelling", "message", "hint"),
    [
        (as_flag, "the tightest is --set macs=3:4", "the nearest value with a design is --set macs=1.503:4"),
        (as_key, "the tightest is `plan.macs = [3, 4]`", "the nearest value with a design is `plan.macs = [1.503, 4]`"),
    ],
)
def test_one_rule_is_named_as_each_edge_writes_it(spelling, message, hint):
    error = tightest("net", [MACS])
    result = error_spelled(error, spelling)
    assert result.message == f"no design of `net` meets the constraints; {message}"
    assert result.hint == hint
    assert (result.rules, result.exit_code) == ((MACS,), 4)
    assert error.message.endswith("the tightest is `macs=(3, 4)`")
