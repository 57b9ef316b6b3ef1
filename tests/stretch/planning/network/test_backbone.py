import pytest

pytest.importorskip("torch")
from hypothesis import given

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from stretch.network.capture.trace import capture_traced
from stretch.planning.network.segments import MAX_SIDES, backbone_of
from tests.stretch.several import networks, shapes

pytestmark = pytest.mark.torch


@pytest.mark.slow
@given(networks())
def test_every_operator_is_in_the_backbone_or_one_side_and_parts_are_in_executable_order(module):
    graph = capture_traced(module, shapes(module)).graph
    backbone = backbone_of(graph)
    parts = [*backbone.before, backbone.graph, *backbone.after]
    available = {op.name for op in graph.inputs}
    for part in parts:
        assert {op.name for op in part.inputs} <= available
        names = [op.name for op in part.ops if op.kind != "input"]
        assert not available & set(names)
        available |= set(names)
    assert (available, sum(part.macs for part in parts)) == (set(graph.by_name), graph.macs)
    assert len(backbone.graph.inputs) == len(backbone.graph.outputs) == 1


def test_sides_are_merged_if_too_many():
    ops = [Op("input", "input", attrs={"shape": (1, 4, 8, 8)}), Op("a", "relu", ("input",))]
    ops += [Op(f"r{i}", "relu", ("a",)) for i in range(2 * MAX_SIDES)]
    graph = OpGraph.build("net", ops, [f"r{i}" for i in range(2 * MAX_SIDES)])
    backbone = backbone_of(graph)
    assert len(backbone.sides) == MAX_SIDES
    assert {op.name for side in backbone.sides for op in side.ops} >= {f"r{i}" for i in range(1, 2 * MAX_SIDES)}


def test_network_that_only_combines_its_inputs_is_refused():
    ops = [Op("a", "input", attrs={"shape": (1, 4)}), Op("b", "input", attrs={"shape": (1, 4)}), Op("c", "add", ("a", "b"))]
    with pytest.raises(StretchError, match="one tensor alone"):
        backbone_of(OpGraph.build("net", ops, "c"))
