import pytest

from predictors.errors import InfeasibleError
from stretch.planning.scale import scaled_graph
from stretch.train.pool import random_designs

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
ALIGN = {"cpu": 8, "gpu": 4, "dsp": 8}


@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_drawn_designs_differ_and_cost_what_was_asked_for(captured, processors):
    graph = captured("tiny_resnet").graph
    designs = random_designs(graph, "mi9", processors, ALIGN, 4, (0.9, 1.1))
    assert len(set(designs)) == 4
    for design in designs:
        assert 0.9 <= scaled_graph(graph, design).macs / graph.macs <= 1.1
        assert {p for s in design.segments if not s.whole for p in (b.processor for b in s.branches)} == set(processors)


def test_equal_seeds_draw_equal_designs(captured):
    graph = captured("tiny_resnet").graph
    one, two, other = (random_designs(graph, "mi9", ("cpu", "gpu"), ALIGN, 2, (0.9, 1.1), seed=s) for s in (1, 1, 2))
    assert one == two != other


def test_range_without_designs_is_refused(captured, monkeypatch):
    monkeypatch.setattr("stretch.train.pool._TRIES", 50)
    with pytest.raises(InfeasibleError, match="0 of 2 designs"):
        random_designs(captured("tiny_resnet").graph, "mi9", ("cpu", "gpu"), ALIGN, 2, (9.0, 9.1))
