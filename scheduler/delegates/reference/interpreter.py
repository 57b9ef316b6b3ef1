"""Runs an ONNX graph node by node with numpy."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from predictors.errors import StretchError
from scheduler.delegates.base import Array, Compiled, Delegate, Invocation, delegates
from scheduler.formats.onnx import open_onnx

# Operators that slide a window over the image: convolution and pooling, NCHW.
#
# ONNX pads are (top, left, bottom, right).


def conv(node: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Convolution with groups, strides, dilations and pads.

    Args:
        x: Images, N×C×H×W.
        weight: M×(C/groups)×kH×kW.
        bias: M, or None.
    """
    groups = node.attrs.get("group", 1)
    n, channels = x.shape[:2]
    outputs, _, kh, kw = weight.shape
    windows = _windows(node, x.astype(np.float64), (kh, kw), 0.0, ceil=False)
    oh, ow = windows.shape[2:4]
    # N, group, (channel, kernel), pixel: one matrix product per group.
    columns = windows.reshape(n, groups, channels // groups, oh * ow, kh * kw).swapaxes(3, 4)
    columns = columns.reshape(n, groups, channels // groups * kh * kw, oh * ow)
    kernel = weight.astype(np.float64).reshape(groups, outputs // groups, -1)
    y = (kernel @ columns).reshape(n, outputs, oh, ow)
    if bias is not None:
        y = y + bias.reshape(1, -1, 1, 1)
    return np.asarray(y.astype(x.dtype))


def max_pool(node: Any, x: Array) -> Array:
    """Largest element of each window; padding never wins."""
    kernel = tuple(node.attrs["kernel_shape"])
    windows = _windows(node, x, kernel, -np.inf, ceil=bool(node.attrs.get("ceil_mode", 0)))
    return np.asarray(windows.max(axis=(4, 5)))


def average_pool(node: Any, x: Array) -> Array:
    """Mean of each window.

    With ``count_include_pad`` the padding counts as zeros; what ``ceil_mode``
    adds beyond the padding never counts.
    """
    kernel = tuple(node.attrs["kernel_shape"])
    ceil = bool(node.attrs.get("ceil_mode", 0))
    total = _windows(node, x.astype(np.float64), kernel, 0.0, ceil).sum(axis=(4, 5))
    inside = np.ones((1, 1, *x.shape[2:]))
    if node.attrs.get("count_include_pad", 0):
        top, left, bottom, right = _pads(node)
        inside = np.ones((1, 1, x.shape[2] + top + bottom, x.shape[3] + left + right))
        count = _windows(node, inside, kernel, 0.0, ceil, padded=True).sum(axis=(4, 5))
    else:
        count = _windows(node, inside, kernel, 0.0, ceil).sum(axis=(4, 5))
    return np.asarray((total / count).astype(x.dtype))


def _pads(node: Any) -> tuple[int, int, int, int]:
    if node.attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise ValueError("auto_pad is not defined here, write the pads out")
    top, left, bottom, right = node.attrs.get("pads", (0, 0, 0, 0))
    return top, left, bottom, right


def _windows(node: Any, x: Array, kernel: tuple[int, ...], fill: float, ceil: bool, padded: bool = False) -> Array:
    """Windows of `x` as N×C×oH×oW×kH×kW; `padded` says that `x` has its pads already."""
    strides = node.attrs.get("strides", (1, 1))
    dilations = node.attrs.get("dilations", (1, 1))
    pads = _pads(node)
    widths = [(0, 0), (0, 0)]
    counts = []
    for axis in (0, 1):
        before, after = pads[axis], pads[axis + 2]
        size = x.shape[axis + 2] + (0 if padded else before + after)
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        exact = (size - reach) / strides[axis]
        count = (math.ceil(exact) if ceil else math.floor(exact)) + 1
        # A window that starts in the far padding is dropped.
        if ceil and (count - 1) * strides[axis] >= size - after:
            count -= 1
        extra = max(0, (count - 1) * strides[axis] + reach - size)
        widths.append((0, extra) if padded else (before, after + extra))
        counts.append(count)
    if min(counts) < 1:
        raise ValueError(f"a window of {kernel} does not fit into {x.shape[2:]} with pads {pads}")
    full = np.pad(x, widths, constant_values=fill)
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True))
    view = sliding_window_view(full, reach, axis=(2, 3))
    view = view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    return np.asarray(view[:, :, : counts[0], : counts[1]])


# Operators of ONNX in numpy, by name; each takes its node and its inputs, in order.
#
# Source of each: the ONNX operator specification, opset 18 and later.


@dataclass(frozen=True)
class Node:
    """One ONNX node."""

    name: str  # For messages.
    op: str  # Operator type.
    inputs: tuple[str, ...]  # Tensor names; empty for an optional input left out.
    outputs: tuple[str, ...]  # Tensor names.
    attrs: Mapping[str, Any]  # Attributes as Python values; strings are bytes.


def _elementwise(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function` evaluated in double precision, its result in the input's type."""

    def apply(node: Node, x: Array, *others: Array) -> Array:
        return np.asarray(function(node.attrs, x.astype(np.float64), *others)).astype(x.dtype)

    return apply


def _sigmoid(x: Array) -> Array:
    # exp of minus the absolute value never overflows.
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


def _gelu(attrs: Mapping[str, Any], x: Array) -> Array:
    if attrs.get("approximate", b"none") == b"tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))))


def _clip(node: Node, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    if low is not None:
        x = np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _batch_norm(node: Node, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    if node.attrs.get("training_mode", 0):
        raise ValueError("training mode is not defined here")
    per_channel = (1, -1) + (1,) * (x.ndim - 2)
    factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + node.attrs.get("epsilon", 1e-5))
    y = (x - mean.reshape(per_channel)) * factor.reshape(per_channel) + bias.reshape(per_channel)
    return np.asarray(y.astype(x.dtype))


def _layer_norm(node: Node, x: Array, scale: Array, bias: Array | None = None) -> Array:
    axis = node.attrs.get("axis", -1) % x.ndim
    over = tuple(range(axis, x.ndim))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=over, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(axis=over, keepdims=True) + node.attrs.get("epsilon", 1e-5)) * scale
    return np.asarray((y if bias is None else y + bias).astype(x.dtype))


def _log_softmax(attrs: Mapping[str, Any], x: Array) -> Array:
    axis = attrs.get("axis", -1)
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _mish(attrs: Mapping[str, Any], x: Array) -> Array:
    return x * np.tanh(np.logaddexp(0, x))


def _resize(node: Node, x: Array, region: Array | None = None, scales: Array | None = None, sizes: Array | None = None) -> Array:
    """Nearest neighbour: output i reads input floor(i / scale)."""
    modes = [node.attrs.get(key, default) for key, default in (
        ("mode", b"nearest"), ("coordinate_transformation_mode", b"half_pixel"), ("nearest_mode", b"round_prefer_floor"))]  # fmt: skip
    if modes != [b"nearest", b"asymmetric", b"floor"] or scales is None or not len(scales):
        raise ValueError("only nearest, asymmetric, floor with scales is defined here")
    for axis, factor in enumerate(scales.tolist()):
        if factor != 1:
            x = np.take(x, np.floor(np.arange(math.floor(x.shape[axis] * factor)) / factor).astype(np.int64), axis=axis)
    return x


def _gemm(node: Node, a: Array, b: Array, c: Array | None = None) -> Array:
    left = a.T if node.attrs.get("transA", 0) else a
    right = b.T if node.attrs.get("transB", 0) else b
    y = node.attrs.get("alpha", 1.0) * (left.astype(np.float64) @ right.astype(np.float64))
    if c is not None:
        y = y + node.attrs.get("beta", 1.0) * c
    return np.asarray(y.astype(a.dtype))


def _matmul(node: Node, a: Array, b: Array) -> Array:
    return np.asarray((a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype))


def _flatten(node: Node, x: Array) -> Array:
    axis = node.attrs.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _reshape(node: Node, x: Array, shape: Array) -> Array:
    wanted = [int(n) for n in shape]
    if not node.attrs.get("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return x.reshape(wanted)


def _pad(node: Node, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
    mode = node.attrs.get("mode", b"constant")
    if mode != b"constant":
        raise ValueError(f"mode `{mode.decode()}` is not defined here")
    chosen = [int(a) % x.ndim for a in axes] if axes is not None else list(range(x.ndim))
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(chosen):
        widths[axis] = (int(pads[i]), int(pads[i + len(chosen)]))
    # a negative width cuts off
    kept = x[tuple(slice(max(0, -before), x.shape[i] - max(0, -after)) for i, (before, after) in enumerate(widths))]
    return np.pad(kept, [(max(0, a), max(0, b)) for a, b in widths], constant_values=0 if value is None else value.item())


def _slice(node: Node, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    chosen = [int(a) for a in axes] if axes is not None else list(range(len(starts)))
    step = [int(s) for s in steps] if steps is not None else [1] * len(chosen)
    index: list[slice] = [slice(None)] * x.ndim
    for i, axis in enumerate(chosen):
        if step[i] <= 0:
            raise ValueError("a step below 1 is not defined here")
        index[axis] = slice(int(starts[i]), int(ends[i]), step[i])
    return x[tuple(index)]


def _reduce_mean(node: Node, x: Array, axes: Array | None = None) -> Array:
    keep = bool(node.attrs.get("keepdims", 1))
    if axes is None or not len(axes):
        if node.attrs.get("noop_with_empty_axes", 0):
            return x
        return np.asarray(x.mean(axis=None, dtype=np.float64, keepdims=keep).astype(x.dtype))
    return np.asarray(x.mean(axis=tuple(int(a) for a in axes), dtype=np.float64, keepdims=keep).astype(x.dtype))


def _squeeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    return np.squeeze(x, None if axes is None else tuple(int(a) for a in axes))


def _unsqueeze(node: Node, x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(int(a) for a in axes))


def _transpose(node: Node, x: Array) -> Array:
    return np.transpose(x, node.attrs.get("perm"))


def _global_average(node: Node, x: Array) -> Array:
    return np.asarray(x.mean(axis=tuple(range(2, x.ndim)), dtype=np.float64, keepdims=True).astype(x.dtype))


def _global_max(node: Node, x: Array) -> Array:
    return np.asarray(x.max(axis=tuple(range(2, x.ndim)), keepdims=True))


OPS: dict[str, Callable[..., Array]] = {
    "Add": lambda node, a, b: np.asarray(a + b),
    "AveragePool": average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Concat": lambda node, *parts: np.concatenate(parts, axis=node.attrs["axis"]),
    "Conv": conv,
    "Elu": _elementwise(lambda attrs, x: np.where(x < 0, attrs.get("alpha", 1.0) * np.expm1(np.minimum(x, 0)), x)),
    "Flatten": _flatten,
    "Gelu": _elementwise(_gelu),
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
    "HardSigmoid": _elementwise(lambda attrs, x: _hard_sigmoid(x, attrs.get("alpha", 0.2), attrs.get("beta", 0.5))),
    "HardSwish": _elementwise(lambda attrs, x: x * _hard_sigmoid(x, 1 / 6, 0.5)),
    "Identity": lambda node, x: x,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": _elementwise(lambda attrs, x: np.where(x < 0, attrs.get("alpha", 0.01) * x, x)),
    "LogSoftmax": _elementwise(_log_softmax),
    "MatMul": _matmul,
    "MaxPool": max_pool,
    "Mish": _elementwise(_mish),
    "Mul": lambda node, a, b: np.asarray(a * b),
    "PRelu": lambda node, x, slope: np.asarray(np.where(x < 0, x * slope, x)),
    "Pad": _pad,
    "ReduceMean": _reduce_mean,
    "Relu": lambda node, x: np.maximum(x, 0),
    "Reshape": _reshape,
    "Resize": _resize,
    "Sigmoid": _elementwise(lambda attrs, x: _sigmoid(x)),
    "Slice": _slice,
    "Softmax": _elementwise(lambda attrs, x: np.exp(_log_softmax(attrs, x))),
    "Squeeze": _squeeze,
    "Sum": lambda node, first, *others: np.asarray(sum(others, first)),
    "Tanh": _elementwise(lambda attrs, x: np.tanh(x)),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}


#: Operators are read as this version and later define them (axes of Pad and ReduceMean are inputs since 18).
MIN_OPSET = 18


class ReferenceInvocation(Invocation):
    """A graph tied to its buffers."""

    def __init__(self, compiled: "ReferenceCompiled", inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._compiled = compiled
        self._inputs = inputs
        self._outputs = outputs

    def run(self) -> None:
        """Evaluate the graph."""
        values = self._compiled.evaluate(self._inputs)
        for name, buffer in zip(self._compiled.outputs, self._outputs, strict=True):
            if values[name].shape != buffer.shape:
                raise StretchError(f"output `{name}` came out as {list(values[name].shape)}, the model says {list(buffer.shape)}")
            buffer[...] = values[name]


class ReferenceCompiled(Compiled):
    """An ONNX graph as a list of nodes."""

    def __init__(self, nodes: list[Node], weights: Mapping[str, Array], shapes: tuple[dict[str, tuple[int, ...]], ...]) -> None:
        super().__init__(shapes[0], shapes[1])
        self._nodes = nodes
        self._weights = dict(weights)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> ReferenceInvocation:
        """Tie the graph to `inputs` and `outputs`."""
        self.check(inputs, outputs)
        return ReferenceInvocation(self, inputs, outputs)

    def evaluate(self, inputs: Sequence[Array]) -> dict[str, Array]:
        """Every tensor of the graph, by name."""
        values: dict[str, Array] = dict(self._weights)
        values.update(zip(self.inputs, inputs, strict=True))
        for node in self._nodes:
            arguments = [values[name] if name else None for name in node.inputs]
            try:
                values[node.outputs[0]] = OPS[node.op](node, *arguments)
            except (ValueError, TypeError, IndexError, KeyError) as error:
                raise StretchError(f"node `{node.name}` ({node.op}) cannot be evaluated: {error}") from error
        return values


@delegates.register("reference")
class ReferenceDelegate(Delegate):
    """Numpy; convolutions, matrix products and means accumulate in double precision."""

    summary = "numpy, the definition of every operator"

    def compile(self, model: Path) -> ReferenceCompiled:
        """Read `model`; refuses an operator that it does not define."""
        from onnx import external_data_helper, helper, numpy_helper

        opened = open_onnx(model)
        proto = opened.proto
        external_data_helper.load_external_data_for_model(proto, str(model.parent))
        for opset in proto.opset_import:
            if opset.domain in ("", "ai.onnx") and opset.version < MIN_OPSET:
                raise StretchError(f"{model} uses opset {opset.version}, the reference delegate reads {MIN_OPSET} and later")
        weights: dict[str, Any] = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
        nodes = []
        for i, node in enumerate(proto.graph.node):
            name = node.name or f"{node.op_type}_{i}"
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            if node.domain not in ("", "ai.onnx") or (node.op_type not in OPS and node.op_type != "Constant"):
                raise StretchError(f"node `{name}` of {model} is a {node.op_type}, which the reference delegate does not define")
            if node.op_type == "Constant":
                weights[node.output[0]] = numpy_helper.to_array(attrs["value"])
                continue
            if sum(bool(output) for output in node.output) > 1:
                raise StretchError(f"node `{name}` of {model} has several outputs, the reference delegate gives one")
            nodes.append(Node(name, node.op_type, tuple(node.input), tuple(node.output), attrs))
        return ReferenceCompiled(nodes, weights, opened.ends)
