"""The delegates `ncnn` (CPU cores) and `vulkan` (a GPU, with ncnn): subgraphs written as ncnn networks in memory.

ncnn's tensors have no batch and at most four axes. A subgraph is therefore written for batch 1, and every tensor has
the axes of the ONNX file except for the first. Any other operator raises `UnableError`, and another delegate runs it.
"""

import ctypes
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from predictors.errors import StretchError, install_line
from scheduler.cores import pinned
from scheduler.delegates.base import (
    Array,
    Compiled,
    CoreDelegate,
    Delegate,
    Invocation,
    UnableError,
    delegates,
    filter_stderr,
    load_package,
)
from scheduler.formats.onnx import OnnxFile, open_onnx

INSTALL = install_line("ncnn")

#: First line of ncnn's text format.
_MAGIC = 7767517

#: Ids of parameters that are lists count down from here.
_LISTS = -23300

#: Value of a parameter.
_Value = int | float | Sequence[int] | Sequence[float]

#: ncnn's numbers of operators with two operands, and with one operand.
_BINARY = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3, "Max": 4, "Min": 5, "Pow": 6}
_UNARY = {"Abs": 0, "Neg": 1, "Floor": 2, "Ceil": 3, "Sqrt": 5, "Exp": 7, "Log": 8, "Sin": 9, "Cos": 10, "Reciprocal": 15}
_REDUCTIONS = {"ReduceSum": 0, "ReduceMean": 3, "ReduceMax": 4, "ReduceMin": 5}

#: Operators that return their input, possibly in another shape.
_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Cast")

#: ncnn's numbers of activations that convolutions and matrix products apply to their result.
_FUSED = {"ReLU": 1, "Clip": 3, "Sigmoid": 4, "Mish": 5, "HardSwish": 6}
_FUSING = ("Convolution", "ConvolutionDepthWise", "Deconvolution", "DeconvolutionDepthWise", "InnerProduct")

#: Serialises ncnn's search for Vulkan devices, which runs once per process.
_LOCK = threading.Lock()


class _Layer:
    """One line of the text file: a layer with one output."""

    def __init__(self, kind: str, inputs: Sequence[str], output: str, params: dict[int, _Value]) -> None:
        self.kind, self.inputs, self.output, self.params = kind, list(inputs), output, params


class NcnnNetwork:
    """A subgraph as an ncnn network.

    Args:
        opened: ONNX file with batch 1.
        vulkan: Whether the network is for a GPU, where ncnn's GELU is always approximate.

    Attributes:
        inputs: Tensor of the network for each input.
        outputs: Tensor of the network for each output.
        half: Whether weights are in fp16.

    Raises:
        UnableError: If ncnn lacks an operator or a form of it.
    """

    def __init__(self, opened: OnnxFile, vulkan: bool = False) -> None:
        import onnx.numpy_helper

        self._vulkan = vulkan
        self._file, self._shapes = opened, opened.shapes
        folder = str(opened.path.parent)
        self._stored = {name: onnx.numpy_helper.to_array(tensor, folder) for name, tensor in opened.initialisers.items()}
        self._layers: list[_Layer] = []
        self._weights: list[bytes] = []
        self._blobs: dict[str, str] = {}
        self.half = any(array.dtype == np.float16 for array in self._stored.values())
        self.inputs, self.outputs = {}, {}
        for name, shape in opened.ends[0].items():
            self.inputs[name] = self._add("Input", [], name, _size_parameters(self._sizes(shape, name)))
        for node in opened.nodes:
            write = _WRITERS.get(node.op_type)
            if write is None or node.domain not in ("", "ai.onnx"):
                raise self._unable(node, "which ncnn is not given")
            write(self, node)
        # an output has a separate blob that no layer reads, because ncnn frees blobs after they are read
        for name in opened.ends[1]:
            self.outputs[name] = self._add("Noop", [name], f"{name}.result", {})

    def text(self) -> str:
        """Return the network in ncnn's text format; a ``Split`` layer copies a blob for several readers."""
        readers: dict[str, int] = {}
        for layer in self._layers:
            for name in layer.inputs:
                readers[name] = readers.get(name, 0) + 1
        taken: dict[str, int] = {}
        lines, blobs = [], 0
        for number, layer in enumerate(self._layers):
            reads = []
            for name in layer.inputs:
                index = taken[name] = taken.get(name, -1) + 1
                reads.append(f"{self.blob(name)}.split{index}" if readers[name] > 1 else self.blob(name))
            params = [_parameter(key, value) for key, value in layer.params.items()]
            lines.append(" ".join([layer.kind, f"n{number}", str(len(reads)), "1", *reads, self.blob(layer.output), *params]))
            blobs += 1
            if (count := readers.get(layer.output, 0)) > 1:
                copies = [f"{self.blob(layer.output)}.split{index}" for index in range(count)]
                lines.append(" ".join(["Split", f"n{number}.split", "1", str(count), self.blob(layer.output), *copies]))
                blobs += count
        return "\n".join([str(_MAGIC), f"{len(lines)} {blobs}", *lines, ""])

    def blob(self, name: str) -> str:
        """Return a tensor's name in the text, which must not contain white space."""
        return self._blobs.setdefault(name, f"b{len(self._blobs)}")

    def weights(self) -> bytes:
        """Return the weights of all layers in ncnn's binary format, in fp32."""
        return b"".join(self._weights)

    # methods used by the writers below

    def _add(self, kind: str, inputs: Sequence[str], output: str, params: dict[int, _Value]) -> str:
        self._layers.append(_Layer(kind, inputs, output, params))
        return output

    def _store(self, *arrays: Array, tagged: bool = False) -> None:
        """Append weights; some layers expect the number type before their weights, 0 for fp32."""
        for array in arrays:
            self._weights.append((b"\0\0\0\0" if tagged else b"") + np.ascontiguousarray(array, np.float32).tobytes())

    def _constant(self, node: Any, index: int) -> Array:
        """Return a stored input of a node, and refuse a computed one."""
        name = node.input[index] if index < len(node.input) else ""
        if name not in self._stored:
            raise self._unable(node, f"whose input {index} is not stored in the file")
        return self._stored[name]

    def _optional(self, node: Any, index: int) -> Array | None:
        """Return a stored input of a node, or None if it is omitted."""
        return self._constant(node, index) if index < len(node.input) and node.input[index] else None

    def _sizes(self, shape: Sequence[int], name: str) -> tuple[int, ...]:
        """Return the axes of a tensor without the batch."""
        if not 2 <= len(shape) <= 5 or shape[0] != 1:
            raise UnableError(
                f"tensor `{name}` of {self._file.path} has the shape {list(shape)}: ncnn has batch 1 and one to four axes more"
            )
        return tuple(shape[1:])

    def _of(self, name: str) -> tuple[int, ...]:
        return self._sizes(self._shapes[name], name)

    def _axis(self, node: Any, axis: int, name: str) -> int:
        """Return an axis in ncnn's numbering, without the batch."""
        axis %= len(self._shapes[name])
        if axis == 0:
            raise self._unable(node, "along the batch")
        return axis - 1

    def _unable(self, node: Any, reason: str) -> UnableError:
        return UnableError(f"node `{node.name or node.output[0]}` of {self._file.path} is a {node.op_type} {reason}")

    def _viewed(self, source: str, target: str, sizes: Sequence[int]) -> None:
        """Add a layer that changes the shape of a tensor."""
        self._add("Reshape", [source], target, _size_parameters(sizes))

    def _memory(self, name: str, sizes: Sequence[int], array: Array) -> str:
        """Add a stored tensor as a blob, and return its name."""
        self._store(array)
        return self._add("MemoryData", [], name, _size_parameters(sizes))

    # writers of nodes, in the order of `_WRITERS`

    def _conv(self, node: Any) -> None:
        self._check_images(node)
        attrs, weight, bias = _attributes(node), self._constant(node, 1), self._optional(node, 2)
        transposed = node.op_type == "ConvTranspose"
        groups = attrs.get("group", 1)
        top, left, bottom, right = attrs.get("pads", (0, 0, 0, 0))
        (kh, kw), (sh, sw), (dh, dw) = (tuple(attrs.get(key, (1, 1))) for key in ("kernel_shape", "strides", "dilations"))
        if attrs.get("auto_pad", "NOTSET") != "NOTSET" or "kernel_shape" not in attrs or attrs.get("output_shape"):
            raise self._unable(node, "that does not state its window and padding")
        if transposed:
            # ONNX has input channels first
            outputs = weight.shape[1] * groups
            weight = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], kh, kw).swapaxes(1, 2)
        else:
            outputs = weight.shape[0]
        params: dict[int, _Value] = {0: outputs, 1: kw, 11: kh, 2: dw, 12: dh, 3: sw, 13: sh, 4: left, 14: top, 15: right, 16: bottom}
        params |= {5: int(bias is not None), 6: weight.size} | ({7: groups} if groups > 1 else {})
        if transposed:
            bottom_padding, right_padding = attrs.get("output_padding", (0, 0))
            params |= {18: right_padding, 19: bottom_padding}
        self._store(weight, tagged=True)
        self._store(*([] if bias is None else [bias]))
        name = ("Deconvolution" if transposed else "Convolution") + ("DepthWise" if groups > 1 else "")
        self._add(name, node.input[:1], node.output[0], params)

    def _gemm(self, node: Any) -> None:
        attrs, weight, bias = _attributes(node), self._constant(node, 1), self._optional(node, 2)
        is_product = attrs.get("alpha", 1.0) == attrs.get("beta", 1.0) == 1.0 and not attrs.get("transA")
        if not is_product or len(self._of(node.input[0])) != 1 or (bias is not None and bias.size != weight.shape[not attrs.get("transB")]):
            raise self._unable(node, "that is more than a matrix and a bias")
        self._product(node, weight if attrs.get("transB") else weight.T, bias)

    def _matmul(self, node: Any) -> None:
        a, b = node.input
        if a in self._stored:
            raise self._unable(node, "whose first factor is stored")
        if b not in self._stored:
            self._of(a), self._of(b)
            self._add("MatMul", [a, b], node.output[0], {})
        elif self._stored[b].ndim == 2 and len(self._of(a)) <= 2:
            self._product(node, self._stored[b].T, None)
        else:
            array = self._stored[b]
            lead = array.shape if array.ndim == 2 else self._sizes(array.shape, b)
            self._add("MatMul", [a, self._memory(f"{node.output[0]}.factor", lead, array)], node.output[0], {})

    def _product(self, node: Any, weight: Array, bias: Array | None) -> None:
        self._store(weight, tagged=True)
        self._store(*([] if bias is None else [bias]))
        self._add("InnerProduct", node.input[:1], node.output[0], {0: weight.shape[0], 1: int(bias is not None), 2: weight.size})

    def _batch_norm(self, node: Any) -> None:
        slope, bias, mean, variance = (self._constant(node, index) for index in (1, 2, 3, 4))
        self._store(slope, mean, variance, bias)
        self._of(node.input[0])
        params: dict[int, _Value] = {0: slope.size, 1: float(_attributes(node).get("epsilon", 1e-5))}
        self._add("BatchNorm", node.input[:1], node.output[0], params)

    def _layer_norm(self, node: Any) -> None:
        attrs, scale, bias = _attributes(node), self._constant(node, 1), self._optional(node, 2)
        last = self._of(node.input[0])[-1]
        if attrs.get("axis", -1) not in (-1, len(self._shapes[node.input[0]]) - 1) or scale.size != last:
            raise self._unable(node, "over more than the last axis")
        self._store(scale, np.zeros(last) if bias is None else bias)
        self._add("LayerNorm", node.input[:1], node.output[0], {0: last, 1: float(attrs.get("epsilon", 1e-5)), 2: 1})

    def _activation(self, node: Any) -> None:
        attrs = _attributes(node)
        kind, params = _ACTIVATIONS[node.op_type](attrs)
        self._of(node.input[0])
        if kind == "GELU" and not params[0] and self._vulkan:
            return self._gelu(*node.input, *node.output)
        return self._apply(node, kind, params)

    def _gelu(self, source: str, target: str) -> None:
        """Add layers that compute x/2 · (1 + erf(x/√2)) step by step."""
        scaled = self._add("BinaryOp", [source], f"{target}.scaled", {0: _BINARY["Mul"], 1: 1, 2: 0.5**0.5})
        erf = self._add("Erf", [scaled], f"{target}.erf", {})
        plus_one = self._add("BinaryOp", [erf], f"{target}.more", {0: _BINARY["Add"], 1: 1, 2: 1.0})
        product = self._add("BinaryOp", [source, plus_one], f"{target}.both", {0: _BINARY["Mul"]})
        self._add("BinaryOp", [product], target, {0: _BINARY["Mul"], 1: 1, 2: 0.5})

    def _clip(self, node: Any) -> None:
        low, high = self._optional(node, 1), self._optional(node, 2)
        bounds = (-3e38 if low is None else float(low), 3e38 if high is None else float(high))
        self._apply(node, "Clip", dict(enumerate(bounds)))

    def _apply(self, node: Any, kind: str, params: dict[int, _Value]) -> None:
        """Add an activation, as part of the previous layer if no other node reads that layer's result."""
        source, last = node.input[0], self._layers[-1]
        is_only_reader = sum(name == source for other in self._file.nodes for name in other.input) == 1 and source not in self._file.ends[1]
        number = _FUSED.get(kind) if kind != "ReLU" or not params else 2
        if number and last.kind in _FUSING and last.output == source and is_only_reader:
            last.output = node.output[0]
            last.params[9] = number
            if params:
                last.params[10] = [float(value) for value in params.values() if not isinstance(value, Sequence)]
        else:
            self._add(kind, [source], node.output[0], params)

    def _prelu(self, node: Any) -> None:
        slope = self._constant(node, 1)
        if slope.size not in (1, self._of(node.input[0])[0]) or slope.size != max(slope.shape[:1] or (1,)):
            raise self._unable(node, "whose slopes are not one a channel")
        self._store(slope)
        self._add("PReLU", node.input[:1], node.output[0], {0: slope.size})

    def _softmax(self, node: Any) -> None:
        axis = self._axis(node, _attributes(node).get("axis", -1), node.input[0])
        logarithm = node.op_type == "LogSoftmax"
        name = f"{node.output[0]}.shares" if logarithm else node.output[0]
        self._of(node.input[0])
        self._add("Softmax", node.input[:1], name, {0: axis, 1: 1})
        if logarithm:
            self._add("UnaryOp", [name], node.output[0], {0: _UNARY["Log"]})

    def _binary(self, node: Any) -> None:
        """Add an elementwise operator; operands get the same number of axes, so that both libraries broadcast in the same way."""
        rank, result = len(self._of(node.output[0])), node.output[0]
        code = _BINARY["Add" if node.op_type == "Sum" else node.op_type]
        left = self._operand(node, 0, rank)
        for index in range(1, len(node.input)):
            name = result if index == len(node.input) - 1 else f"{result}.{index}"
            left = self._add("BinaryOp", [left, self._operand(node, index, rank)], name, {0: code})
        if len(node.input) == 1:
            self._add("Noop", [left], result, {})

    def _operand(self, node: Any, index: int, rank: int) -> str:
        name = node.input[index]
        shape = self._stored[name].shape if name in self._stored else self._shapes[name]
        sizes = (1,) * (rank + 1 - len(shape)) + tuple(shape)
        if sizes[0] != 1:
            raise self._unable(node, "over a batch")
        if name in self._stored:
            return self._memory(f"{node.output[0]}.operand{index}", sizes[1:], self._stored[name])
        if len(shape) != rank + 1:
            self._viewed(name, f"{node.output[0]}.operand{index}", sizes[1:])
            return f"{node.output[0]}.operand{index}"
        return str(name)

    def _unary(self, node: Any) -> None:
        self._of(node.input[0])
        self._add("UnaryOp", node.input[:1], node.output[0], {0: _UNARY[node.op_type]})

    def _concat(self, node: Any) -> None:
        result = node.output[0]
        axis = self._axis(node, _attributes(node)["axis"], result)
        self._of(result)
        parts = list(node.input)
        for number, name in enumerate(parts):
            if name in self._stored:
                array = self._stored[name]
                parts[number] = self._memory(f"{result}.{number}", self._sizes(array.shape, name), array)
        self._add("Concat", parts, result, {0: axis})

    def _pool(self, node: Any) -> None:
        self._check_images(node)
        attrs, image, result = _attributes(node), self._shapes[node.input[0]], self._shapes[node.output[0]]
        (kh, kw), (sh, sw) = attrs["kernel_shape"], attrs.get("strides", (1, 1))
        top, left, bottom, right = attrs.get("pads", (0, 0, 0, 0))
        if tuple(attrs.get("dilations", (1, 1))) != (1, 1) or attrs.get("auto_pad", "NOTSET") != "NOTSET":
            raise self._unable(node, "that is dilated, or does not state its padding")
        # an overhanging window, as allowed by ceil_mode, gets padding at the end
        bottom_padding = max(bottom, (result[2] - 1) * sh + kh - image[2] - top)
        right_padding = max(right, (result[3] - 1) * sw + kw - image[3] - left)
        average, counted = node.op_type == "AveragePool", attrs.get("count_include_pad", 0)
        if average and counted and (bottom_padding, right_padding) != (bottom, right):
            raise self._unable(node, "that counts its padding, over windows that overhang")
        params: dict[int, _Value] = {
            0: int(average),
            1: kw,
            11: kh,
            2: sw,
            12: sh,
            3: left,
            13: top,
            14: right_padding,
            15: bottom_padding,
            5: 1,
            6: counted,
        }
        self._add("Pooling", node.input[:1], node.output[0], params)

    def _global_pool(self, node: Any) -> None:
        self._check_images(node)
        name = f"{node.output[0]}.channels"
        self._add("Pooling", node.input[:1], name, {0: int(node.op_type == "GlobalAveragePool"), 4: 1})
        self._viewed(name, node.output[0], self._of(node.output[0]))

    def _reduce(self, node: Any) -> None:
        attrs, axes = _attributes(node), self._optional(node, 1)
        over = attrs.get("axes") if axes is None else axes.ravel().tolist()
        if not over:
            raise self._unable(node, "over the batch")
        axes_of = sorted(self._axis(node, axis, node.input[0]) for axis in over)
        self._of(node.input[0]), self._of(node.output[0])
        params: dict[int, _Value] = {0: _REDUCTIONS[node.op_type], 1: 0, 3: axes_of, 4: int(attrs.get("keepdims", 1)), 5: 1}
        self._add("Reduction", node.input[:1], node.output[0], params)

    def _view(self, node: Any) -> None:
        source, target = self._of(node.input[0]), self._of(node.output[0])
        if source == target:
            self._add("Noop", node.input[:1], node.output[0], {})
        else:
            self._viewed(node.input[0], node.output[0], target)

    def _transpose(self, node: Any) -> None:
        order = [axis - 1 for axis in _attributes(node)["perm"]]
        self._of(node.input[0])
        if order[0] != -1:
            raise self._unable(node, "of the batch")
        self._add("Permute", node.input[:1], node.output[0], {0: _ORDERS[len(order) - 1].index(tuple(order[1:]))})

    def _slice(self, node: Any) -> None:
        shape = self._shapes[node.input[0]]
        starts, stops = (self._constant(node, index).ravel().tolist() for index in (1, 2))
        axes, steps = self._optional(node, 3), self._optional(node, 4)
        over = list(range(len(starts))) if axes is None else axes.ravel().tolist()
        if steps is not None and (steps != 1).any():
            raise self._unable(node, "with steps")
        self._of(node.output[0])
        cuts = [slice(start, stop).indices(shape[axis])[:2] for start, stop, axis in zip(starts, stops, over, strict=True)]
        params: dict[int, _Value] = {
            9: [start for start, _ in cuts],
            10: [stop for _, stop in cuts],
            11: [self._axis(node, a, node.input[0]) for a in over],
        }
        self._add("Crop", node.input[:1], node.output[0], params)

    def _split(self, node: Any) -> None:
        axis = self._axis(node, _attributes(node).get("axis", 0), node.input[0])
        start = 0
        for name in node.output:
            stop = start + self._of(name)[axis]
            self._add("Crop", node.input[:1], name, {9: [start], 10: [stop], 11: [axis]})
            start = stop

    def _pad(self, node: Any) -> None:
        self._check_images(node)
        pads, value, axes = self._constant(node, 1).ravel().tolist(), self._optional(node, 2), self._optional(node, 3)
        over = range(4) if axes is None else axes.ravel().tolist()
        widths = dict.fromkeys(range(4), (0, 0))
        widths |= {axis % 4: (pads[i], pads[i + len(pads) // 2]) for i, axis in enumerate(over)}
        if widths[0] != (0, 0) or min(min(pair) for pair in widths.values()) < 0 or _attributes(node).get("mode", "constant") != "constant":
            raise self._unable(node, "that is more than a constant around the image")
        (front, back), (top, bottom), (left, right) = (widths[axis] for axis in (1, 2, 3))
        number = 0.0 if value is None else float(value)
        params: dict[int, _Value] = {0: top, 1: bottom, 2: left, 3: right, 4: 0, 5: number, 7: front, 8: back}
        self._add("Padding", node.input[:1], node.output[0], params)

    def _resize(self, node: Any) -> None:
        self._check_images(node)
        attrs, result = _attributes(node), self._shapes[node.output[0]]
        form = (attrs.get("mode", "nearest"), attrs.get("coordinate_transformation_mode", "half_pixel"), attrs.get("nearest_mode", ""))
        if form[0] == "nearest":
            supported = form == ("nearest", "asymmetric", "floor")
        else:
            supported = form[0] == "linear" and form[1] in ("half_pixel", "align_corners") and not attrs.get("antialias")
        if not supported:
            raise self._unable(node, f"of a form ({', '.join(form[:2])}) that ncnn computes otherwise")
        code = 1 if form[0] == "nearest" else 2
        self._add("Interp", node.input[:1], node.output[0], {0: code, 3: result[2], 4: result[3], 6: int(form[1] == "align_corners")})

    def _check_images(self, node: Any) -> None:
        if len(self._of(node.input[0])) != 3:
            raise self._unable(node, "of what is no image")


_Activation = Callable[[Mapping[str, Any]], tuple[str, dict[int, _Value]]]
_ACTIVATIONS: dict[str, _Activation] = {
    "Relu": lambda attrs: ("ReLU", {}),
    "LeakyRelu": lambda attrs: ("ReLU", {0: float(attrs.get("alpha", 0.01))}),
    "Elu": lambda attrs: ("ELU", {0: float(attrs.get("alpha", 1.0))}),
    "Sigmoid": lambda attrs: ("Sigmoid", {}),
    "Tanh": lambda attrs: ("TanH", {}),
    "HardSigmoid": lambda attrs: ("HardSigmoid", {0: float(attrs.get("alpha", 0.2)), 1: float(attrs.get("beta", 0.5))}),
    "HardSwish": lambda attrs: ("HardSwish", {0: 1 / 6, 1: 0.5}),
    "Mish": lambda attrs: ("Mish", {}),
    "Gelu": lambda attrs: ("GELU", {0: int(attrs.get("approximate") == "tanh")}),
    "Erf": lambda attrs: ("Erf", {}),
}

_Writer = Callable[[NcnnNetwork, Any], None]
_WRITERS: dict[str, _Writer] = {
    **dict.fromkeys(("Conv", "ConvTranspose"), NcnnNetwork._conv),
    "Gemm": NcnnNetwork._gemm,
    "MatMul": NcnnNetwork._matmul,
    "BatchNormalization": NcnnNetwork._batch_norm,
    "LayerNormalization": NcnnNetwork._layer_norm,
    **dict.fromkeys(_ACTIVATIONS, NcnnNetwork._activation),
    "Clip": NcnnNetwork._clip,
    "PRelu": NcnnNetwork._prelu,
    **dict.fromkeys(("Softmax", "LogSoftmax"), NcnnNetwork._softmax),
    **dict.fromkeys((*_BINARY, "Sum"), NcnnNetwork._binary),
    **dict.fromkeys(_UNARY, NcnnNetwork._unary),
    "Concat": NcnnNetwork._concat,
    **dict.fromkeys(("MaxPool", "AveragePool"), NcnnNetwork._pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), NcnnNetwork._global_pool),
    **dict.fromkeys(_REDUCTIONS, NcnnNetwork._reduce),
    **dict.fromkeys(_VIEWS, NcnnNetwork._view),
    "Transpose": NcnnNetwork._transpose,
    "Slice": NcnnNetwork._slice,
    "Split": NcnnNetwork._split,
    "Pad": NcnnNetwork._pad,
    "Resize": NcnnNetwork._resize,
}

#: Permutations of the axes in the order of ncnn's numbers, by the number of axes.
_ORDERS: dict[int, list[tuple[int, ...]]] = {
    1: [(0,)],
    2: [(0, 1), (1, 0)],
    3: [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)],
    4: list(permutations(range(4))),
}


class NcnnInvocation(Invocation):
    """A network tied to its buffers; releases the GIL while it computes.

    Args:
        cores: Cores on which the first run starts ncnn's threads, which then stay there.
    """

    def __init__(self, network: "NcnnCompiled", inputs: Sequence[Array], outputs: Sequence[Array], cores: tuple[int, ...]) -> None:
        # ncnn crashes on activations in foreign memory
        mats = [load_package("ncnn", INSTALL).Mat(array.shape[:0:-1]) for array in inputs]
        self._inputs = list(zip(network.blobs[0], mats, map(np.asarray, mats), inputs, strict=True))
        self._outputs = list(zip(network.blobs[1], outputs, strict=True))
        self._network, self._cores = network, cores if len(cores) > 1 else ()

    def run(self) -> None:
        """Compute from and into the bound buffers."""
        if not self._cores:
            return self._run()
        # OpenMP's threads start on the cores that the calling thread may use at that time
        with pinned(self._cores):
            self._run()
        self._cores = ()
        return None

    def _run(self) -> None:
        extractor = self._network.net.create_extractor()
        for blob, mat, view, array in self._inputs:
            np.copyto(view, array[0])
            extractor.input(blob, mat)
        for blob, array in self._outputs:
            status, result = extractor.extract(blob)
            if status:
                raise UnableError(f"ncnn ended with status {status}: its device may be lost, or out of memory")
            np.copyto(array[0], np.asarray(result).reshape(array.shape[1:]))


class NcnnCompiled(Compiled):
    """A subgraph as an ncnn network.

    Attributes:
        net: The `ncnn.Net`.
        blobs: Names of the blobs of its inputs and outputs.
    """

    def __init__(self, net: Any, opened: OnnxFile, blobs: tuple[list[str], list[str]], cores: tuple[int, ...]) -> None:
        super().__init__(*opened.ends)
        self.net, self.blobs, self._cores = net, blobs, cores

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> NcnnInvocation:
        """Tie the network to `inputs` and `outputs`."""
        self.check(inputs, outputs)
        return NcnnInvocation(self, inputs, outputs, self._cores)


def _compiled(model: Path, cores: tuple[int, ...], vulkan: bool) -> NcnnCompiled:
    """Write an ONNX file as an ncnn network and load it."""
    ncnn, opened = load_package("ncnn", INSTALL), open_onnx(model)
    network = NcnnNetwork(opened, vulkan)
    net = ncnn.Net()
    net.opt.use_vulkan_compute = vulkan
    net.opt.num_threads = max(1, len(cores))
    # half precision only if the file has it: otherwise the model would differ from the verified one
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic"):
        setattr(net.opt, f"use_{option}", network.half)
    for option in ("use_bf16_storage", "use_bf16_packed"):
        setattr(net.opt, option, False)
    if net.load_param_mem(network.text()):
        raise StretchError(f"ncnn does not load the network that was written of {model}", "choose another delegate with --map")
    net.load_model_mem(network.weights())
    blobs = tuple([network.blob(name) for name in ends.values()] for ends in (network.inputs, network.outputs))
    return NcnnCompiled(net, opened, (blobs[0], blobs[1]), cores)


@delegates.register("ncnn")
class NcnnDelegate(CoreDelegate):
    """ncnn on CPU cores, one thread on each; fp16 files are computed in fp16 where the cores can."""

    summary = "ncnn on CPU cores"
    package = "ncnn"
    install = INSTALL
    precisions = ("fp32", "fp16")
    falls_back_on = "cpu"

    def compile(self, model: Path) -> NcnnCompiled:
        """Write an ONNX file as an ncnn network and load it."""
        return _compiled(model, self._cores, vulkan=False)


@delegates.register("vulkan")
class VulkanDelegate(Delegate):
    """ncnn on the first Vulkan device, which may be the CPU, as Mesa's lavapipe is."""

    summary = "ncnn on a GPU through Vulkan (ran on Mesa's lavapipe and an NVIDIA H200)"
    package = "ncnn"
    precisions = ("fp32", "fp16")
    drives = ("gpu",)
    falls_back_on = "cpu"

    @classmethod
    def unavailable(cls) -> str | None:
        """Return the reason why no Vulkan device can be used, or None."""
        if problem := NcnnDelegate.unavailable():
            return problem
        return None if _device() is not None else "ncnn finds no Vulkan device (is a driver and libvulkan.so.1 installed?)"

    @classmethod
    def needs_core(cls) -> bool:
        """Return whether the Vulkan device is the CPU."""
        return _device() == _CPU

    @classmethod
    def preferred(cls) -> bool:
        """Return whether a GPU uses this delegate by default: profiles of boards were measured with it."""
        return not cls.needs_core()

    def compile(self, model: Path) -> NcnnCompiled:
        """Write an ONNX file as an ncnn network and load it for the device."""
        return _compiled(model, (), vulkan=True)


#: ncnn's number for a Vulkan device that is the CPU.
_CPU = 3


def _device() -> int | None:
    """Return the type of the first Vulkan device; None if there is none."""
    if sys.platform == "linux":
        # ncnn would search the library repeatedly, with a message each time
        try:
            ctypes.CDLL("libvulkan.so.1")
        except OSError:
            return None
    # ncnn lists each device and its features on separate lines that start with ``[0 NAME]``
    with _LOCK, filter_stderr(b"["):
        ncnn = load_package("ncnn", INSTALL)
        return int(ncnn.get_gpu_info(0).type()) if ncnn.get_gpu_count() else None


def _attributes(node: Any) -> dict[str, Any]:
    """Return a node's attributes, with lists as tuples and text decoded."""
    import onnx.helper

    def decode(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode()
        return tuple(value) if isinstance(value, list) else value

    return {attribute.name: decode(onnx.helper.get_attribute_value(attribute)) for attribute in node.attribute}


def _size_parameters(sizes: Sequence[int]) -> dict[int, _Value]:
    """Return the sizes of a tensor by parameter id."""
    keys = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}[len(sizes)]
    return dict(zip(keys, sizes, strict=True))


def _parameter(key: int, value: _Value) -> str:
    """Return ``id=value``; a list starts with its length."""
    if isinstance(value, Sequence):
        return ",".join([f"{_LISTS - key}={len(value)}", *map(_number, value)])
    return f"{key}={_number(value)}"


def _number(value: float) -> str:
    return f"{value:.9e}" if isinstance(value, float) else str(int(value))
