import msgspec
import pytest

from predictors.errors import InfeasibleError
from stretch.planning.config import PlanConfig
from stretch.planning.design.scale import scaled_graph
from stretch.planning.plan import evaluate, plan
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import small_resnet

pytest.importorskip("torch")
from stretch.train.pool import designs_between, fastest_designs, random_designs

pytestmark = pytest.mark.torch


@pytest.mark.slow
@pytest.mark.parametrize("processors", [("cpu", "gpu", "dsp")])
def test_drawn_designs_differ_and_cost_what_was_asked_for(captured, processors):
    graph = captured("tiny_resnet").graph
    designs = random_designs(graph, specified("mi9"), processors, 4, (0.9, 1.1))
    assert len(set(designs)) == 4
    for design in designs:
        assert 0.9 <= scaled_graph(graph, design).macs / graph.macs <= 1.1
        assert {p for s in design.segments if not s.whole for p in (b.processor for b in s.branches)} == set(processors)


def test_range_without_designs_is_refused(captured, monkeypatch):
    monkeypatch.setattr("stretch.train.pool._TRIES", 50)
    with pytest.raises(InfeasibleError, match="0 of 2 designs"):
        random_designs(captured("tiny_resnet").graph, specified("mi9"), ("cpu", "gpu"), 2, (9.0, 9.1))


def test_designs_between_stay_within_the_pool(captured):
    graph = captured("tiny_resnet").graph
    pool = random_designs(graph, specified("mi9"), ("cpu", "gpu"), 4, (0.8, 1.2), seed=3)
    found = designs_between(graph, pool, 5, (0.8, 1.2), seed=1)
    assert len(set(found)) == 5
    assert found == designs_between(graph, pool, 5, (0.8, 1.2), seed=1)
    for design in found:
        for number, part in enumerate(design.segments):
            assert (part.start, part.end, part.join) == (
                pool[0].segments[number].start,
                pool[0].segments[number].end,
                pool[0].segments[number].join,
            )
            for index, branch in enumerate(part.branches):
                own = [d.segments[number].branches[index] for d in pool]
                assert min(b.depth for b in own) <= branch.depth <= max(b.depth for b in own)
                assert min(b.width for b in own) <= branch.width <= max(b.width for b in own)


def test_fastest_designs_are_the_planners_and_share_their_meeting_points():
    graph = small_resnet()
    profile = specified("mi9")
    config = PlanConfig(processors=("cpu", "gpu"), alpha=5.0, beta=5.0, balance=0.01, segment_macs=0.1)
    found = fastest_designs(graph, profile, config, 3, (0.8, 1.2))
    assert len(set(found)) == 3
    times = [evaluate(graph, profile, design, config).run.makespan_ms for design in found]
    assert times == sorted(times)
    best = plan(graph, profile, msgspec.structs.replace(config, macs=(0.8, 1.2))).run.makespan_ms
    assert times[0] >= best - 1e-9
    assert len({tuple((s.start, s.end, s.join) for s in d.segments) for d in found}) == 1
