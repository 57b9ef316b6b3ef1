"""What ATen operators do to tensors whose axes are known: views that cost nothing, and operators on feature maps."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import torch

from predictors.registry import RuleTable
from predictors.shapes import Attr, Shape
from stretch.capture.aten_call import AtenCall, AtenValue
from stretch.capture.axes.attention import PRODUCTS, attention
from stretch.capture.axes.maps import Maps, spread
from stretch.capture.factors import Axes, Factor
from stretch.operators.convolution import pointwise as pointwise_attrs

Result = AtenValue | tuple[AtenValue, ...] | None
Rule = Callable[[Maps, AtenCall], Result]

#: By name of the ATen operator without its overload; None where the call is not understood down to single channels.
RULES: RuleTable[Rule] = RuleTable()

_rule = RULES.add


@_rule("view", "reshape", "_unsafe_view", "unflatten", "flatten", "unsqueeze", "squeeze", "view_as", "_reshape_alias", "reshape_as")
def _reshape(maps: Maps, call: AtenCall) -> Result:
    x = call.tensors[0]
    if x.axes is None or call.overload == "dtype":
        return None
    axes = x.axes.reshaped(call.out)
    return None if axes is None else maps.value(x.op, axes, x)


@_rule("permute", "transpose", "t", "swapaxes", "movedim", "numpy_T", "mT", "adjoint")
def _permute(maps: Maps, call: AtenCall) -> Result:
    x = call.tensors[0]
    axes = maps.axes_of(x)
    return None if axes is None else maps.value(x.op, axes.permuted(call.order(len(x.shape))), x)


@_rule("dropout", "feature_dropout", "native_dropout", "detach", "alias", "contiguous", "clone", "to", "_to_copy", "type_as", "expand")
def _same(maps: Maps, call: AtenCall) -> Result:
    x = call.tensors[0]
    built = call.node.meta["val"]
    kept = (built[0] if isinstance(built, tuple | list) else built).dtype in (x.dtype, None)
    return x if x.axes is not None and x.shape == call.out and kept and not call.arguments.get("train") else None


@_rule("split", "chunk", "split_with_sizes", "tensor_split", "unsafe_split", "unsafe_chunk", "unbind")
def _split(maps: Maps, call: AtenCall) -> Result:
    x = call.tensors[0]
    axes, dim, at = maps.axes_of(x), int(call.arguments["dim"]) % len(x.shape), 0
    if axes is None or any(0 in shape for shape in call.shapes):
        return None
    parts = []
    for shape in call.shapes:
        size = 1 if call.operator == "unbind" else shape[dim]
        part = _cut(maps, x, axes, dim, at, size)
        if part is None:
            return None
        parts.append(_dropped(maps, part, dim) if call.operator == "unbind" else part)
        at += size
    return tuple(parts)


@_rule("slice", "narrow")
def _slice(maps: Maps, call: AtenCall) -> Result:
    x = call.tensors[0]
    axes, dim, start, step = (
        maps.axes_of(x),
        int(call.arguments["dim"]) % len(x.shape),
        int(call.arguments.get("start") or 0),
        call.arguments.get("step", 1),
    )
    if x.shape == call.out:
        return x if x.axes is not None else None
    if axes is None or 0 in call.out:
        return None
    start += x.shape[dim] if start < 0 else 0
    return _cut(maps, x, axes, dim, start, call.out[dim], int(step))


@_rule("select")
def _select(maps: Maps, call: AtenCall) -> Result:
    x = call.tensors[0]
    axes, dim = maps.axes_of(x), int(call.arguments["dim"]) % len(x.shape)
    if axes is None:
        return None
    part = _cut(maps, x, axes, dim, int(call.arguments["index"]) % x.shape[dim], 1)
    return None if part is None else _dropped(maps, part, dim)


def _dropped(maps: Maps, part: AtenValue, dim: int) -> AtenValue:
    axes = maps.axes_of(part)
    assert axes is not None
    return maps.value(part.op, axes.without(dim), part)


def _cut(maps: Maps, x: AtenValue, axes: Axes, dim: int, start: int, size: int, step: int = 1) -> AtenValue | None:
    """Some of an axis: channels are a matter of the axes, pixels are cut out."""
    if all(factor.of == "channel" for factor in axes.axes[dim]) and axes.axes[dim] and step == 1:
        cut = axes.cut(dim, start, size)
        return None if cut is None else replace(maps.value(x.op, cut, x), axes=cut)
    return _sampled(maps, x, dim, start, size, step)


def _image(maps: Maps, x: AtenValue) -> tuple[str, Axes, list[int]] | None:
    """A map whose height and width are two axes of a tensor, or whose width is the only one over pixels; the places of these axes."""
    gathered = maps.gathered(x)
    if gathered is None:
        return None
    op, axes = gathered
    places = [i for i, axis in enumerate(axes.axes) if any(factor.of == "pixel" for factor in axis)]
    if not 1 <= len(places) <= 2 or any(factor.of != "pixel" for i in places for factor in axes.axes[i]):
        return None
    sizes = [axes.shape[i] for i in places]
    arranged = maps.arranged(op, axes, (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1]))
    return None if arranged is None else (arranged, axes, places)


def _resized(maps: Maps, op: str, axes: Axes, sizes: dict[int, int], like: AtenValue) -> AtenValue:
    """A map of other height or width, seen along axes of which some have another size."""
    resized = [(Factor("pixel", sizes[i], 1),) if i in sizes else axis for i, axis in enumerate(axes.axes)]
    return maps.value(op, Axes(tuple(resized)).in_order().merged(), like)


def _sampled(maps: Maps, x: AtenValue, dim: int, start: int, size: int, step: int) -> AtenValue | None:
    image = _image(maps, x)
    if image is None or dim not in image[2]:
        return None
    op, axes, places = image
    down = len(places) == 2 and dim == places[0]
    there, stop = maps.ops[op].shape[2:], start + (size - 1) * step + 1
    attrs: dict[str, Attr] = {
        "start": (start, 0) if down else (0, start),
        "stop": (stop, there[1]) if down else (there[0], stop),
        "step": (step, 1) if down else (1, step),
    }
    return _resized(maps, maps.add(f"{op}_sampled", "subsample", (op,), attrs), axes, {dim: size}, x)


@_rule("roll")
def _roll(maps: Maps, call: AtenCall) -> Result:
    x = call.tensors[0]
    image = _image(maps, x)
    dims = [int(d) % len(x.shape) for d in call.arguments["dims"] or ()]
    if image is None or not dims or any(d not in image[2] for d in dims):
        return None
    op, axes, places = image
    shift = [0, 0]
    for d, by in zip(dims, call.arguments["shifts"], strict=True):
        at = places.index(d) if len(places) == 2 else 1
        shift[at] = (shift[at] + int(by)) % maps.ops[op].shape[2 + at]
    rolled = maps.add(f"{op}_rolled", "roll", (op,), {"shift": tuple(shift)}) if any(shift) else op
    return maps.value(rolled, axes.in_order().merged(), x)


@_rule("pad", "constant_pad_nd")
def _pad(maps: Maps, call: AtenCall) -> Result:
    x, pad = call.tensors[0], [int(n) for n in call.arguments["pad"]]
    if x.axes is None or call.arguments.get("mode", "constant") != "constant" or call.arguments.get("value") not in (None, 0, 0.0):
        return None
    sides = {len(x.shape) - 1 - i: (pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2) if pad[2 * i] or pad[2 * i + 1]}
    if not sides:
        return x
    image = _image(maps, x)
    if image is None or any(d not in image[2] for d in sides) or min(pad) < 0:
        return None
    op, axes, places = image
    (top, bottom), (left, right) = [sides.get(d, (0, 0)) for d in ([None] if len(places) == 1 else []) + places]  # type: ignore[list-item]
    padded = maps.add(f"{op}_padded", "pad", (op,), {"padding": (top, left, bottom, right)})
    return _resized(maps, padded, axes, {d: x.shape[d] + sum(sides[d]) for d in sides}, x)


@_rule("cat", "concat", "concatenate")
def _concat(maps: Maps, call: AtenCall) -> Result:
    """Channels side by side."""
    parts, dim = list(call.arguments.get("tensors") or ()), int(call.arguments["dim"]) % len(call.out)
    if not parts or any(not isinstance(part, AtenValue) or not part.op for part in parts) or all(part.axes is None for part in parts):
        return None
    first = maps.gathered(parts[0])
    if first is None:
        return None
    op, axes = first
    ops = []
    for part in parts:
        gathered = maps.gathered(part)
        if (
            gathered is None
            or prod(f.size for f in gathered[1].axes[dim]) != maps.ops[gathered[0]].shape[1]
            or any(f.of != "channel" for f in gathered[1].axes[dim])
        ):
            return None
        like = Axes((*axes.axes[:dim], gathered[1].axes[dim], *axes.axes[dim + 1 :]))
        same = maps.aligned(part, op, like) if maps.ops[gathered[0]].shape[1] == maps.ops[op].shape[1] else None
        if same is None:
            if gathered[1].axes[:dim] + gathered[1].axes[dim + 1 :] != axes.axes[:dim] + axes.axes[dim + 1 :]:
                return None
            if maps.ops[gathered[0]].shape[2:] != maps.ops[op].shape[2:]:
                return None
            same = gathered[0]
        ops.append(same)
    joined = maps.add(f"{op}_joined", "concat", ops, {}) if len(ops) > 1 else ops[0]
    seen = Axes((*axes.axes[:dim], (Factor("channel", maps.ops[joined].shape[1], 1),), *axes.axes[dim + 1 :]))
    return maps.value(joined, seen, parts[0])


@_rule("linear")
def _linear(maps: Maps, call: AtenCall) -> Result:
    x, weight, bias = call.tensor("input"), call.constant("weight"), call.arguments["bias"]
    if x is None or weight is None or (bias is not None and bias.op):
        return None
    return _projected(maps, call, x, weight.tensor, None if bias is None else bias.tensor)


@_rule("addmm")
def _addmm(maps: Maps, call: AtenCall) -> Result:
    x, weight, bias = call.tensor("mat1"), call.constant("mat2"), call.constant("self")
    if x is None or weight is None or weight.tensor is None or bias is None or len(bias.shape) != 1:
        return None
    if any(call.arguments.get(factor, 1) != 1 for factor in ("alpha", "beta")):
        return None
    return _projected(maps, call, x, weight.tensor.t(), bias.tensor)


def projected_by_matrix(maps: Maps, call: AtenCall) -> Result:
    """A product with a constant matrix."""
    x = call.tensor("self")
    weight = call.constant("mat2") or call.constant("other")
    if x is None or weight is None or weight.tensor is None or len(weight.shape) != 2:
        return None
    return _projected(maps, call, x, weight.tensor.t(), None)


def _projected(maps: Maps, call: AtenCall, x: AtenValue, weight: torch.Tensor | None, bias: torch.Tensor | None) -> Result:
    """A linear layer over the channels of every pixel is a 1×1 convolution."""
    if weight is None or weight.dtype != torch.float32 or (x.axes is None and len(x.shape) < 3):
        return None
    channels_last = maps.channels_last(x)
    if channels_last is None:
        return None
    op, axes = channels_last
    projected = {"weight": weight[:, :, None, None]} | ({} if bias is None else {"bias": bias})
    conv = maps.add(maps.name_of(call), "conv", (op,), pointwise_attrs(len(weight), bias is not None), projected)
    return maps.value(conv, Axes((*axes.axes[:-1], (Factor("channel", len(weight), 1),))).merged(), x)


@_rule("layer_norm")
def _layer_norm(maps: Maps, call: AtenCall) -> Result:
    x, weight, bias = call.tensors[0], call.arguments.get("weight"), call.arguments.get("bias")
    if tuple(call.arguments["normalized_shape"]) != (x.shape[-1],) or (weight is None and bias is not None):
        return None
    vector = x.axes is None and len(x.shape) == 2
    channels_last = (maps.reading(x), None) if vector else maps.channels_last(x)
    if channels_last is None:
        return None
    op, axes = channels_last
    layer_norm = {}
    if weight is not None:
        layer_norm = {"weight": weight.tensor, "bias": torch.zeros_like(weight.tensor) if bias is None else bias.tensor}
    attrs: dict[str, Attr] = {"eps": float(call.arguments["eps"]), "affine": weight is not None}
    norm = maps.add(maps.name_of(call), "layer_norm", (op,), attrs, layer_norm)
    return AtenValue(norm, x.shape) if axes is None else maps.value(norm, axes, x)


@_rule("batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(maps: Maps, call: AtenCall) -> Result:
    """Of tokens that stand in one row, whose second axis are the channels."""
    x = call.tensors[0]
    if x.axes is None or len(x.shape) < 2:
        return None
    gathered = maps.gathered(x)
    if gathered is None:
        return None
    op, axes = gathered
    if axes.axes[1] != (Factor("channel", maps.ops[op].shape[1], 1),):
        return None
    on_maps = _on_maps(maps, call, {id(x): op}, op)
    return None if on_maps is None else maps.value(on_maps.op, axes, x)


@_rule("mean")
def _mean(maps: Maps, call: AtenCall) -> Result:
    """A mean over all pixels is global pooling; one over the channels of each pixel leaves one of them."""
    return _reduced(maps, call, "global_avg_pool", "channel_mean")


@_rule("linalg_vector_norm", "norm")
def _norm(maps: Maps, call: AtenCall) -> Result:
    """The length of each channel."""
    return _reduced(maps, call, "global_l2_norm", "") if call.arguments.get("ord", call.arguments.get("p")) == 2 else None


def _reduced(maps: Maps, call: AtenCall, over_pixels: str, over_channels: str) -> Result:
    x, dims = call.tensors[0], call.arguments.get("dim")
    over = sorted(int(d) % len(x.shape) for d in ([dims] if isinstance(dims, int) else dims or ()))
    gathered = maps.gathered(x)
    if gathered is None or not over or call.arguments.get("dtype") is not None:
        return None
    op, axes = gathered
    reduced = [factor for d in over for factor in axes.axes[d]]
    left = [() if i in over else axis for i, axis in enumerate(axes.axes)]
    sides = {factor.of for factor in reduced}
    keep = bool(call.arguments["keepdim"])
    if sides == {"pixel"} and len(reduced) == len(axes.factors("pixel")):
        remaining = left if keep else [axis for i, axis in enumerate(axes.axes) if i not in over]
        vector = tuple(prod(f.size for f in axis) for axis in remaining) == maps.ops[op].shape[:2]
        gathered_op = maps.add(maps.name_of(call), over_pixels, (op,), {"keepdims": not vector})
        return AtenValue(gathered_op, maps.ops[gathered_op].shape) if vector else maps.value(gathered_op, Axes(tuple(remaining)), x)
    if sides == {"channel"} and len(reduced) == len(axes.factors("channel")) and keep and over_channels:
        gathered_op = maps.add(maps.name_of(call), over_channels, (op,), {})
        return maps.value(gathered_op, Axes(tuple(left)), x)
    return None


def elementwise(maps: Maps, call: AtenCall) -> Result:
    """What is computed element by element is computed so wherever the elements lie."""
    leader = next((value for value in call.tensors if value.axes is not None and value.shape == call.out), None)
    result = None if leader is None else maps.gathered(leader)
    if leader is None or result is None:
        return None
    op, axes = result
    places: dict[int, str | AtenValue] = {}
    for value in call.values:
        place = _met(maps, value, op, axes, call.out)
        if place is None:
            return None
        places[id(value)] = place
    on_maps = _on_maps(maps, call, places, op)
    return None if on_maps is None else maps.value(on_maps.op, axes, leader)


def _met(maps: Maps, value: AtenValue, op: str, axes: Axes, out: Shape) -> str | AtenValue | None:
    """A tensor as it meets a map: aligned with it, or as far as it is broadcast."""
    if not value.op:
        if value.tensor is None:
            return None
        seen = spread(value.tensor, axes, ("channel", "pixel"))
        if seen is None:
            return None
        channels, pixels = seen.shape
        height, width = maps.ops[op].shape[2:] if pixels > 1 else (1, 1)
        tensor = seen.reshape(1, channels, height, width)
        return replace(value, shape=tuple(tensor.shape), tensor=tensor)
    if value.shape == out:
        return maps.aligned(value, op, axes)
    gathered = maps.gathered(value)
    if gathered is None:
        return None
    current, seen_axes = gathered
    padded = (*[()] * (len(axes.axes) - len(seen_axes.axes)), *seen_axes.axes)
    fits = all(not mine or mine == theirs for mine, theirs in zip(padded, axes.axes, strict=True))
    there, here = maps.ops[current].shape, maps.ops[op].shape
    whole = there[1] in (1, here[1]) and there[2:] in ((1, 1), here[2:])
    return current if fits and whole else None


def _on_maps(maps: Maps, call: AtenCall, places: dict[int, Any], op: str) -> AtenValue | None:
    """The result of a call on maps in place of what they are seen as."""

    def placed(argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [placed(item) for item in argument]
        place = places.get(id(argument), argument) if isinstance(argument, AtenValue) else argument
        return (
            AtenValue(place, maps.ops[place].shape, dtype=argument.dtype)
            if isinstance(place, str) and isinstance(argument, AtenValue)
            else place
        )

    on_maps = {name: placed(argument) for name, argument in call.arguments.items()}
    compute = maps.compute(AtenCall(call.node, on_maps, [maps.ops[op].shape]))
    compute = compute[0] if isinstance(compute, tuple) else compute
    return compute if compute.op and maps.ops[compute.op].shape == maps.ops[op].shape else None


# Which rule takes a call of an ATen operator on tensors whose axes are known.

#: Computed element by element, though torch does not say so.
_POINTWISE = frozenset({"hardswish", "hardsigmoid", "hardtanh", "relu6", "selu", "celu", "softplus", "log_sigmoid", "elu", "mish"})


def applied(maps: Maps, call: AtenCall) -> Result:
    """What a call makes of tensors of known axes; None if it is none of these, or gives the elements in another way."""
    if call.operator == "scaled_dot_product_attention":
        return attention(maps, call)
    if call.operator in PRODUCTS | {"mm"}:
        return projected_by_matrix(maps, call)
    rule = RULES.get(call.operator)
    if rule is not None:
        return rule(maps, call)
    if call.operator in _POINTWISE:
        return elementwise(maps, call)
    tags = getattr(call.node.target, "tags", ())
    return elementwise(maps, call) if torch.Tag.pointwise in tags else None
