"""Load TFLite files of any converter as torch modules that compute the same.

Operators are translated to ONNX operators that compute the same once the axes are in ONNX's order, or to torch if ONNX has none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from operator import floordiv
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx

from predictors.errors import StretchError, need
from predictors.formats.onnx import TO_FIRST, TO_LAST
from predictors.registry import RuleTable
from scheduler.bundle.manifest import SourceFile, SourceTensor
from scheduler.formats.onnx.file import MAX_PARTS
from scheduler.formats.onnx.shapes.node import TYPE_NAMES, require
from scheduler.formats.tflite import DEFAULTS, TfliteNetwork, TfliteOperator, open_tflite
from stretch.network.capture.inputs import InputShapes
from stretch.network.capture.results import walk_leaves
from stretch.network.models.builder import (
    Builder,
    End,
    OwnNetwork,
    Site,
    Size,
    by_name,
    finish_network,
    named_ends,
    permute_axes,
    permute_shape,
    reading,
    rearrange,
    resolve_input_shapes,
    select_at,
    shape_of,
)
from stretch.network.models.onnx.computing import linear
from stretch.network.models.onnx.network import RULES as ONNX
from stretch.network.models.onnx.network import Attributes, OnnxSite

#: Version of the ONNX operators that rules call.
_OPSET = 22

#: Settings that the tensors imply as well: their types, their number and their shapes.
HARMLESS = (
    *("in_data_type", "out_data_type", "output_type", "values_count", "num", "num_splits", "depth_multiplier", "new_shape"),
    "keep_num_dims",
)


@dataclass(frozen=True)
class TfliteView:
    """A tensor of the network."""

    node: fx.Node  # Node that computes the tensor.
    #: Order of the elements: ``file`` for the file's own; ``image`` for N×C×H×W instead of the file's N×H×W×C; ``row`` for N×CHW
    #: instead of N×HWC, for a flattened image.
    form: str = "file"
    size: tuple[int, ...] = ()  # Height, width and channels of the flattened image.

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor in the file."""
        return permute_shape(shape_of(self.node), TO_LAST if self.form == "image" else ())

    def like(self, node: fx.Node) -> "TfliteView":
        """Return another tensor in the same order of elements."""
        return TfliteView(node, self.form, self.size)


#: Input of an operator: a tensor of the network, a stored array, or None if it is left out.
Value = TfliteView | np.ndarray | None


@dataclass(frozen=True)
class TfliteSite(Site[TfliteView]):
    """One operator as its rule sees it; missing settings are zero."""

    kinds: Sequence[str] = field(default_factory=list)  # Element types of its outputs, by numpy's names.

    def view(self, i: int) -> TfliteView:
        """Return input `i` as a tensor of the network; a stored one becomes a parameter."""
        if (value := self.value(i)) is None:
            raise StretchError(f"it has no input {i}")
        return value if isinstance(value, TfliteView) else TfliteView(self.add_tensor(value, i))

    def shape(self, i: int = 0) -> tuple[int, ...]:
        """Return the shape of an input in the file."""
        value = self.value(i)
        return tuple(value.shape) if isinstance(value, np.ndarray) else self.view(i).shape

    def in_file_order(self, i: int = 0) -> fx.Node:
        """Return input `i` with its axes as in the file."""
        return in_file_order(self.builder, self.view(i))

    def image(self, i: int = 0) -> fx.Node:
        """Return input `i`, which is N×H×W×C in the file, as N×C×H×W."""
        need(len(self.shape(i)) == 4, f"it reads a tensor of shape {list(self.shape(i))}, which is no image")
        value = _as_image(self, i)
        return value if isinstance(value, fx.Node) else self.add_tensor(value, i)

    def onnx(self, op: str, inputs: Sequence[fx.Node | np.ndarray | None], results: int = 1, **attrs: Any) -> Any:
        """Apply an ONNX operator to these inputs, and return its result."""
        return ONNX[op](OnnxSite(inputs, op, self.name, attrs, results, self.builder, _OPSET))

    def operands(self, values: Sequence[fx.Node | np.ndarray]) -> list[Any]:
        """Return values as operands of a torch function; a single stored number becomes a number."""
        arrays = {i: value for i, value in enumerate(values) if isinstance(value, np.ndarray)}
        stored = {i: x.item() if x.size == 1 else self.add_tensor(x, i) for i, x in arrays.items()}
        return [stored.get(i, value) for i, value in enumerate(values)]

    def apply_activation(self, node: fx.Node) -> fx.Node:
        """Apply the operator's fused activation to a result."""
        number = self.integer("fused_activation_function")
        if not number:
            return node
        need(number in ACTIVATIONS, f"its activation is number {number}, which torch has not")
        function, *options = ACTIVATIONS[number]
        return self.call(function, node, *options)


#: Activations by their number in the format: a function of torch and its arguments.
ACTIVATIONS: dict[int, tuple[Any, ...]] = {1: (torch.relu,), 2: (torch.clamp, -1.0, 1.0), 3: (F.relu6,), 4: (torch.tanh,)}


def in_file_order(builder: Builder, view: TfliteView) -> fx.Node:
    """Return a tensor with its axes as in the file."""
    if view.form == "image":
        return permute_axes(builder, view.node, TO_LAST)
    if view.form == "row":
        height, width, channels = view.size
        current = shape_of(view.node)
        return rearrange(builder, view.node, (current[0], channels, height, width), TO_LAST, current)
    return view.node


def flatten_image(builder: Builder, image: fx.Node) -> TfliteView:
    """Flatten an image to one row, in the order of torch's networks."""
    channels, height, width = shape_of(image)[1:]
    row = builder.call(torch.flatten, image, 1)
    return TfliteView(row) if height * width == 1 or channels == 1 else TfliteView(row, "row", (height, width, channels))


def align_operands(site: TfliteSite, operands: Sequence[int]) -> tuple[list[Any], TfliteView]:
    """Return all inputs in one order of axes, stored ones as arrays, and a tensor with the order of the result.

    If one input is an image, all become images; missing axes are added at the front.
    """
    values = [site.value(i) for i in operands]
    view = [value for value in values if isinstance(value, TfliteView)]
    need(bool(view), "it reads no tensor of the network")
    rank = max(len(item.shape) for item in view)
    single = [isinstance(value, np.ndarray) and value.size == 1 and value.ndim <= rank for value in values]
    if all(item.form == "row" and item.size == view[0].size for item in view) and len(view) + sum(single) == len(values):
        return [value.node if isinstance(value, TfliteView) else value for value in values], view[0]
    images = [item for item in view if item.form == "image"]
    if images and max(len(site.shape(i)) for i in operands) == 4:
        return [value if is_single else _as_image(site, i) for i, value, is_single in zip(operands, values, single, strict=True)], images[0]
    return [
        site.in_file_order(i) if isinstance(value, TfliteView) else value for i, value in zip(operands, values, strict=True)
    ], TfliteView(view[0].node)


def _as_image(site: TfliteSite, i: int) -> Any:
    """Return an input with four axes, with the channels second."""
    value, shape = site.value(i), site.shape(i)
    padded = (1,) * (4 - len(shape)) + shape
    if isinstance(value, np.ndarray):
        return value.reshape(padded).transpose(TO_FIRST)
    if site.view(i).form == "image":
        return site.view(i).node
    x = site.in_file_order(i)
    return permute_axes(site.builder, x if padded == shape else site.call(torch.reshape, x, padded), TO_FIRST)


#: Function that builds the computation of an operator and returns its results.
Rule = Callable[[TfliteSite], TfliteView | list[TfliteView]]

#: Rules by the name of the operator.
RULES: RuleTable[Rule] = RuleTable()

#: Decorator that registers the rule for operators with these names.
rule = RULES.add


#: Elementwise operators that are one ONNX operator: first those with different names, then those that differ only in spelling.
_ELEMENTWISE = {
    "ADD_N": "Sum",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LESS_EQUAL": "LessOrEqual",
    "LOGICAL_AND": "And",
    "LOGICAL_NOT": "Not",
    "LOGICAL_OR": "Or",
    "LOGISTIC": "Sigmoid",
    "PRELU": "PRelu",
    **dict.fromkeys(("RELU6", "RELU_0_TO_1", "RELU_N1_TO_1"), "Clip"),
    **{
        code: code.title().replace("_", "")
        for code in (
            *("ABS", "ADD", "CAST", "CEIL", "COS", "DIV", "ELU", "EQUAL", "EXP", "FLOOR", "GELU", "GREATER", "HARD_SWISH", "LEAKY_RELU"),
            *("LESS", "LOG", "MUL", "NEG", "POW", "RELU", "ROUND", "SIGN", "SIN", "SQRT", "SUB", "TANH"),
        )
    },
}

_TYPES = {("float32" if name == "float" else name): number for number, name in TYPE_NAMES.items()}

#: ONNX attributes for operators that have settings; half precision is computed in single precision.
_ATTRIBUTES: dict[str, Callable[[TfliteSite], dict[str, Any]]] = {
    "CAST": lambda site: {"to": require(_TYPES.get(site.kinds[0]), f"it casts to {site.kinds[0]}")},
    "GELU": lambda site: {"approximate": "tanh" if site.flag("approximate") else "none"},
    "LEAKY_RELU": lambda site: {"alpha": site.real("alpha")},
    "RELU6": lambda site: {"min": 0.0, "max": 6.0},
    "RELU_0_TO_1": lambda site: {"min": 0.0, "max": 1.0},
    "RELU_N1_TO_1": lambda site: {"min": -1.0, "max": 1.0},
}

#: Elementwise operators that are one function of torch.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FLOOR_DIV": floordiv,
    "NOT_EQUAL": torch.ne,
    "RSQRT": torch.rsqrt,
    "SELECT": torch.where,
    "SELECT_V2": torch.where,
    "SQUARE": torch.square,
}


def _elementwise(op: str, site: TfliteSite) -> TfliteView:
    attrs = _ATTRIBUTES[site.op](site) if site.op in _ATTRIBUTES else {}
    values, order = align_operands(site, range(len(site.inputs)))
    return order.like(site.apply_activation(site.onnx(op, values, **attrs)))


def _call_function(function: Callable[..., Any], site: TfliteSite) -> TfliteView:
    values, order = align_operands(site, range(len(site.inputs)))
    return order.like(site.call(function, *site.operands(values)))


RULES.update({code: partial(_elementwise, op) for code, op in _ELEMENTWISE.items()})
RULES.update({code: partial(_call_function, function) for code, function in _FUNCTIONS.items()})


@rule("MAXIMUM", "MINIMUM")
def _maximum_or_minimum(site: TfliteSite) -> TfliteView:
    """Translate TFLite MAXIMUM and MINIMUM: of two tensors, or with a bound; two successive bounds become one clipping."""
    values, order = align_operands(site, (0, 1))
    a, b = site.operands(values)
    if isinstance(a, int | float):
        a, b = b, a
    if not isinstance(b, int | float):
        return order.like(site.call(torch.maximum if site.op == "MAXIMUM" else torch.minimum, a, b))
    low, high = (float(b), None) if site.op == "MAXIMUM" else (None, float(b))
    if a.op == "call_function" and a.target is torch.clamp and len(a.args) == 3:
        earlier, before, behind = a.args
        if (before if low is not None else behind) is None and (low is None or behind is None or low <= behind):
            a, low, high = earlier, before if low is None else low, behind if high is None else high
    return order.like(site.onnx("Clip", [a], 1, **{name: bound for name, bound in (("min", low), ("max", high)) if bound is not None}))


def _axes(site: TfliteSite) -> list[int]:
    """Return the axes of the first input in the file, counted from the first."""
    rank, axes = len(site.shape()), site.numbers(1, "axes")
    need(all(-rank <= axis < rank for axis in axes), f"it has the axes {axes} of {rank}")
    return sorted({axis % rank for axis in axes})


def _reduction(op: str, site: TfliteSite) -> TfliteView:
    """Translate a TFLite reduction; an image that keeps its axes stays an image, and a mean over all pixels becomes a pool."""
    axes, keep, view = _axes(site), site.flag("keep_dims"), site.view(0)
    if not axes:
        return view
    if view.form == "image" and op == "ReduceMean" and axes == [1, 2] and not keep:
        return flatten_image(site.builder, site.onnx(op, [view.node], axes=[2, 3]))
    if view.form == "image" and keep:
        return view.like(site.onnx(op, [view.node], axes=[TO_LAST[axis] for axis in axes]))
    return TfliteView(site.onnx(op, [site.in_file_order()], axes=axes, keepdims=int(keep)))


for _code, _op in (("MEAN", "Mean"), ("SUM", "Sum"), ("REDUCE_MAX", "Max"), ("REDUCE_MIN", "Min"), ("REDUCE_PROD", "Prod")):
    RULES[_code] = partial(_reduction, f"Reduce{_op}")


@rule("ARG_MAX", "ARG_MIN")
def _arg_reduction(site: TfliteSite) -> TfliteView:
    (axis,) = _axes(site)
    return TfliteView(site.onnx("ArgMax" if site.op == "ARG_MAX" else "ArgMin", [site.in_file_order()], axis=axis, keepdims=0))


@rule("CUMSUM")
def _cum_sum(site: TfliteSite) -> TfliteView:
    flags = {name: int(site.flag(name)) for name in ("exclusive", "reverse")}
    return TfliteView(site.onnx("CumSum", [site.in_file_order(), np.array(_axes(site))], **flags))


def _along_last_axis(op: str, site: TfliteSite) -> TfliteView:
    """Translate a TFLite function along the last axis; SOFTMAX multiplies its input by `beta` first."""
    order = _in_known_order(site)
    factor = site.real("beta") if site.op == "SOFTMAX" else 1.0
    x = order.node if factor == 1 else site.call(torch.mul, order.node, factor)
    return order.like(site.apply_activation(site.onnx(op, [x], axis=_axis(order, -1))))


for _code, _op in (("SOFTMAX", "Softmax"), ("LOG_SOFTMAX", "LogSoftmax"), ("L2_NORMALIZATION", "LpNormalization")):
    RULES[_code] = partial(_along_last_axis, _op)


@rule("LOCAL_RESPONSE_NORMALIZATION")
def _local_response(site: TfliteSite) -> TfliteView:
    """Translate TFLite LOCAL_RESPONSE_NORMALIZATION; torch divides the sum of squares by their number, TFLite does not."""
    size = 2 * site.integer("radius") + 1
    alpha, beta, bias = (site.real(name) for name in ("alpha", "beta", "bias"))
    return TfliteView(site.onnx("LRN", [site.image()], size=size, alpha=alpha * size, beta=beta, bias=bias), "image")


@rule("FULLY_CONNECTED")
def _fully_connected(site: TfliteSite) -> TfliteView:
    """Translate TFLite FULLY_CONNECTED: a matrix on the last axis or on rows; a flattened image reorders the matrix's columns."""
    need(not site.integer("weights_format"), "its weights are shuffled for one runtime")
    bias = site.optional_stored(2, "bias")
    weight = site.value(1)
    if not isinstance(weight, np.ndarray):
        x = site.call(torch.matmul, site.in_file_order(), site.call(torch.transpose, site.in_file_order(1), 0, 1))
        x = x if bias is None else site.call(torch.add, x, site.view(2).node)
        return TfliteView(site.apply_activation(x))
    need(weight.ndim == 2 and weight.dtype == np.float32, f"its weight has the shape {list(weight.shape)} and type {weight.dtype}")
    view, keep = site.view(0), site.flag("keep_num_dims")
    if not keep and view.form == "image" and np.prod(view.shape[1:]) == weight.shape[1]:
        view = flatten_image(site.builder, view.node)
    if view.form == "row" and view.shape[1] == weight.shape[1]:
        height, width, channels = view.size
        weight = weight.reshape(-1, height, width, channels).transpose(TO_FIRST).reshape(weight.shape)
        x = view.node
    else:
        x = in_file_order(site.builder, view)
        if not keep and shape_of(x) != (shape_of(x)[0], weight.shape[1]):
            x = site.call(torch.reshape, x, (-1, weight.shape[1]))
    return TfliteView(site.apply_activation(site.builder.module(linear(weight, bias), x, site.name)))


@rule("BATCH_MATMUL")
def _matmul(site: TfliteSite) -> TfliteView:
    sides = [site.in_file_order(i) for i in (0, 1)]
    for i, name in enumerate(("adj_x", "adj_y")):
        if site.flag(name):
            sides[i] = site.call(torch.transpose, sides[i], -2, -1)
    return TfliteView(site.onnx("MatMul", sides))


# Operators that move, cut, join and repeat.
def _axis(order: TfliteView, axis: int) -> int:
    """Convert an axis of the file to an axis in a tensor's own order."""
    counted = axis % len(order.shape)
    return TO_LAST[counted] if order.form == "image" else counted


def _in_known_order(site: TfliteSite, i: int = 0) -> TfliteView:
    """Return an input as an image or in the file's order; a flattened image is restored."""
    view = site.view(i)
    return view if view.form == "image" else TfliteView(site.in_file_order(i))


def _reshape_view(builder: Builder, view: TfliteView, shape: list[int]) -> TfliteView:
    """Reshape a tensor; an image that is flattened keeps the order of torch's networks."""
    before = view.shape
    need(shape.count(-1) <= 1 and min(shape, default=0) >= -1, f"it makes the shape {shape}")
    if -1 in shape:
        divisor = -prod(shape)
        shape = [n if n != -1 else prod(before) // divisor if divisor else 0 for n in shape]
    need(prod(shape) == prod(before), f"it makes {shape} of {list(before)}")
    if tuple(shape) == before:
        return view
    if view.form == "image" and shape == [before[0], prod(before[1:])]:
        return flatten_image(builder, view.node)
    if view.form == "row" and tuple(shape) == (before[0], *view.size):
        height, width, channels = view.size
        return TfliteView(builder.call(torch.reshape, view.node, (before[0], channels, height, width)), "image")
    if len(before) == 2 and tuple(shape) == (before[0], 1, 1, before[1]) and view.form == "file":
        return TfliteView(builder.call(torch.reshape, view.node, (*before, 1, 1)), "image")
    return TfliteView(builder.call(torch.reshape, in_file_order(builder, view), tuple(shape)))


@rule("RESHAPE")
def _reshape(site: TfliteSite) -> TfliteView:
    value = site.value(1)
    shape = site.numbers(1, "shape") if value is not None else [int(n) for n in site.attrs.get("new_shape", ())]
    return _reshape_view(site.builder, site.view(0), shape)


@rule("SQUEEZE")
def _squeeze(site: TfliteSite) -> TfliteView:
    shape = site.shape()
    axes = {int(axis) % len(shape) for axis in site.attrs.get("squeeze_dims", ())} or {i for i, n in enumerate(shape) if n == 1}
    return _reshape_view(site.builder, site.view(0), [n for i, n in enumerate(shape) if i not in axes])


@rule("EXPAND_DIMS")
def _expand_dims(site: TfliteSite) -> TfliteView:
    shape, (axis,) = list(site.shape()), site.numbers(1, "axis")
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
    return _reshape_view(site.builder, site.view(0), shape)


@rule("TRANSPOSE")
def _transpose(site: TfliteSite) -> TfliteView:
    """Translate TFLite TRANSPOSE; between the orders of TensorFlow and torch nothing moves, because images are stored in torch's order."""
    order, view = tuple(site.numbers(1, "order")), site.view(0)
    need(sorted(order) == list(range(len(view.shape))), f"it orders {len(view.shape)} axes as {order}")
    if view.form == "image" and order == TO_FIRST:
        return TfliteView(view.node)
    if view.form == "file" and order == TO_LAST:
        return TfliteView(view.node, "image")
    return TfliteView(permute_axes(site.builder, site.in_file_order(), order))


@rule("CONCATENATION")
def _concat(site: TfliteSite) -> TfliteView:
    """Translate TFLite CONCATENATION: in the order of images if one input is an image, else in the file's order."""
    view = [site.view(i) for i in range(len(site.inputs))]
    image = any(item.form == "image" for item in view) and all(len(item.shape) == 4 for item in view)
    parts = [site.image(i) if image else site.in_file_order(i) for i in range(len(view))]
    order = TfliteView(parts[0], "image" if image else "file")
    return order.like(site.apply_activation(site.onnx("Concat", parts, axis=_axis(order, site.integer("axis")))))


@rule("SPLIT", "SPLIT_V")
def _split(site: TfliteSite) -> list[TfliteView]:
    axis_input, which = (1, 0) if site.op == "SPLIT" else (0, 2)
    order = _in_known_order(site, axis_input)
    axis = _axis(order, site.numbers(which, "axis")[0])
    size = shape_of(order.node)[axis]
    if site.op == "SPLIT":
        need(not size % site.results, f"it splits {size} into {site.results}")
        sizes = [size // site.results] * site.results
    else:
        sizes = site.numbers(1, "sizes")
        sizes = [n if n >= 0 else size - sum(size for size in sizes if size >= 0) for n in sizes]
    return [order.like(part) for part in site.onnx("Split", [order.node], site.results, axis=axis, split=sizes)]


def _slice_bounds(site: TfliteSite, *bounds: Sequence[int]) -> TfliteView:
    """Slice each axis of the file between two bounds, with a step."""
    order = _in_known_order(site)
    begins, ends, steps = map(np.array, bounds)
    axes = np.array([_axis(order, axis) for axis in range(len(order.shape))])
    return order.like(site.onnx("Slice", [order.node, begins, ends, axes, steps]))


@rule("SLICE")
def _slice(site: TfliteSite) -> TfliteView:
    begins, sizes, shape = site.numbers(1, "begin"), site.numbers(2, "size"), site.shape()
    ends = [extent if size == -1 else begin + size for begin, size, extent in zip(begins, sizes, shape, strict=False)]
    fits = all(0 <= begin < end <= extent for begin, end, extent in zip(begins, ends, shape, strict=False))
    need(fits and len(begins) == len(sizes) == len(shape), f"it cuts {begins} and {sizes} out of {list(shape)}")
    return _slice_bounds(site, begins, ends, [1] * len(shape))


@rule("STRIDED_SLICE")
def _strided_slice(site: TfliteSite) -> TfliteView:
    begins, ends, strides = (site.numbers(i, noun) for i, noun in ((1, "begin"), (2, "end"), (3, "strides")))
    shape = site.shape()
    # masks are read even if no axis uses them
    at_first, at_last, shrinks = (site.integer(f"{name}_mask") for name in ("begin", "end", "shrink_axis"))
    need(not site.integer("ellipsis_mask") and not site.integer("new_axis_mask"), "it slices with an ellipsis or new axes")
    need(len(begins) == len(ends) == len(strides) <= len(shape), f"it slices {list(shape)} by {begins}, {ends} and {strides}")
    ranges, removed = [slice(0, size, 1) for size in shape], []
    for axis, (begin, end, step) in enumerate(zip(begins, ends, strides, strict=True)):
        need(step >= 1, "it turns the order of elements round")
        if shrinks >> axis & 1:
            need(-shape[axis] <= begin < shape[axis], f"it reads place {begin} of {shape[axis]}")
            removed.append(axis)
            ranges[axis] = slice(begin % shape[axis], begin % shape[axis] + 1, 1)
            continue
        end = begin + end if site.flag("offset") else end
        first = None if at_first >> axis & 1 else begin
        last = None if at_last >> axis & 1 else end
        ranges[axis] = slice(*slice(first, last, step).indices(shape[axis]))
    sliced = _slice_bounds(site, *zip(*((part.start, part.stop, part.step) for part in ranges), strict=True))
    return _reshape_view(site.builder, sliced, [n for axis, n in enumerate(sliced.shape) if axis not in removed])


@rule("GATHER")
def _gather(site: TfliteSite) -> TfliteView:
    need(not site.integer("batch_dims"), "it gathers in batches")
    indices = site.require_stored(1, "indices")
    need(not (indices < 0).any(), "it counts places from the end")
    return TfliteView(site.onnx("Gather", [site.in_file_order(), indices], axis=site.integer("axis")))


@rule("REVERSE_V2")
def _reverse(site: TfliteSite) -> TfliteView:
    order = _in_known_order(site)
    return order.like(site.call(torch.flip, order.node, [_axis(order, axis) for axis in site.numbers(1, "axes")]))


@rule("PAD", "PADV2", "MIRROR_PAD")
def _pad(site: TfliteSite) -> TfliteView:
    order, widths = _in_known_order(site), site.require_stored(1, "widths")
    need(widths.shape == (len(order.shape), 2) and not (widths < 0).any(), f"it pads {list(order.shape)} by {widths.tolist()}")
    need(site.op != "MIRROR_PAD" or not site.integer("mode"), "it repeats the border too, which torch's padding does not")
    pads = np.zeros((2, len(widths)), np.int64)
    pads[:, [_axis(order, axis) for axis in range(len(widths))]] = widths.T
    mode = "reflect" if site.op == "MIRROR_PAD" else "constant"
    return order.like(site.onnx("Pad", [order.node, None, site.optional_stored(2, "value")], pads=pads.ravel().tolist(), mode=mode))


@rule("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def _blocks(site: TfliteSite) -> TfliteView:
    """Translate TFLite DEPTH_TO_SPACE and SPACE_TO_DEPTH; channels are ordered by row, then column of a block, as in TensorFlow."""
    op = "DepthToSpace" if site.op == "DEPTH_TO_SPACE" else "SpaceToDepth"
    return TfliteView(site.onnx(op, [site.image()], blocksize=site.integer("block_size")), "image")


RULES.update(
    {
        "BROADCAST_TO": lambda site: TfliteView(site.builder.method("expand", site.in_file_order(), *site.numbers(1, "shape"))),
        # both return their inputs, because the scales of activations are calibrated again
        **dict.fromkeys(("DEQUANTIZE", "QUANTIZE"), lambda site: site.view(0)),
        "PACK": lambda site: TfliteView(
            site.call(torch.stack, list(map(site.in_file_order, range(len(site.inputs)))), site.integer("axis"))
        ),
        "SQUARED_DIFFERENCE": lambda site: (view := _elementwise("Sub", site)).like(site.call(torch.square, view.node)),
        "TILE": lambda site: TfliteView(site.builder.method("repeat", site.in_file_order(), *site.numbers(1, "repeats"))),
        "UNPACK": lambda site: [
            TfliteView(site.call(torch.select, site.in_file_order(), site.integer("axis"), i)) for i in range(site.results)
        ],
    }
)


# Windows, and images of another size.

_SAME, _VALID = 0, 1


def _padding(site: TfliteSite) -> str:
    """Return ONNX's padding mode; SAME gives ceil(size / stride) windows, with an odd row of padding at the end."""
    need(site.integer("padding") in (_SAME, _VALID), f"its padding is number {site.integer('padding')}")
    return "SAME_UPPER" if site.integer("padding") == _SAME else "VALID"


def _steps(site: TfliteSite, *names: str) -> list[int]:
    """Return two settings of a window's steps, rows first."""
    settings = [site.integer(name) for name in names]
    need(min(settings) >= 1 and max(settings) <= 1 << 16, f"its {names[0].removesuffix('_h')} is {settings}")
    return settings


def _weights(site: TfliteSite, i: int) -> tuple[np.ndarray, np.ndarray | None]:
    weight, bias = site.require_stored(i, "weight"), site.optional_stored(i + 1 if site.op != "TRANSPOSE_CONV" else 3, "bias")
    if weight.ndim != 4 or weight.dtype != np.float32 or (bias is not None and bias.dtype != np.float32):
        raise StretchError(f"its weights have the shape {list(weight.shape)} and type {weight.dtype}")
    return weight, None if bias is None else bias.reshape(-1)


@rule("CONV_2D", "DEPTHWISE_CONV_2D")
def _convolution(site: TfliteSite) -> TfliteView:
    """Translate TFLite CONV_2D and DEPTHWISE_CONV_2D; weights are out × height × width × in (depthwise: 1 × height × width × out)."""
    x = site.image()
    weight, bias = _weights(site, 1)
    deep = site.op == "DEPTHWISE_CONV_2D"
    weight = weight.transpose(3, 0, 1, 2) if deep else weight.transpose(TO_FIRST)
    channels = shape_of(x)[1]
    need(bool(weight.shape[1] and not channels % weight.shape[1]), f"its weight reads {weight.shape[1]} channels of {channels}")
    attrs = {"strides": _steps(site, "stride_h", "stride_w"), "dilations": _steps(site, "dilation_h_factor", "dilation_w_factor")}
    built = site.onnx("Conv", [x, weight, bias], 1, group=channels // weight.shape[1], auto_pad=_padding(site), **attrs)
    return TfliteView(site.apply_activation(built), "image")


@rule("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(site: TfliteSite) -> TfliteView:
    """Translate TFLite AVERAGE_POOL_2D and MAX_POOL_2D; means leave out padding."""
    x = site.image()
    kernel, stride = _steps(site, "filter_height", "filter_width"), _steps(site, "stride_h", "stride_w")
    covers_image = tuple(kernel) == shape_of(x)[2:] and (
        _padding(site) == "VALID" or all(s >= k for s, k in zip(stride, kernel, strict=True))
    )
    if site.op == "AVERAGE_POOL_2D" and covers_image:
        return TfliteView(site.apply_activation(site.onnx("GlobalAveragePool", [x])), "image")
    op = "MaxPool" if site.op == "MAX_POOL_2D" else "AveragePool"
    return TfliteView(site.apply_activation(site.onnx(op, [x], kernel_shape=kernel, strides=stride, auto_pad=_padding(site))), "image")


@rule("TRANSPOSE_CONV")
def _transposed_convolution(site: TfliteSite) -> TfliteView:
    """Translate TFLite TRANSPOSE_CONV, whose first input is the result's shape; SAME cuts off surplus rows, an odd one at the end."""
    result_shape, x = site.numbers(0, "shape"), site.image(2)
    weight, bias = _weights(site, 1)
    weight = weight.transpose(3, 0, 1, 2)
    kernel, stride = weight.shape[2:], _steps(site, "stride_h", "stride_w")
    if len(result_shape) != 4 or weight.shape[0] != shape_of(x)[1]:
        raise StretchError(f"its weight of shape {list(weight.shape)} does not make {result_shape} of {list(shape_of(x))}")
    full_sizes = [(size - 1) * s + k for size, s, k in zip(shape_of(x)[2:], stride, kernel, strict=True)]
    total = [have - size for have, size in zip(full_sizes, result_shape[1:3], strict=True)]
    before = [max(0, n) // 2 if site.integer("padding") == _SAME else 0 for n in total]
    missing = [max(0, -n) for n in total]
    if any(m >= s for m, s in zip(missing, stride, strict=True) if m):
        raise StretchError(f"it makes {result_shape} of {list(shape_of(x))}, more than its windows reach")
    even = all(n == 2 * b - m for n, b, m in zip(total, before, missing, strict=True))
    pads = before * 2 if even else [0] * 4
    result = site.onnx("ConvTranspose", [x, weight, bias], strides=stride, pads=pads, output_padding=missing)
    for axis in () if even else (0, 1):
        result = site.call(torch.narrow, result, 2 + axis, before[axis], result_shape[1 + axis])
    return TfliteView(site.apply_activation(result), "image")


@rule("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def _resize(site: TfliteSite) -> TfliteView:
    x, sizes = site.image(), site.numbers(1, "size")
    need(len(sizes) == 2 and min(sizes) >= 1 and max(sizes) <= 1 << 16, f"it resizes to {sizes}")
    aligned, half = site.flag("align_corners"), site.flag("half_pixel_centers")
    if site.op == "RESIZE_NEAREST_NEIGHBOR":
        pixels = [_nearest_pixels(new, old, aligned, half) for new, old in zip(sizes, shape_of(x)[2:], strict=True)]
        return TfliteView(select_at(site.builder, x, pixels, site.name), "image")
    need(not (aligned and half), "it aligns both the corners and the centres of pixels")
    coordinates = "align_corners" if aligned else "half_pixel" if half else "asymmetric"
    size = np.array([*shape_of(x)[:2], *sizes])
    return TfliteView(site.onnx("Resize", [x, None, None, size], mode="linear", coordinate_transformation_mode=coordinates), "image")


def _nearest_pixels(new: int, old: int, aligned: bool, half: bool) -> np.ndarray:
    """Return the old pixel for each new one (`GetNearestNeighbor` of LiteRT's reference kernels), in single precision as there."""
    scale = np.float32((old - 1) / (new - 1)) if aligned and new > 1 else np.float32(old / new)
    positions = (np.arange(new, dtype=np.float32) + np.float32(0.5 if half else 0.0)) * scale
    floor = np.floor(positions + np.float32(0.5)) if aligned else np.floor(positions)
    return np.asarray(np.clip(floor, 0, old - 1), np.int64)


# A file as a network, operator by operator.


#: Operators that keep the order of axes: the operators after them show the order of the input.
_ANY_ORDER = frozenset({"ADD", "SUB", "MUL", "DIV", "QUANTIZE", "DEQUANTIZE", "CAST", "MAXIMUM", "MINIMUM"})


def read_module(path: str | Path, input_shape: InputShapes | None = None) -> fx.GraphModule:
    """Load the network of a TFLite file of any converter, in evaluation mode; it returns several outputs as a dictionary by their names.

    Images are N×H×W×C in the file, and N×C×H×W in the network's inputs and outputs. Half-precision and quantised weights
    become single-precision reals, and operators that round activations are removed. The module describes its inputs:
    `stretch.network.models.builder.finish_network`.
    """
    return _TfliteLowering(open_tflite(Path(path)), input_shape).network()


class _TfliteLowering:
    def __init__(self, network: TfliteNetwork, input_shapes: InputShapes | None) -> None:
        self._network = network
        if max(len(network.operators), len(network.tensors), len(network.inputs), len(network.outputs)) > MAX_PARTS:
            raise StretchError(f"{network.path} has more than {MAX_PARTS} operators or tensors, which is no network that can be branched")
        images = [len(network.tensors[i].shape) == 4 and not self._turned_at_once(i) for i in network.inputs]
        self._ends = named_ends(network.path, [self._input_end(i, image) for i, image in zip(network.inputs, images, strict=True)])
        self._shapes = resolve_input_shapes(network.path, self._ends, input_shapes)
        self._builder = Builder(self._shapes)
        self._values: dict[int, Value] = {i: tensor.reals for i, tensor in enumerate(network.tensors) if tensor.stored is not None}
        for i, end, image in zip(network.inputs, self._ends, images, strict=True):
            self._values[i] = TfliteView(self._builder.inputs[end.argument], "image" if image else "file")

    def network(self) -> fx.GraphModule:
        """Build the network."""
        path = self._network.path
        for operator in self._network.operators:
            with reading(path, self._describe(operator)):
                self._lower(operator)
        returned = by_name(self._builder, [(self._network.tensors[i].name, self._result(i)) for i in self._network.outputs])
        rounded = sum(tensor.quantisation is not None and tensor.stored is None for tensor in self._network.tensors)
        warnings = [f"{path} rounds {rounded} activations to int8: they are reals here, and `stretch export` finds new scales"]
        keys = [key for key, _ in walk_leaves(returned)]
        own = OwnNetwork(
            self._own_file(keys, bool(rounded)),
            [(self._describe(operator), self._output_nodes(operator)) for operator in self._network.operators],
        )
        return finish_network(path, self._builder.finish(returned, "Network"), self._shapes, self._ends, warnings if rounded else [], own)

    def _describe(self, operator: TfliteOperator) -> str:
        """Return the name of an operator in messages."""
        return f"operator `{self._name(operator)[:80]}` ({operator.code})"

    def _output_nodes(self, operator: TfliteOperator) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the network's nodes for the results of an operator, and the order of their axes."""
        values = {i: self._values[i] for i in operator.outputs}
        view = {i: value for i, value in values.items() if isinstance(value, TfliteView) and value.form != "row"}
        return {str(i): (value.node.name, TO_LAST if value.form == "image" else ()) for i, value in view.items()}

    def _own_file(self, keys: Sequence[str], rounded: bool) -> SourceFile:
        """Return the inputs and outputs of the file, and the precision in which it computes."""
        ends = []
        for i, name, shape in [
            *((i, end.argument, self._shapes[end.argument]) for i, end in zip(self._network.inputs, self._ends, strict=True)),
            *((i, key, shape_of(self._result(i))) for i, key in zip(self._network.outputs, keys, strict=True)),
        ]:
            tensor, value = self._network.tensors[i], self._values[i]
            order = TO_LAST if isinstance(value, TfliteView) and value.form == "image" else ()
            steps = tensor.quantisation
            scale, zero_point = (None, 0) if steps is None else (float(steps.scales[0]), int(steps.zero_points[0]))
            ends.append(SourceTensor(str(i), name, permute_shape(shape, order), tensor.kind, order, scale, zero_point))
        halves = any(tensor.kind == "float16" and tensor.stored is None for tensor in self._network.tensors)
        count = len(self._network.inputs)
        return SourceFile(tuple(ends[:count]), tuple(ends[count:]), "int8" if rounded else "fp16" if halves else "fp32")

    def _result(self, tensor: int) -> fx.Node:
        """Return the node that the network returns for an output; stored tensors become parameters."""
        value = self._values[tensor]
        if isinstance(value, TfliteView) and value.form == "image":
            return value.node
        if isinstance(value, TfliteView):
            return self._builder.to_reals(in_file_order(self._builder, value))
        return self._builder.add_tensor(np.asarray(value, np.float32), "")

    def _name(self, operator: TfliteOperator) -> str:
        """Return the name of an operator's first output, without the names that converters append."""
        return self._network.tensors[operator.outputs[0]].name.partition(";")[0] if operator.outputs else operator.code

    def _lower(self, operator: TfliteOperator) -> None:
        kinds = [self._network.tensors[i].kind for i in operator.outputs]
        results = self._results(operator, [None if i is None else self._values[i] for i in operator.inputs], kinds)
        need(len(results) == len(kinds), f"it writes {len(kinds)} tensors, {len(results)} are known")
        self._values |= dict(zip(operator.outputs, results, strict=True))

    def _results(self, operator: TfliteOperator, reads: list[Value], kinds: list[str]) -> list[Value]:
        if operator.code == "SHAPE" and isinstance(reads[0], TfliteView):
            return [np.array(reads[0].shape, np.int32)]
        has_rule, hint = operator.code in RULES, "convert the network with TFLite's own operators alone"
        need(has_rule or not operator.custom, "it is a custom operator, which is computed by code outside the file", hint)
        need(has_rule, "there is no rule for this operator")
        if not any(isinstance(read, TfliteView) for read in reads):
            return self._compute_constant(operator, reads, kinds)
        return list(self._apply_rule(operator, reads, self._name(operator), self._builder, kinds))

    def _apply_rule(self, operator: TfliteOperator, reads: list[Value], name: str, builder: Builder, kinds: list[str]) -> list[TfliteView]:
        """Apply an operator's rule; it must read every setting that differs from its default."""
        settings = Attributes(operator.settings)
        result = RULES[operator.code](TfliteSite(reads, operator.code, name, settings, len(kinds), builder, kinds))
        settings.check(lambda name: DEFAULTS.get(name, 0), HARMLESS)
        return result if isinstance(result, list) else [result]

    def _compute_constant(self, operator: TfliteOperator, reads: list[Value], kinds: list[str]) -> list[Value]:
        """Compute an operator that reads only stored tensors, by its own rule."""
        if operator.code in ("QUANTIZE", "DEQUANTIZE"):
            return [reads[0]]
        builder = Builder((1,))
        computed = [
            TfliteView(builder.add_tensor(read, f"x{i}")) if isinstance(read, np.ndarray) and read.dtype.kind == "f" else read
            for i, read in enumerate(reads)
        ]
        # Integers may be a shape or axes, whose values rules need to know.
        if not any(isinstance(item, TfliteView) for item in computed) and isinstance(computed[0], np.ndarray):
            computed[0] = TfliteView(builder.add_tensor(computed[0], "x0"))
        return [builder.evaluate(in_file_order(builder, item)) for item in self._apply_rule(operator, computed, "known", builder, kinds)]

    def _turned_at_once(self, tensor: int) -> bool:
        """Return whether every reader of an input first moves its channels last, which shows that they are second in the file."""
        readers = [operator for operator in self._network.operators if tensor in operator.inputs]
        return bool(readers) and all(map(self._turns, readers))

    def _turns(self, operator: TfliteOperator) -> bool:
        if operator.code == "TRANSPOSE" and len(operator.inputs) == 2 and operator.inputs[1] is not None:
            order = self._network.tensors[operator.inputs[1]].stored
            return order is not None and order.ravel().tolist() == [0, 2, 3, 1]
        return operator.code in _ANY_ORDER and len(operator.outputs) == 1 and self._turned_at_once(operator.outputs[0])

    def _input_end(self, tensor: int, image: bool) -> End:
        """Return the file's statement about an input; the number of channels of an image is fixed."""
        start = self._network.tensors[tensor]
        # converters write 1 for an open length; only for the batch do they mean 1
        sizes = [Size(0 if axis in start.opened and n == 1 and axis else n) for axis, n in enumerate(start.shape)]
        if image:
            sizes = [sizes[0], Size(start.shape[3], fixed=3 not in start.opened), *sizes[1:3]]
        readers = [operator for operator in self._network.operators if tensor in operator.inputs]
        kinds = [self._network.tensors[operator.outputs[0]].kind for operator in readers if operator.code == "CAST" and operator.outputs]
        cast = bool(readers) and len(kinds) == len(readers) and set(kinds) <= {"float32", "float16"}
        return End(start.name, sizes, start.kind if start.quantisation is None else "float32", cast)
