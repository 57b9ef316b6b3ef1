import pytest

torch = pytest.importorskip("torch")

from stretch.transform import BranchedModel  # noqa: E402
from stretch.transform.model import op_weights  # noqa: E402
from tests.stretch.designs import identity_design  # noqa: E402

pytestmark = pytest.mark.torch


def test_weights_by_operator_have_the_shapes_of_the_graph(captured):
    graph = captured("tiny_mobilenet").graph
    model = BranchedModel(graph, identity_design(graph))
    weights = op_weights(model)
    for op in model.graph.ops:
        assert {k: tuple(v.shape) for k, v in weights.get(op.name, {}).items()} == model.graph.op_weights(op)


def test_only_tensors_that_are_still_read_are_kept(captured):
    graph = captured("tiny_resnet").graph
    branch = BranchedModel(graph, identity_design(graph)).branch("s1", "cpu")
    freed = [name for _, _, done in branch.steps for name in done]
    assert len(freed) == len(set(freed))
    assert set(freed) == {name for _, inputs, _ in branch.steps for name in inputs} - {*branch.results}
