import pytest

from stretch.planning.pareto import diverse_designs, signature
from stretch.planning.search.goal import search_best
from stretch.planning.search.space import Totals
from tests.stretch.planning.search.test_goal import GRAPHS, goal_of, spaced
from tests.stretch.planning.spaces import every_design


@pytest.mark.parametrize("text", ["latency", "energy"])
@pytest.mark.parametrize(
    ("name", "kinds", "processors"),
    [
        ("resnet", ("stretch",), ("cpu", "gpu", "dsp")),
        ("resnet", ("stretch", "rows"), ("cpu", "dsp")),
        ("paths", ("channels", "graph"), ("cpu", "gpu")),
    ],
)
@pytest.mark.slow
def test_each_design_has_a_new_segment_and_shares_as_little_as_brute_force_finds(text, name, kinds, processors):
    graph, space = GRAPHS[name], spaced(name, kinds, processors)
    low, high, goal = round(0.9 * graph.macs), round(1.5 * graph.macs), goal_of(text, space)
    best = search_best(space, Totals(low, high, 1), goal)
    result = diverse_designs(space, Totals(low, high, 1), goal, best, 4, 2.0)
    values = [goal.value(space, item.picks) for item in result]
    assert result[0] is best
    assert all(value <= 2 * values[0] + 1e-6 for value in values)
    feasible = [
        (picks, value) for picks, _, _ in every_design(space, low, high, 1) if (value := goal.value(space, picks)) <= 2 * values[0] + 1e-9
    ]
    uses: dict = {}
    for number, item in enumerate([*result, None]):
        pool = [(shared(picks, uses), value) for picks, value in feasible if any(signature(options) not in uses for options, _ in picks)]
        if item is None:
            assert number == 4 or not pool
            break
        if number:
            assert (shared(item.picks, uses), values[number]) == pytest.approx(min(pool))
        for segment in [signature(options) for options, _ in item.picks]:
            uses[segment] = uses.get(segment, 0) + 1


def shared(picks, uses):
    return sum(uses.get(signature(options), 0) * options.span for options, _ in picks)
