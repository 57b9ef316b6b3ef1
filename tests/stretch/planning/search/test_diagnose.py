"""A refusal names the tightest rule and a value that does have a design, and no tighter one."""

import re

import pytest

from predictors.devices import load_device
from predictors.errors import InfeasibleError
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from tests.predictors.networks import Net, resnet50, small_resnet

PIXEL6 = load_device("pixel6")
FIELDS = {
    "--alpha": "alpha", "--beta": "beta", "--balance": "balance", "--segment-macs": "segment_macs", "--min-depth": "min_depth",
    "--min-width": "min_width", "--n-meet": "n_meet", "--latency-budget": "latency_budget", "--peak-memory": "peak_memory",
}  # fmt: skip


def value(flag, text):
    if ":" in text:
        low, high = text.split(":")
        return {flag.removeprefix("--"): (float(low), float(high))}
    number = float(text)
    return {FIELDS[flag]: round(number) if flag in ("--n-meet", "--peak-memory") else number}


def refusal(graph, **request):
    with pytest.raises(InfeasibleError) as caught:
        plan(graph, PIXEL6, PlanConfig(**request))
    assert caught.value.exit_code == 4
    return caught.value


@pytest.mark.parametrize(
    ("request_", "flag"),
    [
        ({"alpha": 0.02}, "--alpha"),
        ({"beta": 0.3}, "--beta"),
        pytest.param({"macs": (1.6, 1.7)}, "--macs", marks=pytest.mark.slow),
        ({"n_meet": 5}, "--n-meet"),
        ({"latency_budget": 10.0}, "--latency-budget"),
        pytest.param({"params": (0.5, 0.6)}, "--params", marks=pytest.mark.slow),
        ({"peak_memory": 100_000}, "--peak-memory"),
        pytest.param({"min_depth": 1.0, "min_width": 1.0}, "--min-", marks=pytest.mark.slow),
    ],
)
def test_named_value_is_feasible_when_used(request_, flag):
    graph = resnet50()
    error = refusal(graph, **request_)
    found = re.search(r"the nearest value with a design is (--\S+) (\S+)$", error.hint)
    assert found, error.hint
    assert found[1].startswith(flag)
    result = plan(graph, PIXEL6, PlanConfig(**(request_ | value(found[1], found[2]))))
    assert result.design.n_meet >= 1


def test_named_alpha_is_the_tightest_that_works():
    graph = resnet50()
    hint = refusal(graph, alpha=0.02).hint
    nearest = float(hint.split()[-1])
    refusal(graph, alpha=nearest * 0.995)


def test_network_without_stages_to_branch_is_refused():
    net = Net(1, 3, 8, 8)
    net.conv(8, 3)
    net.head(10)
    error = refusal(net.graph("toy"))
    assert "no segment that can branch" in error.message


def test_segments_too_short_for_their_communication_name_alpha():
    error = refusal(small_resnet())
    assert "--alpha 0.2" in error.message


def test_two_rules_that_must_both_give_way_are_named_with_values_that_work_together():
    request = {"alpha": 0.01, "beta": 0.1}
    graph = resnet50()
    error = refusal(graph, **request)
    pairs = re.findall(r"(--\S+) (\S+)", error.hint)
    assert "the tightest are" in error.message
    assert len(pairs) == 2
    for flag, text in pairs:
        request |= value(flag, text)
    assert plan(graph, PIXEL6, PlanConfig(**request)).design.n_meet >= 1
