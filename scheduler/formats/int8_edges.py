"""Scales at the edges of an int8 subgraph, with which it quantises its float inputs and dequantises its outputs."""

from dataclasses import dataclass
from typing import Any

from predictors.errors import StretchError

_HINT = "write the bundle again with `stretch export`"


@dataclass(frozen=True)
class Quant:
    """Scale of rounded numbers: real = scale · (integer − zero point)."""

    scale: float
    zero_point: int


def edges(model: Any) -> tuple[dict[str, Quant], dict[str, Quant]]:
    """Return the scales with which an int8 subgraph quantises its inputs and dequantises its outputs, by tensor."""
    import onnx.numpy_helper

    def edge(node: Any) -> Quant:
        try:
            scale, zero = (onnx.numpy_helper.to_array(constants[name]).item() for name in node.input[1:3])
        except (KeyError, ValueError) as error:
            raise StretchError(f"int8 subgraph `{graph.name}` has no single scale at `{node.name or node.op_type}`", _HINT) from error
        return Quant(float(scale), int(zero))

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    producers = {out: node for node in graph.node for out in node.output}
    reads: dict[str, Quant] = {}
    for tensor in (value.name for value in graph.input):
        readers = [node for node in graph.node if tensor in node.input]
        if not readers or any(node.op_type != "QuantizeLinear" for node in readers):
            raise StretchError(f"int8 subgraph `{graph.name}` reads `{tensor}` without quantising it", _HINT)
        reads[tensor] = edge(readers[0])
    writes: dict[str, Quant] = {}
    for tensor in (value.name for value in graph.output):
        last = producers.get(tensor)
        if last is None or last.op_type != "DequantizeLinear":
            raise StretchError(f"int8 subgraph `{graph.name}` writes `{tensor}` without dequantising it", _HINT)
        before = producers.get(last.input[0])
        writes[tensor] = edge(last)
        if before is None or before.op_type != "QuantizeLinear" or edge(before) != writes[tensor]:
            raise StretchError(f"int8 subgraph `{graph.name}` writes `{tensor}` in another scale than it was rounded in", _HINT)
    return reads, writes
