"""Where an int8 subgraph meets the float tensors around it: the scales it reads and writes them with."""

from dataclasses import dataclass
from typing import Any

from predictors.errors import StretchError

_AGAIN = "write the bundle again with `stretch export`"


@dataclass(frozen=True)
class Edge:
    """The integers in which a float edge of an int8 subgraph is read or written: real = scale · (integer − zero point)."""

    scale: float
    zero_point: int


def edges(model: Any) -> tuple[Edge, Edge]:
    """Scales with which an int8 subgraph quantises its input and dequantises its output.

    Raises:
        StretchError: If it reads its input or writes its output without a scale
            of its own, or in another scale than the integers beside it have:
            its branch would not be re-quantised at a join.
    """
    import onnx.numpy_helper

    def edge(node: Any) -> Edge:
        try:
            scale, zero = (onnx.numpy_helper.to_array(constants[name]).item() for name in node.input[1:3])
        except (KeyError, ValueError) as error:
            raise StretchError(f"int8 subgraph `{graph.name}` has no single scale at `{node.name or node.op_type}`", _AGAIN) from error
        return Edge(float(scale), int(zero))

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    tensor = graph.input[0].name
    readers = [node for node in graph.node if tensor in node.input]
    if not readers or any(node.op_type != "QuantizeLinear" for node in readers):
        raise StretchError(f"int8 subgraph `{graph.name}` reads `{tensor}` without quantising it", _AGAIN)
    tensor = graph.output[0].name
    made = {out: node for node in graph.node for out in node.output}
    last = made.get(tensor)
    if last is None or last.op_type != "DequantizeLinear":
        raise StretchError(f"int8 subgraph `{graph.name}` writes `{tensor}` without dequantising it", _AGAIN)
    before = made.get(last.input[0])
    first, written = edge(readers[0]), edge(last)
    if before is None or before.op_type != "QuantizeLinear" or edge(before) != written:
        raise StretchError(
            f"int8 subgraph `{graph.name}` writes `{tensor}` in another scale than it was rounded in",
            _AGAIN,
        )
    return first, written
