import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch may be missing

from predictors.errors import StretchError  # noqa: E402
from predictors.graph import Op, OpGraph  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.emit.code import code_of  # noqa: E402

pytestmark = pytest.mark.torch


class Summed(nn.Module):
    """Sums along rows, which no family has."""

    def forward(self, x):
        return torch.cumsum(x, 3)


def opaque():
    graph = capture(nn.Sequential(nn.Conv2d(3, 4, 1), Summed()), (1, 3, 8, 8), "net").graph
    return graph, next(op for op in graph.ops if op.kind == "opaque")


def test_calls_are_calls_of_torch():
    graph, op = opaque()
    assert "torch.ops.aten.cumsum.default({0}, 3)" in code_of(op, graph.input_shapes(op)).expression


def test_call_that_is_none_of_torch_s_is_not_written():
    graph, op = opaque()
    attrs = {**op.attrs, "calls": op.attrs["calls"].replace("cumsum.default", "nothing.default")}
    with pytest.raises(StretchError, match="no operator"):
        code_of(Op(op.name, "opaque", op.inputs, attrs), graph.input_shapes(op))
    words = {**op.attrs, "calls": op.attrs["calls"].replace('[{"read":0},3]', '[{"read":0},"x\'); print(1"]')}
    assert words != op.attrs
    with pytest.raises(StretchError, match="cannot be written as Python code"):
        code_of(Op(op.name, "opaque", op.inputs, words), graph.input_shapes(op))
    assert isinstance(graph, OpGraph)
