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

import numpy as np

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES, Cost, Node, Shape, need

#: Multiply-accumulates of one file: seven times the largest EfficientNet.
MAX_WORK = 1 << 38

#: Elements alive at one time, weights left out: half a gigabyte of reals.
MAX_ALIVE = 1 << 27

#: Operators and weights of one file.
MAX_PARTS = 20_000

#: Constants of at most this many elements may be sizes, and are looked into.
SHORT = 16

#: Element types of weights: bytes of one, and the field that holds them where they are no raw bytes.
TYPES = {
    1: (4, "float_data"),
    2: (1, "int32_data"),
    3: (1, "int32_data"),
    6: (4, "int32_data"),
    7: (8, "int64_data"),
    10: (2, "int32_data"),
}

#: Types of attributes that are numbers and words: FLOAT, INT, STRING, FLOATS, INTS.
PLAIN = (1, 2, 3, 6, 7)

_EXTERNAL = 1
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
    """Check an ONNX model that a runtime is to load.

    Args:
        proto: The `onnx.ModelProto`, as `scheduler.formats.onnx.file.load_onnx` reads it.
        model: Its file, for messages and for the sizes of weights beside it.

    Raises:
        StretchError: If it holds an operator that `stretch` does not write, a
            graph inside an operator, weights that are not what they state, shapes
            that do not fit together, or would take too much work or memory.
    """
    try:
        return _check(proto, model)
    except StretchError as error:
        raise StretchError(f"{model} cannot be run: {error.message}", _AGAIN) from error


def tensor_shapes(proto: Any, model: Path) -> dict[str, Shape]:
    """Shape of every tensor of a model, weights included, worked out from its inputs.

    Args:
        proto: The `onnx.ModelProto`.
        model: Its file, for messages and for the sizes of weights beside it.

    Raises:
        StretchError: As `check_onnx`, but for what it would take to run.
    """
    try:
        inputs, weights, costs = _worked_out(proto, model)
    except StretchError as error:
        raise StretchError(f"{model} cannot be read: {error.message}", _AGAIN) from error
    return inputs | weights | {name: cost.shape for name, cost in costs.items()}


def _check(proto: Any, model: Path) -> Demand:
    graph = proto.graph
    inputs, _, costs = _worked_out(proto, model)
    known = inputs | {name: cost.shape for name, cost in costs.items()}
    for value in graph.output:
        need(value.name in known, f"nothing writes its output `{value.name}`")
        need(
            known[value.name] == _stated(value), f"it states {list(_stated(value))} for `{value.name}` and makes {list(known[value.name])}"
        )
    _check_statistics(graph)
    work, alive = sum(cost.work for cost in costs.values()), _most_alive(graph, known)
    need(work <= MAX_WORK, f"it takes {work:.1e} multiply-accumulates, {MAX_WORK:.1e} are allowed")
    need(alive <= MAX_ALIVE, f"it keeps {alive:.1e} elements at one time, {MAX_ALIVE:.1e} are allowed")
    return Demand(work, alive)


def _worked_out(proto: Any, model: Path) -> tuple[dict[str, Shape], dict[str, Shape], dict[str, Cost]]:
    """Shapes of the inputs and of the weights, and what each operator makes, by the name of its result."""
    graph = proto.graph
    need(not proto.functions and not proto.training_info, "it defines functions or training steps")
    need(not graph.sparse_initializer, "it has sparse weights")
    need(not graph.quantization_annotation, "it has quantisation annotations")
    need(max(len(graph.node), len(graph.initializer)) <= MAX_PARTS, f"it has more than {MAX_PARTS} operators or weights")
    for what, names in (("weights", [t.name for t in graph.initializer]), ("inputs", [v.name for v in graph.input])):
        _check_unique(what, names)
    _check_unique("outputs", [value.name for value in graph.output])
    shapes = {tensor.name: _weight(tensor, model) for tensor in graph.initializer}
    inputs = {value.name: _stated(value) for value in graph.input if value.name not in shapes}
    values = {tensor.name: _short(tensor) for tensor in graph.initializer if math.prod(tensor.dims) <= SHORT}
    return inputs, shapes, _costs(graph, shapes | inputs, values)


def _check_unique(what: str, names: list[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    need(twice is None, f"two of its {what} are called `{twice}`")


def _stated(value: Any) -> Shape:
    dims = value.type.tensor_type.shape.dim
    need(all(d.dim_value > 0 for d in dims), f"`{value.name}` has no fixed shape")
    shape = tuple(d.dim_value for d in dims)
    need(math.prod(shape) <= MAX_ALIVE, f"`{value.name}` has the shape {list(shape)}")
    return shape


def _weight(tensor: Any, model: Path) -> Shape:
    """Shape of a weight whose bytes are as many as it says."""
    need(tensor.data_type in TYPES, f"weight `{tensor.name}` has element type {tensor.data_type}, which nn-stretch does not write")
    need(all(n >= 0 for n in tensor.dims), f"weight `{tensor.name}` has the shape {list(tensor.dims)}")
    width, field = TYPES[tensor.data_type]
    wanted = math.prod(tensor.dims) * width
    if tensor.data_location == _EXTERNAL:
        has = _external_bytes(tensor, model)
    elif tensor.HasField("raw_data"):
        has = len(tensor.raw_data)
    else:
        has = len(getattr(tensor, field)) * width
    need(has == wanted, f"weight `{tensor.name}` has {has} bytes, its shape {list(tensor.dims)} needs {wanted}")
    return tuple(tensor.dims)


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


def _short(tensor: Any) -> list[float]:
    """The numbers of a short weight inside the file; none for one outside."""
    import onnx.numpy_helper

    if tensor.data_location == _EXTERNAL:
        return []
    found = onnx.numpy_helper.to_array(tensor).ravel()
    need(bool(np.isfinite(found).all()), f"weight `{tensor.name}` contains NaN or infinity")
    return [float(n) if found.dtype.kind == "f" else int(n) for n in found]


def _costs(graph: Any, shapes: dict[str, Shape], values: Mapping[str, list[float]]) -> dict[str, Cost]:
    """What each operator makes, by the name of its result; `shapes` are those of inputs and weights."""
    shapes = dict(shapes)
    costs: dict[str, Cost] = {}
    for i, node in enumerate(graph.node):
        name = node.name or f"{node.op_type}_{i}"
        try:
            result = _result(node, shapes)
            costs[result] = _cost(node, shapes, values)
        except StretchError as error:
            raise StretchError(f"operator `{name}` ({node.op_type}): {error.message}") from error
        shapes[result] = costs[result].shape
    return costs


def _result(node: Any, there: Mapping[str, Shape]) -> str:
    """The one tensor that an operator writes."""
    need(node.op_type in RULES and node.domain in ("", "ai.onnx"), "nn-stretch does not write this operator")
    need(len(node.output) == 1 and bool(node.output[0]), f"it has {len(node.output)} results, one is allowed")
    need(node.output[0] not in there, f"`{node.output[0]}` is written twice")
    return str(node.output[0])


def _cost(node: Any, there: Mapping[str, Shape], values: Mapping[str, list[float]]) -> Cost:
    import onnx.helper

    for name in node.input:
        need(not name or name in there, f"it reads `{name}`, which nothing writes before it")
    for attribute in node.attribute:
        need(attribute.type in PLAIN and not attribute.ref_attr_name, f"its attribute `{attribute.name}` is no number or word")
    attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    need(len(attrs) == len(node.attribute), "it has an attribute twice")
    constants = {i: values[name] for i, name in enumerate(node.input) if name in values}
    cost = RULES[node.op_type](Node(tuple(there[name] if name else None for name in node.input), attrs, constants))
    need(all(n > 0 for n in cost.shape) and math.prod(cost.shape) <= MAX_ALIVE, f"it makes a tensor of {list(cost.shape)}")
    return cost


def _check_statistics(graph: Any) -> None:
    """Variances are not negative: their root would be no number."""
    import onnx.numpy_helper

    variances = {node.input[4] for node in graph.node if node.op_type == "BatchNormalization"}
    for tensor in graph.initializer:
        if tensor.name in variances and tensor.data_location != _EXTERNAL:
            found = onnx.numpy_helper.to_array(tensor)
            need(bool((found >= 0).all()), f"variance `{tensor.name}` of a batch norm is negative or no number")


def _most_alive(graph: Any, shapes: Mapping[str, Shape]) -> int:
    """Most elements that have been written and will still be read, at any operator."""
    last = {name: i for i, node in enumerate(graph.node) for name in node.input if name in shapes}
    last |= {value.name: len(graph.node) for value in graph.output}
    ends: dict[int, list[str]] = {}
    for name, i in last.items():
        ends.setdefault(i, []).append(name)
    written = {node.output[0] for node in graph.node}
    alive = most = sum(math.prod(shape) for name, shape in shapes.items() if name not in written)
    for i, node in enumerate(graph.node):
        alive += math.prod(shapes[node.output[0]])
        most = max(most, alive)
        alive -= sum(math.prod(shapes[name]) for name in ends.get(i, []))
        if node.output[0] not in last:
            alive -= math.prod(shapes[node.output[0]])
    return most
