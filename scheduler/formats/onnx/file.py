"""ONNX files as data: read, their shapes, their nodes, and where their weights lie."""

from pathlib import Path
from typing import Any

from predictors.errors import StretchError
from predictors.files import read_bytes

#: What a protobuf message may have.
MAX_BYTES = (1 << 31) - 1


def load_onnx(model: Path) -> Any:
    """The `onnx.ModelProto` in a file, without its external data."""
    import onnx

    content = read_bytes(model, "ONNX model", MAX_BYTES)
    try:
        proto = onnx.load_model_from_string(content)
    # What protobuf raises for a damaged file differs between its versions.
    except Exception as error:
        raise StretchError(f"{model} is not an ONNX model", "write the bundle again with `stretch branch`") from error
    if not proto.graph.output:
        raise StretchError(f"{model} is not an ONNX model: it has no output", "write the bundle again with `stretch branch`")
    return proto


def graph_shapes(proto: Any, model: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Shapes of the inputs (weights left out) and outputs of an ONNX model."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    by_kind: list[dict[str, tuple[int, ...]]] = []
    for values in (proto.graph.input, proto.graph.output):
        shapes: dict[str, tuple[int, ...]] = {}
        for value in values:
            if value.name in weights:
                continue
            dims = value.type.tensor_type.shape.dim
            if any(d.dim_value <= 0 for d in dims):
                raise StretchError(f"`{value.name}` of {model} has no fixed shape", "export the model with fixed shapes")
            shapes[value.name] = tuple(d.dim_value for d in dims)
        by_kind.append(shapes)
    return by_kind[0], by_kind[1]


def external_locations(graph: Any) -> set[str]:
    """Where the weights of an ONNX graph that are not in its file lie, those of nested graphs included."""
    locations: set[str] = set()
    tensors = list(graph.initializer)
    for sparse in graph.sparse_initializer:
        tensors += [sparse.values, sparse.indices]
    for node in graph.node:
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
            for nested in (attribute.g, *attribute.graphs):
                if nested.node or nested.initializer:
                    locations |= external_locations(nested)
    for tensor in tensors:
        locations.update(entry.value for entry in tensor.external_data if entry.key == "location")
    return locations
