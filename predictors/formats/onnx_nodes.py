"""What ONNX nodes compute, operator by operator (ONNX operator schemas, opset 13 and newer)."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from predictors.registry import Rules
from predictors.shapes import Attr, Shape

#: Kind and attributes of one operator.
Step = tuple[str, dict[str, Any]]

#: The operators of a node; ValueError where its family does not have it.
Rule = Callable[["Node"], list[Step]]

RULES: Rules[Rule] = Rules()

_add = RULES.add

_MOVES = frozenset({"Transpose", "Slice", "Split", "Gather", "Pad", "Expand", "Tile", "Concat", "DepthToSpace", "SpaceToDepth", "Resize"})
_REDUCES = ("Reduce", "Global", "Arg")

#: Operators whose name elsewhere, in torch and in fits, is another.
_NAMES = {
    "LayerNormalization": "layer_norm",
    "InstanceNormalization": "instance_norm",
    "GroupNormalization": "group_norm",
    "ReduceMean": "mean",
    "ReduceSum": "sum",
}


@dataclass(frozen=True)
class Node:
    """A node with the shapes around it."""

    kind: str  # Its operator.
    attrs: dict[str, Any]  # Its attributes.
    inputs: tuple[Shape | None, ...]  # Shape of each input; None where it is left out or not known.
    computed: tuple[bool, ...]  # Whether each input is computed from the network's input, rather than stored.
    shape: Shape | None  # Of its first output; None where ONNX cannot tell.

    @classmethod
    def of(cls, node: Any, inputs: list[Shape | None], computed: list[bool], shape: Shape | None) -> "Node":
        """From ONNX's own."""
        from onnx import helper

        attrs = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        return cls(node.op_type, attrs, tuple(inputs), tuple(computed), shape)

    @property
    def read(self) -> Shape:
        """Shape of the first input that is computed."""
        shape = next(shape for shape, computed in zip(self.inputs, self.computed, strict=True) if computed)
        if shape is None:
            raise ValueError("a shape is not known")
        return shape

    def stored(self, index: int) -> Shape | None:
        """Shape of an input that is stored; None if it is left out or computed."""
        return self.inputs[index] if index < len(self.inputs) and not self.computed[index] else None

    def pair(self, name: str, usual: int) -> tuple[int, int]:
        """Two numbers of an attribute."""
        first, second = self.attrs.get(name, (usual, usual))
        return int(first), int(second)


def sized(node: Node) -> Step:
    """The same elements in another shape."""
    return "view", {"shape": node.shape}


def opaque(node: Node) -> Step:
    """An operator that is known by its sizes alone."""
    assert node.shape is not None
    out = node.shape
    weights = sum(prod(shape) for shape, computed in zip(node.inputs, node.computed, strict=True) if shape and not computed)
    channels = out[1] if len(out) > 1 else 1
    kernel = "copy" if node.kind in _MOVES else "reduce" if node.kind.startswith(_REDUCES) else "elementwise"
    work = (1, 1, channels, max(1, prod(node.read) // prod(out)) if kernel == "reduce" else 1, max(1, prod(out) // channels))
    if node.kind in ("MatMul", "Gemm"):
        kernel, weights = "matmul", weights
        work = (node.read[-1], out[-1], prod(out[:-2]), 1, out[-2] if len(out) > 1 else 1)
    return "opaque", stated(out, kernel, _NAMES.get(node.kind, node.kind.lower()), work, weights)


def stated(shape: Shape, kernel: str, variant: str, work: tuple[int, int, int, int, int], weights: int) -> dict[str, Attr]:
    """Attributes of an opaque operator."""
    counts = dict(zip(("in_channels", "out_channels", "groups", "taps", "pixels"), work, strict=True))
    return {"shape": shape, "kernel": kernel, "variant": variant, **counts, "weights": weights}


def _padding(node: Node, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> tuple[int, int, int, int]:
    auto = node.attrs.get("auto_pad", b"NOTSET").decode()
    if auto in ("NOTSET", "VALID"):
        top, left, bottom, right = node.attrs.get("pads", (0, 0, 0, 0)) if auto == "NOTSET" else (0, 0, 0, 0)
        return int(top), int(left), int(bottom), int(right)
    ends = []
    for size, k, s, d in zip(node.read[2:], kernel, stride, dilation, strict=True):
        total = max(0, (-(-size // s) - 1) * s + d * (k - 1) + 1 - size)
        ends.append((total - total // 2, total // 2) if auto == "SAME_LOWER" else (total // 2, total - total // 2))
    return ends[0][0], ends[1][0], ends[0][1], ends[1][1]


@_add("Conv")
def _conv(node: Node) -> list[Step]:
    weight = node.stored(1)
    if weight is None or len(weight) != 4:
        raise ValueError("its weight is not stored")
    kernel = (weight[2], weight[3])
    stride, dilation = node.pair("strides", 1), node.pair("dilations", 1)
    attrs = {
        "out_channels": weight[0],
        "kernel": kernel,
        "stride": stride,
        "dilation": dilation,
        "padding": _padding(node, kernel, stride, dilation),
        "groups": int(node.attrs.get("group", 1)),
        "bias": node.stored(2) is not None,
    }
    return [("conv", attrs)]


@_add("MaxPool", "AveragePool")
def _pool(node: Node) -> list[Step]:
    kernel, stride, dilation = node.pair("kernel_shape", 1), node.pair("strides", 1), node.pair("dilations", 1)
    attrs: dict[str, Any] = {
        "kernel": kernel,
        "stride": stride,
        "padding": _padding(node, kernel, stride, dilation),
        "ceil_mode": bool(node.attrs.get("ceil_mode", 0)),
    }
    if node.kind == "MaxPool":
        return [("max_pool", attrs | {"dilation": dilation})]
    return [("avg_pool", attrs | {"count_include_pad": bool(node.attrs.get("count_include_pad", 0))})]


@_add("GlobalAveragePool", "GlobalMaxPool")
def _global(node: Node) -> list[Step]:
    return [("global_avg_pool" if node.kind == "GlobalAveragePool" else "global_max_pool", {"keepdims": True})]


@_add("BatchNormalization")
def _batch_norm(node: Node) -> list[Step]:
    return [("batch_norm", {"affine": True, "eps": float(node.attrs.get("epsilon", 1e-5))})]


@_add("Gemm")
def _gemm(node: Node) -> list[Step]:
    weight = node.stored(1)
    if weight is None or node.attrs.get("transA", 0):
        raise ValueError("its weight is not stored")
    return [("linear", {"out_features": weight[0] if node.attrs.get("transB", 0) else weight[1], "bias": node.stored(2) is not None})]


@_add("MatMul")
def _matmul(node: Node) -> list[Step]:
    weight = node.stored(1)
    if weight is None or len(weight) != 2:
        raise ValueError("a product of two tensors")
    return [("linear", {"out_features": weight[1], "bias": False})]


@_add("Add", "Mul")
def _pairwise(node: Node) -> list[Step]:
    if not all(node.computed):
        raise ValueError("one of them is stored")
    return [(node.kind.lower(), {})]


@_add("Concat")
def _concat(node: Node) -> list[Step]:
    if node.attrs.get("axis") != 1 or not all(node.computed):
        raise ValueError("not along channels")
    return [("concat", {})]


@_add("Flatten")
def _flatten(node: Node) -> list[Step]:
    return [("flatten", {})]


@_add("LeakyRelu")
def _leaky(node: Node) -> list[Step]:
    return [("leaky_relu", {"slope": float(node.attrs.get("alpha", 0.01))})]


def _plain(kind: str) -> Rule:
    return lambda node: [(kind, {})]


for _name, _kind in {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "HardSigmoid": "hard_sigmoid",
    "HardSwish": "hard_swish",
    "Tanh": "tanh",
    "Softmax": "softmax",
    # without its bounds, which may be stored tensors; runtimes fuse any of them
    "Clip": "relu6",
}.items():
    RULES[_name] = _plain(_kind)
