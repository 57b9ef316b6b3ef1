"""Pooling over windows and over the whole image, and reductions over pixels and over channels, in torch, ONNX and TFLite."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.shapes import Attr, Attrs, Shape, ints, window_shape
from scheduler.formats.onnx.file import WINDOW_ATTRIBUTES
from stretch.operators.capturing import FunctionRule, Step, TracedCall, calls, pair, pooling_window, require_supported
from stretch.operators.elementwise import LOWEST
from stretch.operators.formats.onnx import OnnxWriter
from stretch.operators.formats.tflite import (
    Array,
    PaddedWindow,
    SameWindows,
    SubgraphBuilder,
    SubgraphSource,
    Value,
    pad,
    to_nhwc,
    window,
    within_same,
)
from stretch.operators.lowerings import ComputedModule, OnnxRule, TfliteRule, computed, onnx_node, register


def padded_pool(kind: str, attrs: Attrs) -> ComputedModule:
    """Return a pooling whose padding differs between sides, as in a band of rows: it pads before torch's own pooling."""
    return ComputedModule(kind, attrs, _padded_max if kind == "max_pool" else _padded_mean)


def _padded_max(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    return _pool_padded(a, F.max_pool2d, x, -torch.inf, x.shape, dilation=ints(a, "dilation"))


def _padded_mean(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    """Return sums divided by counts, as torch computes means."""
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    count = _pool_padded(a, F.avg_pool2d, ones, float(bool(a["count_include_pad"])), x.shape, divisor_override=1)
    return _pool_padded(a, F.avg_pool2d, x, 0.0, x.shape, divisor_override=1) / count


def _pool_padded(a: Attrs, pool: Any, x: torch.Tensor, value: float, shape: Sequence[int], **options: Any) -> torch.Tensor:
    top, left, bottom, right = ints(a, "padding")
    padded = F.pad(x, (left, right, top, bottom), value=value)
    pooled: torch.Tensor = pool(padded, ints(a, "kernel"), ints(a, "stride"), 0, ceil_mode=bool(a["ceil_mode"]), **options)
    # padding by an earlier operator counts as image, so torch would keep windows that begin after the image
    rows, columns = window_shape(tuple(shape), a, shape[1])[2:]
    return pooled[..., :rows, :columns]


_MAXIMA = ("max_pool2d", "max_pool2d_with_indices")
_SETTINGS = ("kernel_size", "stride", "padding", "ceil_mode")


@calls(F.max_pool2d, torch.max_pool2d, classes=("MaxPool2d",), fields=(*_SETTINGS, "dilation", "return_indices"), aten=_MAXIMA)
def _max(
    call: TracedCall,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Step:
    require_supported(not return_indices, "pooling that returns indices is not supported")
    window = pooling_window(call.shapes[x], kernel_size, stride, padding, ceil_mode, dilation)
    return Step("max_pool", window | {"dilation": pair(dilation)}, (x,))


@calls(F.avg_pool2d, classes=("AvgPool2d",), fields=(*_SETTINGS, "count_include_pad", "divisor_override"), aten=("avg_pool2d",))
def _mean(
    call: TracedCall,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Step:
    require_supported(divisor_override is None, "average pooling with its own divisor is not supported")
    window = pooling_window(call.shapes[x], kernel_size, stride, padding, ceil_mode)
    return Step("avg_pool", window | {"count_include_pad": bool(count_include_pad)}, (x,))


def _adaptive(function: str) -> FunctionRule:
    """Return the rule that lowers adaptive pooling with equal windows to plain pooling."""

    def rule(call: TracedCall, x: Any, output_size: Any, return_indices: bool = False) -> Step:
        require_supported(not return_indices, "pooling that returns indices is not supported")
        rows, columns = call.shapes[x][2:]
        sizes = (output_size, output_size) if isinstance(output_size, int | None) else output_size
        h, w = (n if size is None else int(size) for n, size in zip((rows, columns), sizes, strict=True))
        if (h, w) == (1, 1):
            return Step(f"global_{function}_pool", {"keepdims": True}, (x,))
        require_supported(not rows % h and not columns % w, f"adaptive pooling of {rows}×{columns} to {h}×{w} has unequal windows")
        kernel = (rows // h, columns // w)
        if kernel == (1, 1):
            return Step("identity", {}, (x,))
        attrs: dict[str, Attr] = {"kernel": kernel, "stride": kernel, "padding": (0, 0, 0, 0), "ceil_mode": False}
        more: dict[str, Attr] = {"count_include_pad": True} if function == "avg" else {"dilation": (1, 1)}
        return Step(f"{function}_pool", attrs | more, (x,))

    return rule


for _name, _aten in (("avg", ("adaptive_avg_pool2d", "_adaptive_avg_pool2d")), ("max", ("adaptive_max_pool2d",))):
    _fields = ("output_size", "return_indices")
    calls(getattr(F, _aten[0]), classes=(f"Adaptive{_name.title()}Pool2d",), fields=_fields, aten=_aten)(_adaptive(_name))


@calls(torch.mean, methods=("mean",))
def _mean_over_image(call: TracedCall, x: Any, dim: Any = None, keepdim: bool = False) -> Step:
    rank = len(call.shapes[x])
    dims = sorted(d % rank for d in ((dim,) if isinstance(dim, int) else dim or ()))
    require_supported(rank == 4 and dims == [2, 3], f"a mean over dimensions {dim} is not supported, only over height and width")
    return Step("global_avg_pool", {"keepdims": bool(keepdim)}, (x,))


def _is_one_sided(a: Attrs) -> bool:
    top, left, bottom, right = ints(a, "padding")
    return (top, left) != (bottom, right)


def _make_max(ins: list[Shape], a: Attrs) -> nn.Module:
    if _is_one_sided(a):
        return padded_pool("max_pool", a)
    return nn.MaxPool2d(ints(a, "kernel"), ints(a, "stride"), ints(a, "padding")[:2], ints(a, "dilation"), ceil_mode=bool(a["ceil_mode"]))


def _make_mean(ins: list[Shape], a: Attrs) -> nn.Module:
    if _is_one_sided(a):
        return padded_pool("avg_pool", a)
    return nn.AvgPool2d(
        pair(a["kernel"]),
        pair(a["stride"]),
        pair(ints(a, "padding")[:2]),
        ceil_mode=bool(a["ceil_mode"]),
        count_include_pad=bool(a["count_include_pad"]),
    )


_WINDOW = {key: WINDOW_ATTRIBUTES[key] for key in ("kernel_shape", "strides", "pads")} | {"ceil_mode": "ceil_mode"}


def _global_onnx(kind: str) -> OnnxRule:
    def write(w: OnnxWriter, op: Op, ins: list[str]) -> None:
        if op.attrs["keepdims"]:
            w.node(kind, op, ins)
        else:
            w.node(kind, op, ins, output=f"{op.name}.pooled")
            w.node("Flatten", op, [f"{op.name}.pooled"], axis=1)

    return write


def _max_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write a max pooling; padding never wins. Without negative elements, zeros are no maximum either, and padding with zeros is faster."""
    if tuple(ints(op.attrs, "dilation")) != (1, 1):
        raise StretchError(f"operator `{op.name}` (max_pool) is dilated, which TFLite does not have", "keep this model in ONNX")
    sliding = window(op.attrs, source.graph.input_shapes(op)[0], op.shape)
    x = ins[0]
    if sliding.explicit:
        x = pad(b, op, x, sliding.before, sliding.after, 0.0 if x.nonnegative else LOWEST)
    return _pool(b, "MAX_POOL_2D", op.name, x, op, sliding)


def _mean_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write a mean pooling; TFLite divides by the number of elements inside the image.

    Padding that counts is made explicit, so that it is inside the image. Other padding is
    left to SAME, of which only the required windows are kept. A window is therefore
    computed in the same way at any position, and in a band of rows as in the whole image. If SAME
    has no such windows, each window is multiplied by the ratio of the divisors, in reals.
    In int8, the factor would magnify the rounding of the mean, and its scale would
    depend on the set of windows.
    """
    image = source.graph.input_shapes(op)[0]
    added = tuple(ints(op.attrs, "padding")) if op.attrs["count_include_pad"] else (0, 0, 0, 0)
    padded = (*image[:2], image[2] + added[0] + added[2], image[3] + added[1] + added[3])
    attrs = {**op.attrs, "padding": (0, 0, 0, 0)} if op.attrs["count_include_pad"] else op.attrs
    axes = [within_same(attrs, padded, op.shape, axis) for axis in (0, 1)]
    is_inside = not window(attrs, padded, op.shape, same=False).explicit
    if is_inside or all(axes):
        return _mean_within(b, op, ins[0], added, None if is_inside else [axis for axis in axes if axis is not None])
    sliding = window(op.attrs, image, op.shape)
    factor = _count_factor(op, image, sliding)
    counted = bool((factor == 1).all())
    b.rounded = b.rounded and counted
    x = pad(b, op, ins[0], sliding.before, sliding.after) if sliding.explicit else ins[0]
    if counted:
        return _pool(b, "AVERAGE_POOL_2D", op.name, x, op, sliding)
    pooled = _pool(b, "AVERAGE_POOL_2D", f"{op.name}.pooled", x, op, sliding)
    result = b.apply("MUL", op.name, [pooled, factor[None, :, :, None]], quant=b.scale(op))
    result.nonnegative = ins[0].nonnegative
    return result


def _mean_within(b: SubgraphBuilder, op: Op, x: Value, added: tuple[int, ...], axes: list[SameWindows] | None) -> Value:
    """Write means over the elements inside the padded image, for all windows or for a subset of TFLite's SAME windows."""
    rows, columns = axes or [SameWindows(0, 0, 0, size) for size in op.shape[2:]]
    before, after = (added[0] + rows.before, added[1] + columns.before), (added[2] + rows.after, added[3] + columns.after)
    if any((*before, *after)):
        x = pad(b, op, x, before, after)
    shape = to_nhwc(op.shape)
    full = (shape[0], rows.count, columns.count, shape[3])
    alone = full == shape
    rule = PaddedWindow(1 if axes is None else 0, (0, 0), (0, 0))
    pooled = _pool(b, "AVERAGE_POOL_2D", op.name if alone else f"{op.name}.same", x, op, rule, full)
    if alone:
        return pooled
    begin = [0, rows.first, columns.first, 0]
    return b.add_move("SLICE", op.name, pooled, shape, [b.indices(f"{op.name}.begin", begin), b.indices(f"{op.name}.size", shape)])


def _pool(b: SubgraphBuilder, code: str, name: str, x: Value, op: Op, sliding: PaddedWindow, shape: Shape | None = None) -> Value:
    kernel, stride = ints(op.attrs, "kernel"), ints(op.attrs, "stride")
    settings = {
        "filter_height": kernel[0],
        "filter_width": kernel[1],
        "stride_h": stride[0],
        "stride_w": stride[1],
        "padding": sliding.padding,
    }
    return b.add_move(code, name, x, shape or to_nhwc(op.shape), (), **settings)


def _count_factor(op: Op, image: Shape, sliding: PaddedWindow) -> Array:
    """Return TFLite's divisor over that of `op` for each window, height × width."""
    kernel, stride, padding = (ints(op.attrs, key) for key in ("kernel", "stride", "padding"))
    counts = bool(op.attrs["count_include_pad"])
    ratio = []
    for axis in (0, 1):
        size, starts = image[axis + 2], np.arange(op.shape[axis + 2]) * stride[axis] - padding[axis]
        covered = np.minimum(starts + kernel[axis], size) - np.maximum(starts, 0)
        # rows that `ceil_mode` adds beyond the padding never count
        counted = np.minimum(starts + kernel[axis], size + padding[axis + 2]) - starts if counts else covered
        ratio.append((covered if sliding.padding == 0 else kernel[axis]) / counted)
    return np.outer(ratio[0], ratio[1])


def _global_tflite(code: str) -> TfliteRule:
    """Return the rule that writes a reduction over all pixels."""

    def lower(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        keep = bool(op.attrs["keepdims"])
        x = ins[0]
        shape = (x.shape[0], 1, 1, x.shape[3]) if keep else (x.shape[0], x.shape[3])
        axes = b.indices(f"{op.name}.axes", [1, 2])
        if code == "REDUCE_MAX":
            return b.add_move(code, op.name, x, shape, [axes], keep_dims=keep)
        result = b.apply(code, op.name, [x], shape, b.scale(op), [axes], keep_dims=keep)
        result.nonnegative = x.nonnegative
        return result

    return lower


register("max_pool", _make_max, onnx_node("MaxPool", {**_WINDOW, "dilations": "dilation"}), _max_tflite)
register("avg_pool", _make_mean, onnx_node("AveragePool", _WINDOW | {"count_include_pad": "count_include_pad"}), _mean_tflite)


def _over_image(pool: Any) -> Callable[[Attrs, torch.Tensor], torch.Tensor]:
    return lambda a, x: pool(x, 1) if a["keepdims"] else pool(x, 1).flatten(1)


computed("global_avg_pool", _over_image(F.adaptive_avg_pool2d), _global_onnx("GlobalAveragePool"), _global_tflite("MEAN"))
computed("global_max_pool", _over_image(F.adaptive_max_pool2d), _global_onnx("GlobalMaxPool"), _global_tflite("REDUCE_MAX"))


computed(
    "global_l2_norm",
    lambda a, x: torch.linalg.vector_norm(x, dim=(2, 3), keepdim=bool(a["keepdims"])),
    onnx_node("ReduceL2", {"keepdims": "keepdims"}, indices=lambda a: {"axes": [2, 3]}),
)
computed("channel_mean", lambda a, x: x.mean(1, keepdim=True), onnx_node("ReduceMean", indices=lambda a: {"axes": [1]}, keepdims=1))
