"""What ATen operators become: operators of known kinds where they fit, views, or opaque operators."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx

from predictors.registry import RuleTable
from predictors.shapes import Attr, Shape
from stretch.capture.aten_call import (
    REDUCTIONS,
    AtenCall,
    AtenRule,
    AtenStep,
    AtenValue,
    Made,
    attributes,
    opaque,
    over_elements,
    product,
    reduced,
)
from stretch.operators.activation import clamp
from stretch.operators.capturing import ATEN, FunctionRule, Refusal, module_chain
from stretch.operators.convolution import convolution

#: By name of the ATen operator without its overload.
RULES: RuleTable[AtenRule] = RuleTable()

_add = RULES.add


def _copy(x: AtenValue, shape: Shape, variant: str, weights: int = 0) -> list[AtenStep]:
    return [AtenStep("opaque", over_elements(shape, "copy", variant, weights), (x,))]


@_add(
    *("detach", "alias", "contiguous", "clone", "lift_fresh_copy", "to", "_to_copy", "type_as", "dropout", "feature_dropout"),
    *("alpha_dropout", "native_dropout", "dropout2d", "identity", "view_of"),
)
def _same(call: AtenCall) -> Made:
    """The tensor itself: precision is the processor's matter, and nothing is dropped at inference."""
    x = call.tensors[0]
    return x if x.shape == call.out else None


@_add("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "_reshape_alias", "reshape_as")
def _view(call: AtenCall) -> Made:
    x = call.tensors[0]
    if len(x.shape) == 2 and call.out == (*x.shape, 1, 1) and x.shape == (x.base or x.shape):
        return [AtenStep("unflatten", {}, (x,))]
    if len(x.shape) == 4 and call.out == (x.shape[0], prod(x.shape[1:])) and x.shape == (x.base or x.shape):
        return [AtenStep("flatten", {}, (x,))]
    return x.seen(call.out)


@_add("expand", "expand_as", "broadcast_to")
def _expand(call: AtenCall) -> Made:
    x = call.tensors[0]
    return x if x.shape == call.out else [AtenStep("view", {"shape": call.out}, (x,))]


@_add("permute", "transpose", "t", "swapaxes", "movedim", "numpy_T", "adjoint")
def _permute(call: AtenCall) -> Made:
    """Free where only the order of an image's channels and pixels changes, which each runtime keeps as it likes."""
    x = call.tensors[0]
    order = call.order(len(x.shape))
    moved = [d for d in order if x.shape[d] != 1]
    if moved == sorted(moved) or order in ((0, 2, 3, 1), (0, 3, 1, 2)) or (order == (0, 2, 1) and _is_image(call, x)):
        return x.seen(call.out)
    return _copy(x, call.out, "permute")


def _is_image(call: AtenCall, x: AtenValue) -> bool:
    """Whether a tensor N×C×P or N×P×C is seen as an image before or after its last two axes change places."""
    n, channels, pixels = x.shape
    if len(x.base) == 4 and x.base[:2] == (n, channels) and prod(x.base[2:]) == pixels:
        return True
    after = [_shape(reader) for reader in call.node.users]
    # tokens N×P×C that become an image N×C×H×W
    return bool(after) and all(len(shape) == 4 and shape[:2] == (n, pixels) and prod(shape[2:]) == channels for shape in after)


def _shape(node: fx.Node) -> Shape:
    return tuple(getattr(node.meta.get("val"), "shape", ()))


def _cut(x: AtenValue, dim: int, start: int, out: Shape) -> AtenStep:
    """What copies a piece: channels of an image or a vector by their own kind."""
    if dim == 1 and len(x.shape) in (2, 4) and len(out) == len(x.shape):
        return AtenStep("slice", {"start": start, "stop": start + out[1]}, (x,))
    return AtenStep("opaque", over_elements(out, "copy", "slice"), (x,))


@_add("slice", "narrow")
def _slice(call: AtenCall) -> Made:
    x, dim = call.tensors[0], int(call.arguments["dim"]) % len(call.out)
    if x.shape == call.out:
        return x
    start = int(call.arguments.get("start") or 0)
    if call.arguments.get("step", 1) != 1:
        return _copy(x, call.out, "slice")
    return [_cut(x, dim, start + x.shape[dim] if start < 0 else start, call.out)]


@_add("select")
def _select(call: AtenCall) -> Made:
    x = call.tensors[0]
    return x.seen(call.out) if prod(x.shape) == prod(call.out) else _copy(x, call.out, "slice")


@_add("split", "chunk", "split_with_sizes", "unbind", "tensor_split", "unsafe_split", "unsafe_chunk")
def _split(call: AtenCall) -> Made:
    return pieces(call, _cut)


def pieces(call: AtenCall, cut: Callable[[AtenValue, int, int, Shape], AtenStep]) -> Made:
    """Pieces of a tensor along one axis, each cut out where it is used, by what `cut` makes of tensor, axis, start and shape."""
    x, dim, at = call.tensors[0], int(call.arguments["dim"]) % len(call.tensors[0].shape), 0
    if len(call.shapes) == 1:
        return (x.seen(call.out),)
    result = []
    for shape in call.shapes:
        result.append(AtenValue(x.op, shape, piece=cut(x, dim, at, shape)))
        at += 1 if call.operator == "unbind" else shape[dim]
    return tuple(result)


@_add("cat", "concat", "concatenate")
def _concat(call: AtenCall) -> Made:
    parts = call.tensors
    if not call.constants and len(parts) == 1:
        return parts[0]
    if not call.constants and int(call.arguments["dim"]) % len(call.out) == 1:
        return [AtenStep("concat", {}, tuple(parts))]
    return [AtenStep("opaque", over_elements(call.out, "copy", "concat", call.constants), tuple(parts))]


@_add("pad", "constant_pad_nd")
def _pad(call: AtenCall) -> Made:
    x, pad = call.tensors[0], [int(n) for n in call.arguments["pad"]]
    if not any(pad):
        return x
    zero = call.arguments.get("mode", "constant") == "constant" and call.arguments.get("value") in (None, 0, 0.0)
    if not zero or len(x.shape) != 4 or any(pad[4:]) or min(pad) < 0:
        return _copy(x, call.out, "pad")
    left, right, top, bottom = [*pad, 0, 0, 0, 0][:4]
    attrs: dict[str, Attr] = {"padding": (top, left, bottom, right)}
    return [AtenStep("pad", attrs, (x,))]


#: Arguments that say nothing of what is computed.
_SILENT = frozenset({"cudnn_enabled", "cudnn_enable", "half_to_float"})


def of_family(call: AtenCall, rule: FunctionRule, *left_out: str) -> Made:
    """What the rule of a family makes of a call whose first argument is a tensor of the network; None if it does not take it."""
    first, *others = call.arguments.items()
    x = first[1]
    if not isinstance(x, AtenValue) or not x.op:
        return None
    given = {name: _plain(value) for name, value in others if value is not None and name not in {*_SILENT, *left_out}}
    try:
        chain = module_chain(rule, x.shape, **given)
    except Refusal:
        return None
    steps = [AtenStep(kind, attrs, () if i else (x,), weights) for i, (_, kind, attrs, weights) in enumerate(chain)]
    return x if [step.kind for step in steps] == ["identity"] else steps


def _plain(value: Any) -> Any:
    """An argument as functions of torch have it: a stored tensor is one, if only of a shape."""
    if not isinstance(value, AtenValue) or value.op:
        return value
    return torch.empty(value.shape, device="meta") if value.tensor is None else value.tensor


def _by_family(rule: FunctionRule) -> AtenRule:
    return lambda call: of_family(call, rule)


RULES.update({name: _by_family(rule) for name, rule in ATEN.items()})


@_add("conv2d", "convolution", "conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _convolution(call: AtenCall) -> Made:
    x, weight, groups = call.tensor("input"), call.arguments["weight"], call.arguments["groups"]
    transposed = call.operator.startswith("conv_transpose") or bool(call.arguments.get("transposed"))
    if x is None or not isinstance(weight, AtenValue):
        return None
    if not transposed and not weight.op and len(x.shape) == 4:
        return of_family(call, convolution, "transposed", "output_padding")
    channels = x.shape[-len(weight.shape) + 1]
    cin, cout, taps = channels // groups, call.out[-len(weight.shape) + 1] // groups, prod(weight.shape[2:])
    pixels = prod(x.shape if transposed else call.out) // (channels if transposed else cout * groups)
    kind = "depthwise" if cin == 1 and groups > 1 else "conv1x1" if taps == 1 else "conv" if groups == 1 else "grouped"
    return [opaque(call, kind, (cin, cout, groups, taps, pixels))]


@_add("linear")
def _linear(call: AtenCall) -> Made:
    x, weight = call.tensor("input"), call.constant("weight")
    if x is None or weight is None or len(weight.shape) != 2:
        return None
    return [AtenStep("linear", {"out_features": weight.shape[0], "bias": call.arguments["bias"] is not None}, (x,))]


@_add("matmul", "mm", "bmm", "addmm", "baddbmm", "dot", "mv")
def _matmul(call: AtenCall) -> Made:
    pairs = [("mat1", "mat2"), ("batch1", "batch2"), ("self", "other"), ("self", "mat2"), ("self", "tensor"), ("self", "vec")]
    names = next(item for item in pairs if all(name in call.arguments for name in item))
    a, b = (call.arguments[name] for name in names)
    bias = [value for value in call.values if value is not a and value is not b]
    if a.op and not b.op and len(b.shape) == 2 and (not bias or bias[0].shape == b.shape[1:]):
        return [AtenStep("linear", {"out_features": b.shape[1], "bias": bool(bias)}, (a,))]
    inner = a.shape[-1]
    right = b.shape[-1] if len(b.shape) > 1 else 1
    left = a.shape[-2] if len(a.shape) > 1 else 1
    return [product(call, inner, right, max(1, prod(call.out) // (left * right)), left)]


@_add("einsum")
def _einsum(call: AtenCall) -> Made:
    """A product of two tensors by the letters of its equation."""
    equation, operands = str(call.arguments["equation"]).replace(" ", ""), call.values
    if len(operands) != 2 or "." in equation or "->" not in equation:
        return None
    (first, second), out = equation.split("->")[0].split(","), equation.split("->")[1]
    size = dict(zip(first + second, operands[0].shape + operands[1].shape, strict=True))
    inner = prod(size[letter] for letter in size if letter not in out)
    batch = prod(size[letter] for letter in out if letter in first and letter in second)
    right = prod(size[letter] for letter in out if letter not in first)
    return [product(call, inner, right, batch, prod(size[letter] for letter in out if letter not in second))]


@_add("scaled_dot_product_attention")
def _attention(call: AtenCall) -> Made:
    """As runtimes that lack it compute it: a scaled product, a softmax over it, and a second product."""
    query, key, value = (call.arguments[name] for name in ("query", "key", "value"))
    if not (query.op and key.op and value.op):
        return None
    batch, inner, left, right = prod(query.shape[:-2]), query.shape[-1], query.shape[-2], key.shape[-2]
    scores = (*query.shape[:-1], right)
    steps = [
        AtenStep("mul_scalar", {"value": float(call.arguments.get("scale") or inner**-0.5)}, (query,)),
        AtenStep("opaque", attributes(scores, "matmul", "matmul", (inner, right, batch, 1, left)), (key,)),
    ]
    mask = call.arguments.get("attn_mask")
    if isinstance(mask, AtenValue):
        reads = (mask,) if mask.op else ()
        steps.append(AtenStep("opaque", over_elements(scores, "elementwise", "add", 0 if mask.op else prod(mask.shape)), reads))
    steps.append(AtenStep("opaque", over_elements(scores, "elementwise", "softmax")))
    steps.append(AtenStep("opaque", attributes(call.out, "matmul", "matmul", (right, value.shape[-1], batch, 1, left)), (value,)))
    return steps


@_add("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(call: AtenCall) -> Made:
    """All steps of all layers as one product of what a step reads with its gates' weights."""
    x, weights = call.tensors[0], [item.shape for item in call.arguments["params"] if len(item.shape) == 2]
    steps = prod(x.shape[:-1])
    # each direction of each layer has a matrix for its input and one for its state
    pairs = len(weights) // 2
    cin = (weights[0][1] + weights[1][1]) if pairs else 1
    return [opaque(call, "linear", (cin, weights[0][0], max(1, pairs), 1, steps))]


@_add("batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(call: AtenCall) -> Made:
    x = call.tensor("input")
    if x is None or len(x.shape) < 2 or call.arguments.get("training"):
        return None
    affine = call.arguments["weight"] is not None
    return [
        AtenStep("batch_norm", {"eps": float(call.arguments["eps"]), "momentum": float(call.arguments["momentum"]), "affine": affine}, (x,))
    ]


@_add("softmax", "log_softmax", "_softmax", "_log_softmax", "_safe_softmax")
def _softmax(call: AtenCall) -> Made:
    x = call.tensors[0]
    kind = "log_softmax" if "log" in call.operator else "softmax"
    built = of_family(call, ATEN[kind], "dtype") if len(x.shape) in (2, 4) else None
    return built or [AtenStep("opaque", over_elements(call.out, "elementwise", kind), (x,))]


@_add("max_pool2d", "max_pool2d_with_indices", "avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d")
def _pool(call: AtenCall) -> Made:
    return of_family(call, ATEN[call.operator]) if len(call.out) == 4 else None


@_add(*REDUCTIONS)
def _reduce(call: AtenCall) -> Made:
    """A mean over height and width is global pooling; another reduction is opaque."""
    x = call.tensors[0]
    dims = call.arguments.get("dim")
    over = sorted(d % len(x.shape) for d in ([dims] if isinstance(dims, int) else dims or ()))
    if len(x.shape) == 4 and over == [2, 3] and call.operator in ("mean", "amax"):
        kind = "global_avg_pool" if call.operator == "mean" else "global_max_pool"
        return [AtenStep(kind, {"keepdims": bool(call.arguments["keepdim"])}, (x,))]
    return [reduced(call)]


@_add("hardtanh", "clamp", "clip", "clamp_min")
def _clamp(call: AtenCall) -> Made:
    low = call.arguments.get("min_val", call.arguments.get("min"))
    high = call.arguments.get("max_val", call.arguments.get("max"))
    if isinstance(low, AtenValue) or isinstance(high, AtenValue):
        return None
    if low is None or (high is None and low != 0):
        return None
    return of_family(replace(call, arguments={"self": call.tensors[0], "min": low, "max": high}), clamp)


def _with_number(call: AtenCall, x: AtenValue, kind: str, value: float, neutral: float) -> Made:
    return x if value == neutral else [AtenStep(kind, {"value": float(value)}, (x,))]


@_add("add", "sub", "mul", "div", "neg")
def _arithmetic(call: AtenCall) -> Made:
    a, b, name = call.arguments["self"], call.arguments.get("other"), call.operator
    if name == "neg":
        return _with_number(call, a, "mul_scalar", -1.0, 1.0)
    if call.arguments.get("alpha", 1) != 1 or call.arguments.get("rounding_mode"):
        return None
    if isinstance(b, int | float) and a.op and a.shape == call.out:
        if name in ("add", "sub"):
            return _with_number(call, a, "add_scalar", b if name == "add" else -b, 0.0)
        return _with_number(call, a, "mul_scalar", b if name == "mul" else 1 / b, 1.0) if b or name == "mul" else None
    if name not in ("add", "mul") or not isinstance(b, AtenValue):
        return None
    if a.op and b.op:
        return [AtenStep(name, {}, (a, b))] if len(a.shape) == len(b.shape) else None
    x, constant = (a, b) if a.op else (b, a)
    sizes = (*[1] * (len(call.out) - len(constant.shape)), *constant.shape)
    if x.shape == call.out and len(sizes) in (2, 4) and sizes[1] == call.out[1] == prod(sizes):
        return [AtenStep("scale" if name == "mul" else "shift", {}, (x,))]
    return None


@_add("upsample_nearest2d")
def _upsample(call: AtenCall) -> Made:
    x = call.tensors[0]
    if any(out % has for out, has in zip(call.out[2:], x.shape[2:], strict=True)):
        return None
    return [AtenStep("upsample", {"scale": (call.out[2] // x.shape[2], call.out[3] // x.shape[3])}, (x,))]
