"""Operators that only move, select or repeat elements, in torch, ONNX and TFLite.

`stretch.network.capture.trace`, which knows tensors in another order of dimensions, also handles slices, shuffles and new axes.
"""

from collections.abc import Callable
from math import inf, prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from predictors.graph import Op
from predictors.shapes import Attrs, Shape, integer, ints
from stretch.operators.capturing import Step, TracedCall, UnsupportedNode, calls, modules, pair, require_supported
from stretch.operators.formats.onnx import OnnxWriter
from stretch.operators.formats.tflite import SubgraphBuilder, SubgraphSource, Value, pad, to_nhwc
from stretch.operators.lowerings import OnnxRule, computed, onnx_node, register


def slice_onnx(axis: int) -> OnnxRule:
    """Return the rule that writes a slice from `start` to `stop` along an axis of an NCHW tensor."""
    return onnx_node("Slice", indices=lambda a: {"start": [integer(a, "start")], "stop": [integer(a, "stop")], "axis": [axis]})


def slice_tflite(axis: int) -> Callable[[SubgraphBuilder, SubgraphSource, Op, list[Value]], Value]:
    """Return the rule that writes a slice from `start` along an axis of an NHWC tensor; the shape of the result gives its end."""

    def write(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        shape = to_nhwc(op.shape)
        begin = [0] * len(shape)
        begin[axis] = integer(op.attrs, "start")
        return b.add_move("SLICE", op.name, ins[0], shape, [b.indices(f"{op.name}.begin", begin), b.indices(f"{op.name}.size", shape)])

    return write


def concat_tflite(axis: int) -> Callable[[SubgraphBuilder, SubgraphSource, Op, list[Value]], Value]:
    """Return the rule that writes a concatenation along an axis in NHWC; int8 inputs are requantised to the scale of the result."""

    def write(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        shape, quant = to_nhwc(op.shape), b.scale(op)
        indices = [b.integer(value, quant) if b.rounded else b.real(value) for value in ins]
        result = b.write("CONCATENATION", op.name, indices, shape, quant, axis=axis % len(shape))
        result.nonnegative = all(value.nonnegative for value in ins)
        return result

    return write


#: Attribute of padding by −∞, which no graph keeps: `stretch.network.capture.trace` merges it into a pooling.
LOWEST = "lowest"


calls(classes=("ChannelShuffle",), fields=("groups",), aten=("channel_shuffle",))(
    lambda call, x, groups: Step("channel_shuffle", {"groups": int(groups)}, (x,))
)


@calls(torch.cat, torch.concat)
def _concat(call: TracedCall, tensors: Any, dim: int = 0, axis: int | None = None) -> Step:
    dim = axis if axis is not None else dim
    require_supported(dim % len(call.out) == 1, f"concatenation along dimension {dim} is not supported, only along channels")
    return Step("concat" if len(tensors) > 1 else "identity", {}, tuple(tensors))


@calls(torch.flatten, methods=("flatten",), classes=("Flatten",), fields=("start_dim", "end_dim"))
def _flatten(call: TracedCall, x: Any, start_dim: int = 0, end_dim: int = -1) -> Step:
    rank = len(call.shapes[x])
    require_supported(
        start_dim % rank == 1 and end_dim % rank == rank - 1, f"flattening dimensions {start_dim} to {end_dim} is not supported"
    )
    return Step("flatten", {}, (x,))


@calls(torch.reshape, methods=("view", "reshape"))
def _reshape(call: TracedCall, x: Any, *size: Any) -> Step:
    before = call.shapes[x]
    if before == call.out:
        return Step("identity", {}, (x,))
    if len(call.out) == 2 and call.out == (before[0], prod(before[1:])):
        return Step("flatten", {}, (x,))
    raise UnsupportedNode(f"reshaping {before} to {call.out} is not supported")


@calls(torch.squeeze, methods=("squeeze",))
def _squeeze(call: TracedCall, x: Any, *dims: Any, dim: Any = None) -> Step:
    before = call.shapes[x]
    if len(call.out) == 2 and call.out == (before[0], prod(before[1:])):
        return Step("flatten", {}, (x,))
    raise UnsupportedNode(f"squeezing {before} to {call.out} is not supported")


@modules("Unflatten")
def _unflatten_module(m: nn.Unflatten, shape: Shape) -> Step:
    sizes = tuple(m.unflattened_size)
    if len(shape) != 2 or m.dim not in (1, -1) or sizes not in ((shape[1], 1, 1), (-1, 1, 1)):
        raise UnsupportedNode(f"reshaping dimension {m.dim} to {sizes} is not supported")
    return Step("unflatten")


@calls(F.pad, classes=("ZeroPad2d",), fields=("padding",))
def _pad(call: TracedCall, x: Any, pad: Any = (), mode: str = "constant", value: float | None = None, padding: Any = ()) -> Step:
    pad = pad or padding
    if mode != "constant" or value not in (None, 0, 0.0, -inf) or len(pad) not in (2, 4):
        raise UnsupportedNode(f"padding {tuple(pad)} with mode `{mode}` and value {value} is not supported")
    left, right, top, bottom = (*pad, 0, 0)[:4]
    return Step("pad", {"padding": (top, left, bottom, right), **({LOWEST: True} if value == -inf else {})}, (x,))


@calls(F.interpolate, classes=("Upsample", "UpsamplingNearest2d"), fields=("size", "scale_factor", "mode"))
def _interpolate(call: TracedCall, x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", **_: Any) -> Step:
    """Lower nearest-neighbour enlargement by whole factors."""
    shape = call.shapes[x]
    require_supported(
        mode == "nearest" and len(shape) == 4, f"resizing with mode `{mode}` is not supported, only `nearest` by whole factors"
    )
    if size is not None:
        factors = [size_after / size_before for size_after, size_before in zip(pair(size), shape[2:], strict=True)]
    else:
        factors = list(scale_factor) if isinstance(scale_factor, tuple | list) else [scale_factor, scale_factor]
    if any(factor != int(factor) or factor < 1 for factor in factors):
        raise UnsupportedNode(f"resizing by {factors[0]:g}×{factors[1]:g} is not supported, only by whole factors")
    return Step("upsample", {"scale": (int(factors[0]), int(factors[1]))}, (x,))


def _pads(a: Attrs) -> dict[str, list[int]]:
    top, left, bottom, right = ints(a, "padding")
    return {"pads": [0, 0, top, left, 0, 0, bottom, right]}


def _make_pad(ins: list[Shape], a: Attrs) -> nn.Module:
    top, left, bottom, right = ints(a, "padding")
    return nn.ZeroPad2d((left, right, top, bottom))


def _shuffle_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    groups = integer(op.attrs, "groups")
    n, c, height, width = op.shape
    split = w.indices(op, "split", [n, groups, c // groups, height, width])
    whole = w.indices(op, "whole", op.shape)
    w.node("Reshape", op, [ins[0], split], output=f"{op.name}.groups")
    w.node("Transpose", op, [f"{op.name}.groups"], output=f"{op.name}.swapped", perm=[0, 2, 1, 3, 4])
    w.node("Reshape", op, [f"{op.name}.swapped", whole])


def _upsample_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    scales = w.constant(f"{op.name}.scales", np.array([1, 1, *ints(op.attrs, "scale")], np.float32))
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    w.node("Resize", op, [ins[0], "", scales], **attributes)


def _flatten_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write one row per image in NCHW order; NHWC order if only matrices read it, whose weights then take the order."""
    x = ins[0]
    if len(x.shape) == 4 and x.shape[1] * x.shape[2] > 1 and x.shape[3] > 1:
        n, h, w, c = x.shape
        readers = [source.graph.by_name[name] for name in source.graph.consumers[op.name]]
        if op.name not in source.graph.outputs and readers and all(reader.kind == "linear" for reader in readers):
            row = b.add_reshape(op.name, x, (n, h * w * c))
            row.flattened = (h, w, c)
            return row
        x = b.add_move("TRANSPOSE", f"{op.name}.nchw", x, (n, c, h, w), [b.indices(f"{op.name}.order", [0, 3, 1, 2])])
    return b.add_reshape(op.name, x, (x.shape[0], prod(x.shape[1:])))


def _pad_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write zeros around an image."""
    top, left, bottom, right = ints(op.attrs, "padding")
    return pad(b, op, ins[0], (top, left), (bottom, right))


def _shuffle_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write an exchange of the groups and the channels within them."""
    x, groups = ins[0], integer(op.attrs, "groups")
    n, h, w, c = x.shape
    split = b.add_reshape(f"{op.name}.groups", x, (n * h * w, groups, c // groups))
    order = b.indices(f"{op.name}.order", [0, 2, 1])
    turned = b.add_move("TRANSPOSE", f"{op.name}.turned", split, (n * h * w, c // groups, groups), [order])
    return b.add_reshape(op.name, turned, x.shape)


def _upsample_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write nearest-neighbour enlargement: pixel i reads pixel ⌊i / scale⌋."""
    shape = to_nhwc(op.shape)
    size = b.indices(f"{op.name}.size", shape[1:3])
    return b.add_move("RESIZE_NEAREST_NEIGHBOR", op.name, ins[0], shape, [size])


computed("concat", lambda a, *tensors: torch.cat(tensors, dim=1), onnx_node("Concat", axis=1), concat_tflite(-1))
computed("slice", lambda a, x: x[:, integer(a, "start") : integer(a, "stop")], slice_onnx(1), slice_tflite(-1))
register("pad", _make_pad, onnx_node("Pad", indices=_pads), _pad_tflite)
register("channel_shuffle", lambda ins, a: nn.ChannelShuffle(integer(a, "groups")), _shuffle_onnx, _shuffle_tflite)
register("upsample", lambda ins, a: nn.Upsample(scale_factor=tuple(map(float, ints(a, "scale")))), _upsample_onnx, _upsample_tflite)
register("flatten", lambda ins, a: nn.Flatten(), onnx_node("Flatten", axis=1), _flatten_tflite)
computed(
    "unflatten",
    lambda a, x: x[:, :, None, None],
    onnx_node("Unsqueeze", indices=lambda a: {"axes": [2, 3]}),
    lambda b, source, op, ins: b.add_reshape(op.name, ins[0], to_nhwc(op.shape)),
)


computed("slice_rows", lambda a, x: x[:, :, integer(a, "start") : integer(a, "stop")], slice_onnx(2), slice_tflite(1))
computed("concat_rows", lambda a, *bands: torch.cat(bands, dim=2), onnx_node("Concat", axis=2), concat_tflite(1))


# Operators that rearrange the pixels of every channel, in torch and ONNX.


def _rearrange(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    """Split height and width into several axes, permute them, and merge them into a new height and width."""
    n, c = x.shape[:2]
    axes = x.reshape(n, c, *ints(a, "split")).permute(0, 1, *[axis + 2 for axis in ints(a, "order")])
    return axes.reshape(n, c, *ints(a, "pixels"))


def _channels_first(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    """Reshape tokens N·G×T×C to the pixels of a map N×C×G×T."""
    return torch.unflatten(x, 0, (-1, integer(a, "rows"))).permute(0, 3, 1, 2)


def _rearrange_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    split, order = ints(op.attrs, "split"), ints(op.attrs, "order")
    sizes = w.indices(op, "sizes", op.shape)
    if order == tuple(range(len(order))):
        w.node("Reshape", op, [ins[0], sizes])
        return
    axes = w.indices(op, "split", [*op.shape[:2], *split])
    w.node("Reshape", op, [ins[0], axes], output=f"{op.name}.split_up")
    w.node("Transpose", op, [f"{op.name}.split_up"], output=f"{op.name}.ordered", perm=[0, 1, *[axis + 2 for axis in order]])
    w.node("Reshape", op, [f"{op.name}.ordered", sizes])


def _roll_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    """Write a roll: for each shifted axis, the end of the input moves to the start."""
    read = ins[0]
    moved = [(axis, shift) for axis, shift in zip((2, 3), ints(op.attrs, "shift"), strict=True) if shift]
    if not moved:
        w.node("Identity", op, ins)
    for axis, shift in moved:
        size = op.shape[axis]
        parts = []
        for key, start, stop in ((f"end{axis}", size - shift, size), (f"begin{axis}", 0, size - shift)):
            bounds = [w.indices(op, f"{key}.{name}", [value]) for name, value in (("start", start), ("stop", stop), ("axis", axis))]
            parts.append(f"{op.name}.{key}")
            w.node("Slice", op, [read, *bounds], output=parts[-1])
        last = axis == moved[-1][0]
        w.node("Concat", op, parts, output=None if last else f"{op.name}.rolled{axis}", axis=axis)
        read = f"{op.name}.rolled{axis}"


def _channels_first_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    n, c, rows, tokens = op.shape
    w.node("Reshape", op, [ins[0], w.indices(op, "rows", [n, rows, tokens, c])], output=f"{op.name}.rows_of_tokens")
    w.node("Transpose", op, [f"{op.name}.rows_of_tokens"], perm=[0, 3, 1, 2])


computed("channels_first", _channels_first, _channels_first_onnx)
computed("rearrange", _rearrange, _rearrange_onnx)
computed("roll", lambda a, x: torch.roll(x, ints(a, "shift"), (2, 3)), _roll_onnx)
computed(
    "subsample",
    lambda a, x: x[:, :, *map(slice, ints(a, "start"), ints(a, "stop"), ints(a, "step"))],
    onnx_node("Slice", indices=lambda a: {key: [2, 3] if key == "axes" else ints(a, key) for key in ("start", "stop", "axes", "step")}),
)
