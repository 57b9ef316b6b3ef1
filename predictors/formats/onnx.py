"""ONNX files from any exporter as operator graphs for predictions, if torch is missing or the file is not read as a network.

Weights are not read, only their shapes. A node whose operator has no family, or is used in a
way that the family does not support, becomes an opaque operator with the shape from ONNX's
shape inference.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from predictors.errors import StretchError, UsageError, first_line, need
from predictors.files import read_bytes
from predictors.formats.inference import infer_shapes
from predictors.graph import Op, OpGraph, unique_name
from predictors.operators import kind_of, kinds
from predictors.operators.opaque import attributes
from predictors.registry import RuleTable
from predictors.shapes import InputShapes, Shape, same_padding

#: Kind and attributes of one operator.
Step = tuple[str, dict[str, Any]]

#: Returns the operator of a node; raises ValueError if its family does not support it.
Rule = Callable[["ShapedNode"], Step]

RULES: RuleTable[Rule] = RuleTable()

_add = RULES.add

_MOVES = frozenset({"Transpose", "Slice", "Split", "Gather", "Pad", "Expand", "Tile", "Concat", "DepthToSpace", "SpaceToDepth", "Resize"})
_REDUCES = ("Reduce", "Global", "Arg")

#: Operators that return the same elements, possibly in another shape.
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Cast"})

#: Operators with another name in torch and in fits.
_NAMES = {
    "LayerNormalization": "layer_norm",
    "InstanceNormalization": "instance_norm",
    "GroupNormalization": "group_norm",
    "ReduceMean": "mean",
    "ReduceSum": "sum",
}


@dataclass(frozen=True)
class ShapedNode:
    """A node with the shapes of its inputs and output."""

    kind: str  # Operator type.
    attrs: dict[str, Any]  # Attributes by name.
    inputs: tuple[Shape | None, ...]  # Shape of each input; None if it is omitted or unknown.
    computed: tuple[bool, ...]  # Whether each input is computed from the network's input, not stored.
    shape: Shape | None  # Shape of the first output; None if ONNX cannot infer it.

    @property
    def read(self) -> Shape:
        """Shape of the first computed input."""
        shape = next(shape for shape, computed in zip(self.inputs, self.computed, strict=True) if computed)
        if shape is None:
            raise ValueError("a shape is not known")
        return shape

    def stored(self, index: int) -> Shape | None:
        """Return the shape of a stored input; None if it is omitted or computed."""
        return self.inputs[index] if index < len(self.inputs) and not self.computed[index] else None

    def pair(self, name: str, usual: int) -> tuple[int, int]:
        """Return two whole numbers from an attribute."""
        first, second = self.attrs.get(name, (usual, usual))
        return int(first), int(second)


#: Recurrent layers, which have one matrix for the input and one for the state.
_RECURRENT = ("LSTM", "GRU", "RNN")


def opaque(node: ShapedNode) -> Step:
    """Return an opaque operator, described by its sizes alone."""
    assert node.shape is not None
    out = node.shape
    weights = sum(prod(shape) for shape, computed in zip(node.inputs, node.computed, strict=True) if shape and not computed)
    channels = out[1] if len(out) > 1 else 1
    kernel = "copy" if node.kind in _MOVES else "reduce" if node.kind.startswith(_REDUCES) else "elementwise"
    work = (1, 1, channels, max(1, prod(node.read) // prod(out)) if kernel == "reduce" else 1, max(1, prod(out) // channels))
    if node.kind in ("Conv", "ConvTranspose") and (weight := node.inputs[1]):
        kernel, across = "conv", node.read if node.kind == "ConvTranspose" else out
        work = (weight[1], weight[0], 1, prod(weight[2:]), prod(across[:1] + across[2:]))
    if node.kind in _RECURRENT and node.inputs[1] and node.inputs[2]:
        kernel, (directions, gates, read), state = "matmul", node.inputs[1], node.inputs[2][-1]
        work = (read + state, gates, directions, 1, prod(node.read[:2]))
    if node.kind in ("MatMul", "Gemm"):
        kernel = "matmul"
        work = (node.read[-1], out[-1], prod(out[:-2]), 1, out[-2] if len(out) > 1 else 1)
    return "opaque", attributes(out, kernel, _NAMES.get(node.kind, node.kind.lower()), work, weights)


def _window(node: ShapedNode, kernel: tuple[int, int]) -> dict[str, Any]:
    """Return the window attributes of a node: kernel, stride, dilation and padding."""
    stride, dilation = node.pair("strides", 1), node.pair("dilations", 1)
    auto = node.attrs.get("auto_pad", b"NOTSET").decode()
    if auto in ("NOTSET", "VALID"):
        pads = node.attrs.get("pads", (0, 0, 0, 0)) if auto == "NOTSET" else (0, 0, 0, 0)
        top, left, bottom, right = (int(n) for n in pads)
    else:
        top, left, bottom, right = same_padding(node.read[2:], kernel, stride, dilation, odd_first=auto == "SAME_LOWER")
    return {"kernel": kernel, "stride": stride, "dilation": dilation, "padding": (top, left, bottom, right)}


@_add("Conv")
def _conv(node: ShapedNode) -> Step:
    weight = node.stored(1)
    if weight is None or len(weight) != 4:
        raise ValueError("its weight is not stored")
    window = _window(node, (weight[2], weight[3]))
    groups, bias = int(node.attrs.get("group", 1)), node.stored(2) is not None
    return "conv", {"out_channels": weight[0], **window, "groups": groups, "bias": bias}


@_add("MaxPool", "AveragePool")
def _pool(node: ShapedNode) -> Step:
    attrs = _window(node, node.pair("kernel_shape", 1)) | {"ceil_mode": bool(node.attrs.get("ceil_mode", 0))}
    if node.kind == "MaxPool":
        return "max_pool", attrs
    del attrs["dilation"]
    return "avg_pool", attrs | {"count_include_pad": bool(node.attrs.get("count_include_pad", 0))}


@_add("Gemm")
def _gemm(node: ShapedNode) -> Step:
    weight = node.stored(1)
    if weight is None or node.attrs.get("transA", 0):
        raise ValueError("its weight is not stored")
    return "linear", {"out_features": weight[0] if node.attrs.get("transB", 0) else weight[1], "bias": node.stored(2) is not None}


@_add("MatMul")
def _matmul(node: ShapedNode) -> Step:
    weight = node.stored(1)
    if weight is None or len(weight) != 2:
        raise ValueError("a product of two tensors")
    return "linear", {"out_features": weight[1], "bias": False}


@_add("Add", "Mul")
def _pairwise(node: ShapedNode) -> Step:
    if not all(node.computed):
        raise ValueError("one of them is stored")
    return node.kind.lower(), {}


@_add("Concat")
def _concat(node: ShapedNode) -> Step:
    if node.attrs.get("axis") != 1 or not all(node.computed):
        raise ValueError("not along channels")
    return "concat", {}


def _same_kind(kind: str, **attrs: Any) -> Rule:
    return lambda node: (kind, dict(attrs))


RULES.update({node: _same_kind(name) for name in kinds for node in kinds.get(name).nodes})
RULES.update(
    {
        "BatchNormalization": lambda node: ("batch_norm", {"affine": True, "eps": float(node.attrs.get("epsilon", 1e-5))}),
        # without the bounds of the Clip, which may be stored tensors; runtimes fuse any bounds
        "Clip": _same_kind("relu6"),
        "Flatten": _same_kind("flatten"),
        "GlobalAveragePool": _same_kind("global_avg_pool", keepdims=True),
        "GlobalMaxPool": _same_kind("global_max_pool", keepdims=True),
        "LeakyRelu": lambda node: ("leaky_relu", {"slope": float(node.attrs.get("alpha", 0.01))}),
        "Softmax": _same_kind("softmax"),
    }
)


#: Maximum size of a file, which the format itself limits to two gigabytes.
MAX_BYTES = (1 << 31) - 1

#: Operators with a constant result.
_CONSTANTS = frozenset({"Constant", "ConstantOfShape", "Shape", "Range"})


def read_onnx(path: str | Path, input_shape: InputShapes | None = None) -> OpGraph:
    """Return the operator graph of an ONNX network, with the shapes that ONNX infers.

    Args:
        input_shape: Shape of the first input, batch first, or of several by order or name, images as N×C×H×W; None for the file's
            shapes, with a batch of 1 if the file leaves it open.

    Raises:
        UsageError: If an input has no size, or cannot have the requested one.
        StretchError: If the file is damaged, or a shape cannot be inferred.
    """
    path = Path(path)
    model = decode(path)
    graph = model.graph
    stored = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    need(bool(inputs), f"{path} has no input")
    readers, requested = Readers(graph.node), _by_name(path, [value.name for value in inputs], input_shape)
    last = [value for value in inputs if len(value.type.tensor_type.shape.dim) == 4 and readers.turn(value.name)]
    for value in last:
        _turn(graph, value)
    _resolve_shapes(path, inputs, requested)
    shapes = _infer(path, model)
    try:
        return _OnnxLowering(path, graph, stored, shapes).graph(inputs)
    # A file may state anything about an operator.
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise StretchError(f"the operators of {path} do not fit each other: {first_line(error)[:160]}", "export it again") from error


#: Permutations of axes that put channels second, and last.
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)

#: Operators that do not permute axes.
_SINGLE = frozenset({"Add", "Cast", "DequantizeLinear", "Div", "Identity", "Mul", "QuantizeLinear", "Sub"})


class Readers:
    """The nodes of a file that read each tensor."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self._by_name: dict[str, list[Any]] = {}
        for node in nodes:
            for name in dict.fromkeys(node.input):
                self._by_name.setdefault(name, []).append(node)

    def cast(self, tensor: str, types: Collection[int]) -> bool:
        """Return whether all readers of a tensor first cast it to one of some types."""
        value = self._by_name.get(tensor, [])
        to = [attr.i for node in value for attr in node.attribute if attr.name == "to"]
        return bool(value) and all(node.op_type == "Cast" for node in value) and len(to) == len(value) and set(to) <= set(types)

    def turn(self, tensor: str) -> bool:
        """Return whether all readers of a tensor move its last axis to the second place, at most after elementwise operators."""
        seen, waiting, result = {tensor}, [tensor], False
        while waiting:
            for node in self._by_name.get(waiting.pop(), []):
                if node.op_type == "Transpose":
                    orders = [list(item.ints) for item in node.attribute if item.name == "perm"]
                    if orders != [list(TO_FIRST)]:
                        return False
                    result = True
                elif node.op_type not in _SINGLE:
                    return False
                else:
                    waiting += [name for name in node.output if name not in seen]
                    seen |= set(node.output)
        return result


def _turn(graph: Any, value: Any) -> None:
    """Move the channels of an input image from the last to the second axis, with a transpose for its readers."""
    from onnx.helper import make_node

    shape = value.type.tensor_type.shape
    dims = [shape.dim[axis] for axis in TO_FIRST]
    shape.CopyFrom(type(shape)(dim=dims))
    last = unique_name(f"{value.name}_last", {name for node in graph.node for name in node.output}.__contains__)
    for node in graph.node:
        node.input[:] = [last if name == value.name else name for name in node.input]
    graph.node.insert(0, make_node("Transpose", [value.name], [last], perm=TO_LAST))


def decode(path: Path, hint: str = "export it again") -> Any:
    """Return the `onnx.ModelProto` of a file from any exporter; external weights are not read."""
    import onnx

    content = read_bytes(path, "model", MAX_BYTES)
    try:
        model = onnx.load_model_from_string(content)
    # protobuf's exception for a damaged file depends on its version.
    except Exception as error:
        raise StretchError(f"{path} is no ONNX model: it cannot be decoded", hint) from error
    need(bool(model.graph.node and model.graph.output), f"{path} is no ONNX model: it has no operators or no output", hint)
    return model


def _by_name(path: Path, names: Sequence[str], requested: InputShapes | None) -> dict[str, Sequence[int]]:
    """Return the given shapes, by the names of the inputs."""
    if requested is None:
        return {}
    if not isinstance(requested, Mapping):
        shapes: list[Any] = list(requested) if requested and not hasattr(requested[0], "__index__") else [requested]
        requested = dict(zip([*names, *(f"number {i + 1}" for i in range(len(names), len(shapes)))], shapes, strict=False))
    unknown = next((name for name in requested if name not in names), None)
    if unknown is not None:
        raise UsageError(f"{path} has no input `{unknown}`", f"it has {', '.join(f'`{name}`' for name in names[:8])}")
    return dict(requested)


def _resolve_shapes(path: Path, inputs: list[Any], requested: Mapping[str, Sequence[int]]) -> None:
    """Set the shape of every input to numbers."""
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        sizes = [dim.dim_value for dim in dims]
        if value.name in requested:
            shape = requested[value.name]
            if len(shape) != len(sizes):
                wrong = f"the input `{value.name}` of {path} has {len(sizes)} axes, a shape of {len(shape)} is given"
                raise UsageError(wrong, "give the shape that it has")
            sizes = list(shape)
        elif sizes and not sizes[0]:
            sizes[0] = 1
        if not sizes or any(size < 1 for size in sizes):
            raise UsageError(f"the size of the input `{value.name}` of {path} is open", "give it with --input, as 3x224x224")
        for dim, size in zip(dims, sizes, strict=True):
            dim.dim_value = size


def _infer(path: Path, model: Any) -> dict[str, Shape]:
    """Return the shapes of all tensors that ONNX can infer."""
    # Sizes that an exporter wrote for another input would contradict the requested one.
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    shapes = {}
    for value in infer_shapes(model, str(path)):
        sizes = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        if value.type.tensor_type.HasField("shape") and all(size > 0 for size in sizes):
            shapes[value.name] = sizes
    return shapes


class _OnnxLowering:
    """Lowers nodes to operators, in the order of the file."""

    def __init__(self, path: Path, graph: Any, stored: dict[str, Shape], shapes: dict[str, Shape]) -> None:
        self._path, self._graph, self._stored, self._shapes = path, graph, stored, shapes
        self._ops: dict[str, Op] = {}
        #: Operator that writes each tensor.
        self._maker: dict[str, str] = {}

    def graph(self, inputs: list[Any]) -> OpGraph:
        """Return the operator graph; several outputs are read by one final operator."""
        for index, value in enumerate(inputs):
            self._append(value.name if index else "input", ("input", {"shape": self._shapes[value.name]}), (), value.name)
        for node in self._graph.node:
            self._lower(node)
        ends = list(dict.fromkeys(self._maker[output.name] for output in self._graph.output if output.name in self._maker))
        need(bool(ends), f"{self._path} computes nothing from its input")
        last = ends[0]
        if len(ends) > 1:
            last = self._append("outputs", ("view", {"shape": self._ops[ends[0]].shape}), tuple(ends), "")
        return OpGraph.build(self._path.stem, self._ops.values(), last)

    def _lower(self, node: Any) -> None:
        from onnx.helper import get_attribute_value

        reads = [name for name in node.input if name in self._maker]
        if node.op_type in _CONSTANTS or not reads:
            # These nodes are computed from weights alone, before the network runs.
            self._stored.update((name, self._shapes.get(name, ())) for name in node.output)
            return
        attrs = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
        inputs, computed = tuple(map(self._shape, node.input)), tuple(name in self._maker for name in node.input)
        shaped = ShapedNode(node.op_type, attrs, inputs, computed, self._shape(node.output[0]))
        if shaped.shape is None:
            raise StretchError(
                f"the shape of `{node.output[0]}`, which `{node.op_type}` gives in {self._path}, cannot be inferred",
                "simplify the model, with onnxsim",
            )
        sources = tuple(self._maker[name] for name in reads)
        name = self._append(node.name or f"{node.op_type}_{len(self._ops)}", self._step(shaped, sources), sources, node.output[0])
        for output in node.output[1:]:
            if output in self._shapes:
                part = ShapedNode("Slice", {}, (shaped.shape,), (True,), self._shapes[output])
                same = prod(part.shape or ()) == prod(shaped.shape)
                self._append(output, ("view", {"shape": part.shape}) if same else opaque(part), (name,), output)

    def _step(self, shaped: ShapedNode, sources: tuple[str, ...]) -> Step:
        """Return the operator of a node if its shape equals ONNX's; else a view or an opaque operator of ONNX's shape."""
        with suppress(KeyError, ValueError, IndexError, TypeError, ZeroDivisionError):
            kind, attrs = RULES[shaped.kind](shaped)
            rules, ins = kind_of(kind), [self._ops[source].shape for source in sources]
            if len(ins) >= rules.min_inputs and rules.shape(ins, attrs) == shaped.shape:
                return kind, attrs
        return ("view", {"shape": shaped.shape}) if shaped.kind in _VIEWS else opaque(shaped)

    def _append(self, name: str, step: Step, sources: tuple[str, ...], tensor: str) -> str:
        name, (kind, attrs) = unique_name(name, self._ops.__contains__), step
        shape = kind_of(kind).shape([self._ops[source].shape for source in sources], attrs)
        need(prod(shape) >= 1, f"`{name}` of {self._path} gives an empty tensor")
        self._ops[name] = Op(name, kind, sources, attrs, shape)
        if tensor:
            self._maker[tensor] = name
        return name

    def _shape(self, name: str) -> Shape | None:
        if name in self._maker:
            return self._ops[self._maker[name]].shape
        return self._stored.get(name) or self._shapes.get(name)
