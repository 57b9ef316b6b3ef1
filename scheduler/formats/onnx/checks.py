"""What an ONNX file of a bundle may hold: known operators, honest weights, bounded work and memory.

Everything is worked out from the file's own numbers, before ONNX Runtime,
QNN, OpenVINO or the shape inference of the `onnx` package sees it.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictors.errors import StretchError, need
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.moving import SHORT
from scheduler.formats.onnx.shapes.node import (
    BOOL,
    FLOAT,
    FLOAT16,
    INT8,
    INT32,
    INT64,
    MAX_RANK,
    MAX_RESULTS,
    TYPE_NAMES,
    UINT8,
    Cost,
    KnownTensor,
    Shape,
    ShapeNode,
    reason,
)

#: Multiply-accumulates of one file: twice those of a ViT-H/14 of 518 × 518 pixels.
MAX_WORK = 1 << 41

#: Elements alive at one time, weights left out: half a gigabyte of reals.
MAX_ALIVE = 1 << 27

#: Operators and weights of one file.
MAX_PARTS = 20_000

#: Types of attributes that are numbers and words: FLOAT, INT, STRING, FLOATS, INTS.
PLAIN = (1, 2, 3, 6, 7)

#: Operators with an attribute that is a tensor, and the type of such attributes.
_STORING, _TENSOR = ("Constant", "ConstantOfShape"), 4

_AGAIN = "write the bundle again with `stretch branch`"


@dataclass(frozen=True)
class Demand:
    """What it takes to run a file.

    Args:
        work: Multiply-accumulates, or operations on single elements.
        alive: Most elements alive at one time, weights left out.
    """

    work: int
    alive: int


def check_onnx(proto: Any, model: Path) -> Demand:
    """Check an ONNX model that a runtime is to load."""
    try:
        return _check(proto, model)
    except StretchError as error:
        raise StretchError(f"{model} cannot be run: {error.message}", error.hint or _AGAIN) from error


def tensor_shapes(proto: Any, model: Path) -> dict[str, Shape]:
    """Shape of every tensor of a model, weights included, worked out from its inputs."""
    try:
        inputs, weights, costs = _worked_out(proto, model)
    except StretchError as error:
        raise StretchError(f"{model} cannot be read: {error.message}", error.hint or _AGAIN) from error
    return {name: tensor.shape for name, tensor in (inputs | weights | _results(proto.graph, costs)).items()}


def _check(proto: Any, model: Path) -> Demand:
    graph = proto.graph
    inputs, _, costs = _worked_out(proto, model)
    computed = inputs | _results(graph, costs)
    known = {name: tensor.shape for name, tensor in computed.items()}
    for value in graph.output:
        need(value.name in known, f"nothing writes its output `{value.name}`")
        stated, computed_type = _stated(value), computed[value.name]
        need(
            computed_type.shape == stated.shape, f"it states {list(stated.shape)} for `{value.name}` and makes {list(computed_type.shape)}"
        )
        need(
            computed_type.type == stated.type,
            f"it states {TYPE_NAMES[stated.type]} for `{value.name}` and makes {TYPE_NAMES[computed_type.type]}",
        )
    _check_statistics(graph)
    work, alive = sum(cost.work for cost in costs), _most_alive(graph, known)
    need(work <= MAX_WORK, f"it takes {work:.1e} multiply-accumulates, {MAX_WORK:.1e} are allowed")
    need(alive <= MAX_ALIVE, f"it keeps {alive:.1e} elements at one time, {MAX_ALIVE:.1e} are allowed")
    return Demand(work, alive)


def _results(graph: Any, costs: list[Cost]) -> dict[str, KnownTensor]:
    """What the operators write, by name."""
    pairs = (zip(node.output, cost.results, strict=True) for node, cost in zip(graph.node, costs, strict=True))
    return {name: tensor for pair in pairs for name, tensor in pair if name}


def _worked_out(proto: Any, model: Path) -> tuple[dict[str, KnownTensor], dict[str, KnownTensor], list[Cost]]:
    """The inputs and the weights by name, and what each operator makes."""
    graph = proto.graph
    need(not proto.functions and not proto.training_info, "it defines functions or training steps")
    need(not graph.sparse_initializer, "it has sparse weights")
    need(not graph.quantization_annotation, "it has quantisation annotations")
    need(max(len(graph.node), len(graph.initializer)) <= MAX_PARTS, f"it has more than {MAX_PARTS} operators or weights")
    for what, names in (("weights", [t.name for t in graph.initializer]), ("inputs", [v.name for v in graph.input])):
        _check_unique(what, names)
    _check_unique("outputs", [value.name for value in graph.output])
    weights = {tensor.name: stored_tensor(tensor, model) for tensor in graph.initializer}
    inputs = {value.name: _stated(value) for value in graph.input if value.name not in weights}
    return inputs, weights, _costs(graph, weights | inputs, model)


def _check_unique(what: str, names: list[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    need(twice is None, f"two of its {what} are called `{twice}`")


def _stated(value: Any) -> KnownTensor:
    """What an input or output is said to be."""
    type, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
    need(type in TYPES, f"`{value.name}` has element type {type}, which nn-stretch does not write")
    need(len(dims) <= MAX_RANK, f"`{value.name}` has {len(dims)} axes")
    need(all(d.dim_value > 0 for d in dims), f"`{value.name}` has no fixed shape")
    shape = tuple(d.dim_value for d in dims)
    need(math.prod(shape) <= MAX_ALIVE, f"`{value.name}` has the shape {list(shape)}")
    return KnownTensor(shape, type)


def _costs(graph: Any, known: Mapping[str, KnownTensor], model: Path) -> list[Cost]:
    """What each operator makes; `known` are the inputs and the weights."""
    tensors = dict(known)
    costs = []
    for i, node in enumerate(graph.node):
        name = node.name or f"{node.op_type}_{i}"
        try:
            _check_node(node, tensors)
            cost = _cost(node, tensors, model)
        except StretchError as error:
            raise StretchError(f"operator `{name}` ({node.op_type}): {error.message}", error.hint) from error
        tensors |= {name: tensor for name, tensor in zip(node.output, cost.results, strict=True) if name}
        costs.append(cost)
    return costs


def _check_node(node: Any, there: Mapping[str, KnownTensor]) -> None:
    """Refuse a node that no rule knows, that reads what is not there, or writes what is."""
    need(node.domain in ("", "ai.onnx"), f"no bundle holds operators of the domain `{node.domain[:60]}`; write it with ONNX's own")
    need(node.op_type in RULES, reason(node.op_type))
    written = [name for name in node.output if name]
    need(0 < len(node.output) <= MAX_RESULTS and bool(node.output[0]), f"it has {len(node.output)} results")
    twice = next((name for name in written if name in there or written.count(name) > 1), None)
    need(twice is None, f"`{twice}` is written twice")
    for name in node.input:
        need(not name or name in there, f"it reads `{name}`, which nothing writes before it")


def _cost(node: Any, there: Mapping[str, KnownTensor], model: Path) -> Cost:
    attrs = {attribute.name: _attribute(attribute, node.op_type in _STORING, model) for attribute in node.attribute}
    need(len(attrs) == len(node.attribute), "it has an attribute twice")
    cost = RULES[node.op_type](ShapeNode(tuple(there[name] if name else None for name in node.input), attrs, len(node.output)))
    need(len(cost.results) == len(node.output), f"it has {len(node.output)} results, {len(cost.results)} are allowed")
    for result in cost.results:
        fits = len(result.shape) <= MAX_RANK and all(n > 0 for n in result.shape) and result.size <= MAX_ALIVE
        need(fits, f"it makes a tensor of {str(list(result.shape))[:200]}")
    return cost


def _attribute(attribute: Any, stores: bool, model: Path) -> Any:
    """The value of an attribute: a number, a word, a list, or the tensor of an operator that stores one."""
    import onnx.helper

    plain = attribute.type in PLAIN or (stores and attribute.type == _TENSOR)
    need(plain and not attribute.ref_attr_name, f"its attribute `{attribute.name}` is no number or word")
    return stored_tensor(attribute.t, model) if attribute.type == _TENSOR else onnx.helper.get_attribute_value(attribute)


def _check_statistics(graph: Any) -> None:
    """Variances are not negative: their root would be no number."""
    import onnx.numpy_helper

    variances = {node.input[4] for node in graph.node if node.op_type == "BatchNormalization"}
    for tensor in graph.initializer:
        if tensor.name in variances and tensor.data_location != EXTERNAL:
            array = onnx.numpy_helper.to_array(tensor)
            need(bool((array >= 0).all()), f"variance `{tensor.name}` of a batch norm is negative or no number")


def _most_alive(graph: Any, shapes: Mapping[str, Shape]) -> int:
    """Most elements that have been written and will still be read, at any operator."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    last = {name: i for i, node in enumerate(graph.node) for name in (*node.output, *node.input) if name in sizes}
    last |= {value.name: len(graph.node) for value in graph.output}
    ends: dict[int, list[str]] = {}
    for name, i in last.items():
        ends.setdefault(i, []).append(name)
    written = {name for node in graph.node for name in node.output}
    alive = most = sum(size for name, size in sizes.items() if name not in written)
    for i, node in enumerate(graph.node):
        alive += sum(sizes[name] for name in node.output if name)
        most = max(most, alive)
        alive -= sum(sizes[name] for name in ends.get(i, []))
    return most


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


#: Element types of weights: bytes of one, and the field that holds them where they are no raw bytes.
TYPES = {
    FLOAT: (4, "float_data"),
    UINT8: (1, "int32_data"),
    INT8: (1, "int32_data"),
    INT32: (4, "int32_data"),
    INT64: (8, "int64_data"),
    BOOL: (1, "int32_data"),
    FLOAT16: (2, "int32_data"),
}

#: Where the bytes of a tensor are, if not in its file.
EXTERNAL = 1


def stored_tensor(tensor: Any, model: Path) -> KnownTensor:
    """What is known of a weight whose bytes are as many as it says: its numbers too, where it is short and inside the file.

    Args:
        tensor: The `onnx.TensorProto`.
    """
    need(tensor.data_type in TYPES, f"weight `{tensor.name}` has element type {tensor.data_type}, which nn-stretch does not write")
    need(all(n >= 0 for n in tensor.dims), f"weight `{tensor.name}` has the shape {list(tensor.dims)}")
    width, field = TYPES[tensor.data_type]
    wanted = math.prod(tensor.dims) * width
    if tensor.data_location == EXTERNAL:
        has = _external_bytes(tensor, model)
    elif tensor.HasField("raw_data"):
        has = len(tensor.raw_data)
    else:
        has = len(getattr(tensor, field)) * width
    need(has == wanted, f"weight `{tensor.name}` has {has} bytes, its shape {list(tensor.dims)} needs {wanted}")
    return KnownTensor(tuple(tensor.dims), tensor.data_type, _short(tensor))


def _external_bytes(tensor: Any, model: Path) -> int:
    """Bytes of a weight in a file of its own, which must reach that far."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    offset, length = said.get("offset", "0"), said.get("length", "0")
    digits = all(text.isascii() and text.isdigit() and len(text) < 19 for text in (offset, length))
    need(digits, f"weight `{tensor.name}` does not say where it lies in its file")
    file = model.parent / said.get("location", "")
    try:
        size = file.stat().st_size
    except (OSError, ValueError) as error:
        raise StretchError(f"the file of weight `{tensor.name}` cannot be read") from error
    need(int(offset) + int(length) <= size, f"weight `{tensor.name}` lies beyond the end of its file")
    return int(length) if "length" in said else size - int(offset)


def _short(tensor: Any) -> tuple[float, ...] | None:
    """The numbers of a weight that may be a size, a bound or a scale; None of a long one, or one outside the file."""
    import onnx.numpy_helper

    if tensor.data_location == EXTERNAL or math.prod(tensor.dims) > SHORT:
        return None
    return tuple(onnx.numpy_helper.to_array(tensor).ravel().tolist())
