"""Rules of ATen operators: operators of known kinds with their weights, tensors in another shape, or the cost of an opaque operator."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf, prod
from typing import Any

import torch

from predictors.operators import kind_of
from predictors.operators.opaque import CALLS, attributes
from predictors.registry import RuleTable
from predictors.shapes import Attr, Shape
from stretch.network.capture.aten import (
    REDUCTIONS,
    AtenCall,
    AtenRule,
    AtenValue,
    CallRecorder,
    LoweringResult,
    conversion,
    einsum_letters,
    elements,
    named_arguments,
    opaque_node,
    opaque_step,
    over_elements,
    storage_dtype,
)
from stretch.operators.capturing import ATEN, FUNCTIONS, FunctionRule, Step, UnsupportedNode, module_chain, pair, require_supported
from stretch.operators.elementwise import clamp
from stretch.operators.move import LOWEST
from stretch.operators.opaque.calls import Call, computes
from stretch.operators.products import convolution

#: Rules by name of the ATen operator without its overload. A step without weights, or an opaque one without calls, is only the cost of a
#: call that no operator of a family computes.
RULES: RuleTable[AtenRule] = RuleTable()

_add = RULES.add

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
#: Operators that drop at random if their argument ``train`` is true.
_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "native_dropout", "feature_alpha_dropout")

#: Options of calls for the place and layout of tensors, not for their values.
_PLACEMENT_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "memory_format", "generator", "non_blocking"})


def steps_of(call: AtenCall) -> LoweringResult:
    """Lower a call to a chain of operators, the tensor itself in another shape, or its pieces.

    Raises:
        UnsupportedNode: If neither operators of families nor calls of torch compute it.
    """
    drops = call.operator in (*_RECURRENT, *_DROPOUTS) and call.arguments.get("train")
    require_supported(not drops and not call.arguments.get("dropout_p"), "it drops at random in evaluation too")
    rule = RULES.get(call.operator)
    built = None if rule is None else rule(call)
    if isinstance(built, AtenValue | tuple):
        return built
    return built if built is not None and all(_is_computed(call, step) for step in built) else [call_step(call, built)]


def _is_computed(call: AtenCall, step: Step) -> bool:
    """Return whether a step computes its call; an operator of a family does on 32-bit reals with channels."""
    if step.kind == "opaque":
        return CALLS in step.attrs
    return (
        step.weights is not None
        and _is_floating_point(call)
        and min(len(shape) for shape in (call.out, *(x.shape for x in step.reads))) > 1
    )


def _is_floating_point(call: AtenCall) -> bool:
    """Return whether all inputs and results of a call are 32-bit reals."""
    return all(dtype == torch.float32 for dtype in (*(value.dtype for value in call.values), _result_type(call)))


def _result_type(call: AtenCall, number: int = 0) -> torch.dtype:
    result = call.node.meta["val"]
    dtype: torch.dtype = (result[number] if isinstance(result, tuple | list) else result).dtype
    return dtype


def cost_of(call: AtenCall, steps: Sequence[Step] | None) -> Step:
    """Return the opaque operator of a call without its computation, at the cost of the kernel that its rule gives."""
    step = steps[0] if steps is not None and len(steps) == 1 else None
    if step is None or (step.kind != "opaque" and not call.out):
        return opaque_node(call)
    if step.kind == "opaque":
        return step
    work = kind_of(step.kind).work([value.shape for value in step.reads], step.attrs, call.out)
    return opaque_step(call, work.kind, (work.in_channels, work.out_channels, work.groups, work.taps, work.pixels))


def call_step(call: AtenCall, steps: Sequence[Step] | None, numbers: Sequence[int] = (0,)) -> Step:
    """Return the opaque operator that computes a call by torch.

    Args:
        numbers: Indices of the results to return: one, or several flattened into one row (1, n), one after another.
    """
    assert isinstance(call.node.target, torch._ops.OpOverload)
    attrs, name, recorder = cost_of(call, steps).attrs, _functional(call), CallRecorder()
    positional = [(argument.name, argument.kwarg_only) for argument in call.node.target._schema.arguments]
    try:
        arguments = tuple(recorder(call.arguments[key]) for key, only in positional if not only)
        options = {
            key: recorder(call.arguments[key])
            for key, only in positional
            if only and key not in _PLACEMENT_ARGUMENTS and call.arguments[key] is not None
        }
    except ValueError as error:
        raise UnsupportedNode(f"its argument {error}") from error
    if len(numbers) == 1:
        attrs = {**attrs, "shape": call.shapes[numbers[0]]}
        return recorder.step(attrs, [Call(name, arguments, options, numbers[0])], _result_type(call, numbers[0]))
    calls, rows = [Call(name, arguments, options)], []
    for number in numbers:
        of = {"call": 0, "result": number}
        if _result_type(call, number) != torch.float32:
            calls.append(conversion(of, torch.float32))
            of = {"call": len(calls) - 1}
        calls.append(Call("reshape.default", (of, [1, prod(call.shapes[number])])))
        rows.append({"call": len(calls) - 1})
    calls.append(Call("cat.default", (rows, 1)))
    return recorder.step({**attrs, "shape": (1, sum(prod(call.shapes[number]) for number in numbers))}, calls)


def _functional(call: AtenCall) -> str:
    """Return the name of the operator that returns the result instead of writing it in place."""
    target: Any = call.node.target
    overload, packet = target._overloadname, target._overloadpacket.__name__
    if target.namespace == "aten" and target._schema.is_mutable:
        packet = packet.removesuffix("_")
        target = getattr(getattr(torch.ops.aten, packet, None), overload, target)
    if target.namespace != "aten" or not computes(target):
        raise UnsupportedNode(f"`{target}` is no operator of torch that computes tensors from tensors alone")
    return f"{packet}.{overload}"


def _call_operator(variant: str, kernel: str, out: Shape, operator: str, *arguments: Any, **options: Any) -> Step:
    """Return an opaque operator of one call that is not in the network; without a `dtype` it moves elements of any type."""
    recorder, to = CallRecorder(), options.get("dtype", torch.float32)
    if not options:
        arguments = tuple(replace(item, dtype=storage_dtype(item.dtype)) if isinstance(item, AtenValue) else item for item in arguments)
    call = Call(operator, tuple(map(recorder, arguments)), {key: recorder(option) for key, option in options.items()})
    return recorder.step(over_elements(out, kernel, variant), [call], to)


def _copy(x: AtenValue, shape: Shape, variant: str) -> list[Step]:
    return [Step("opaque", over_elements(shape, "copy", variant), (x,))]


def _constant(value: Any) -> torch.Tensor | None:
    """Return the tensor of an argument that does not depend on the input; None for other arguments."""
    return value.tensor if isinstance(value, AtenValue) else None


def _drop_none(**weights: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {key: value for key, value in weights.items() if value is not None}


#: Arguments that do not change the result.
_IGNORED_ARGUMENTS = frozenset({"cudnn_enabled", "cudnn_enable", "half_to_float"})


def call_family_rule(call: AtenCall, rule: FunctionRule, *ignored: str) -> LoweringResult:
    """Apply the rule of a family to a call whose first argument is a tensor of the network; None if the rule refuses it."""
    first, *rest = call.arguments.items()
    x = first[1]
    if not isinstance(x, AtenValue) or not x.op:
        return None
    settings = {name: _to_python(value) for name, value in rest if value is not None and name not in {*_IGNORED_ARGUMENTS, *ignored}}
    try:
        chain = module_chain(rule, x.shape, **settings)
    except UnsupportedNode:
        return None
    steps = [replace(step, reads=() if i else (x,)) for i, step in enumerate(chain)]
    return x if [step.kind for step in steps] == ["identity"] else steps


def _to_python(value: Any) -> Any:
    """Convert an argument for functions of torch; a stored tensor becomes itself, or an empty tensor of its shape if it is unknown."""
    if not isinstance(value, AtenValue) or value.op:
        return value
    return torch.empty(value.shape, device="meta") if value.tensor is None else value.tensor


RULES.update({name: partial(call_family_rule, rule=rule) for name, rule in ATEN.items()})


# Operators that move, select or repeat elements.


@_add(
    *("detach", "alias", "contiguous", "clone", "lift_fresh_copy", "to", "_to_copy", "type_as"),
    *("feature_dropout", "alpha_dropout", "native_dropout", "feature_alpha_dropout", "dropout2d", "identity", "view_of"),
)
def _identity(call: AtenCall) -> LoweringResult:
    """Lower to the tensor itself, or to a conversion if its type changes."""
    x, to = call.tensors[0], _result_type(call)
    if to in (x.dtype, storage_dtype(x.dtype)):
        return x
    return [_call_operator("cast", "elementwise", call.out, "_to_copy.default", x, dtype=to)]


@_add("dropout")
def _dropout(call: AtenCall) -> LoweringResult:
    """Lower a dropout, which drops only during training."""
    x, p = call.tensors[0], float(call.arguments["p"])
    alone = len(x.shape) in (2, 4) and x.shape == (x.base or x.shape)
    return [Step("dropout", {"p": p}, (x,))] if p and alone and _is_floating_point(call) else _identity(call)


@_add("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "_reshape_alias", "reshape_as")
def _view(call: AtenCall) -> LoweringResult:
    x = call.tensors[0]
    if call.overload == "dtype":
        # bits are reinterpreted as another type
        return None
    if x.shape == (x.base or x.shape):
        if len(x.shape) == 2 and call.out == (*x.shape, 1, 1):
            return [Step("unflatten", {}, (x,))]
        if len(x.shape) == 4 and call.out == (x.shape[0], prod(x.shape[1:])):
            return [Step("flatten", {}, (x,))]
    return x.reshape(call.out)


@_add("expand", "expand_as", "broadcast_to")
def _expand(call: AtenCall) -> LoweringResult:
    x = call.tensors[0]
    return x if x.shape == call.out else [_call_operator("expand", "copy", call.out, "expand.default", x, list(call.out))]


@_add("permute", "transpose", "t", "swapaxes", "movedim", "numpy_T", "mT", "adjoint")
def _permute(call: AtenCall) -> LoweringResult:
    """Lower to a view if only axes of one element move, else to a copy."""
    x = call.tensors[0]
    order = call.order(len(x.shape))
    moved = [d for d in order if x.shape[d] != 1]
    if moved == sorted(moved):
        return x.reshape(call.out)
    return [_call_operator("permute", "copy", call.out, "permute.default", x, list(order))]


@_add("slice", "narrow")
def _slice(call: AtenCall) -> LoweringResult:
    x, dim = call.tensors[0], call.axis
    if x.shape == call.out:
        return x
    if call.arguments.get("step", 1) != 1 or dim != 1 or len(x.shape) not in (2, 4):
        return _copy(x, call.out, "slice")
    start = int(call.arguments.get("start") or 0)
    start += x.shape[dim] if start < 0 else 0
    return [Step("slice", {"start": start, "stop": start + call.out[1]}, (x,))]


@_add("select")
def _select(call: AtenCall) -> LoweringResult:
    x = call.tensors[0]
    return x.reshape(call.out) if prod(x.shape) == prod(call.out) else _copy(x, call.out, "slice")


@_add("split", "chunk", "split_with_sizes", "unbind", "tensor_split", "unsafe_split", "unsafe_chunk")
def _split(call: AtenCall) -> LoweringResult:
    """Split a tensor into pieces along one axis; each is cut out where it is used."""
    x, dim, start = call.tensors[0], call.axis, 0
    if len(call.shapes) == 1:
        return (x.reshape(call.out),)
    result = []
    for shape in call.shapes:
        result.append(AtenValue(x.op, shape, piece=_piece(x, dim, start, shape)))
        start += 1 if call.operator == "unbind" else shape[dim]
    return tuple(result)


def _piece(x: AtenValue, dim: int, start: int, shape: Shape) -> Step:
    if len(shape) < len(x.shape):
        return _call_operator("slice", "copy", shape, "select.int", x, dim, start)
    if dim == 1 and len(shape) in (2, 4):
        return Step("slice", {"start": start, "stop": start + shape[1]}, (x,))
    return _call_operator("slice", "copy", shape, "slice.Tensor", x, dim, start, start + shape[dim], 1)


@_add("cat", "concat", "concatenate")
def _concat(call: AtenCall) -> LoweringResult:
    parts = call.tensors
    if not call.constants and len(parts) == 1:
        return parts[0]
    if not call.constants and call.axis == 1:
        return [Step("concat", {}, tuple(parts))]
    return [opaque_step(call, "copy", elements(call.out), "concat")]


@_add("pad", "constant_pad_nd")
def _pad(call: AtenCall) -> LoweringResult:
    """Lower the padding of an image; `stretch.network.capture.trace.fold_infinite_padding` merges padding by −∞ into max pooling."""
    x, pads, value = call.tensors[0], [int(n) for n in call.arguments["pad"]], call.arguments.get("value")
    if not any(pads):
        return x
    whole = x.shape == (x.base or x.shape)
    lowest = value == -inf and whole and len(pads) in (2, 4) and _is_padded_pool(call, pads)
    zero = value in (None, 0) and not any(pads[4:]) and (whole or min(pads) >= 0)
    if len(x.shape) != 4 or call.arguments.get("mode", "constant") != "constant" or not (zero or lowest):
        return _copy(x, call.out, "pad")
    left, right, top, bottom = [*pads, 0, 0][:4]
    return [Step("pad", {"padding": (top, left, bottom, right), **({LOWEST: True} if lowest else {})}, (x,))]


def _is_padded_pool(call: AtenCall, pads: Sequence[int]) -> bool:
    """Return whether only max poolings that round down read an image, and their whole padding is at most half of their window."""
    for node in call.node.users:
        if AtenCall(node, {}).operator != "max_pool2d":
            return False
        settings = named_arguments(node)
        half, earlier = min(pair(settings["kernel_size"])) // 2, max(pair(settings["padding"]))
        if settings["ceil_mode"] or max(pads) + earlier > half:
            return False
    return True


@_add("upsample_nearest2d")
def _upsample(call: AtenCall) -> LoweringResult:
    """Lower an enlargement by whole factors, which must equal the ratios of the sizes."""
    x = call.tensors[0]
    scale = (call.out[2] // x.shape[2], call.out[3] // x.shape[3])
    stated = call.arguments.get("scale_factors") or [call.arguments.get("scales_h"), call.arguments.get("scales_w")]
    if any(out % size for out, size in zip(call.out[2:], x.shape[2:], strict=True)):
        return None
    if not all(item in (None, factor) for item, factor in zip(stated, scale, strict=True)):
        return None
    return [Step("upsample", {"scale": scale}, (x,))]


# Products.


@_add("conv2d", "convolution", "conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _convolution(call: AtenCall) -> LoweringResult:
    x, weight, groups = call.tensor("input"), call.arguments["weight"], call.arguments["groups"]
    transposed = call.operator.startswith("conv_transpose") or bool(call.arguments.get("transposed"))
    if x is None or not isinstance(weight, AtenValue):
        return None
    if not transposed and not weight.op and len(x.shape) == 4:
        return call_family_rule(call, convolution, "transposed", "output_padding")
    channels = x.shape[-len(weight.shape) + 1]
    cin, cout, taps = channels // groups, call.out[-len(weight.shape) + 1] // groups, prod(weight.shape[2:])
    pixels = prod(x.shape if transposed else call.out) // (channels if transposed else cout * groups)
    kind = "depthwise" if cin == 1 and groups > 1 else "conv1x1" if taps == 1 else "conv" if groups == 1 else "grouped"
    return [opaque_step(call, kind, (cin, cout, groups, taps, pixels))]


@_add("linear")
def _linear(call: AtenCall) -> LoweringResult:
    x, weight, bias = call.tensor("input"), call.constant("weight"), call.arguments["bias"]
    if x is None or weight is None or len(weight.shape) != 2:
        return None
    return [_matrix(call, x, weight.shape[0], weight.tensor, bias)]


@_add("matmul", "mm", "bmm", "addmm", "baddbmm", "dot", "mv")
def _matmul(call: AtenCall) -> LoweringResult:
    pairs = [("mat1", "mat2"), ("batch1", "batch2"), ("self", "other"), ("self", "mat2"), ("self", "tensor"), ("self", "vec")]
    names = next(item for item in pairs if all(name in call.arguments for name in item))
    a, b = (call.arguments[name] for name in names)
    bias = [value for value in call.values if value is not a and value is not b]
    if a.op and not b.op and len(b.shape) == 2 and (not bias or bias[0].shape == b.shape[1:]):
        return [_matrix(call, a, b.shape[1], None if b.tensor is None else b.tensor.t(), bias[0] if bias else None)]
    inner = a.shape[-1]
    right = b.shape[-1] if len(b.shape) > 1 else 1
    left = a.shape[-2] if len(a.shape) > 1 else 1
    # products of a left × inner and an inner × right matrix
    return [opaque_step(call, "matmul", (inner, right, max(1, prod(call.out) // (left * right)), 1, left), "matmul")]


def _matrix(call: AtenCall, x: AtenValue, columns: int, weight: torch.Tensor | None, bias: AtenValue | None) -> Step:
    """Lower a linear layer; only its cost if its input is no vector."""
    computable = len(call.out) == 2 and weight is not None and (bias is None or bias.tensor is not None)
    computable = computable and all(call.arguments.get(factor, 1) == 1 for factor in ("alpha", "beta"))
    weights = _drop_none(weight=weight, bias=_constant(bias)) if computable else None
    return Step("linear", {"out_features": columns, "bias": bias is not None}, (x,), weights)


@_add("einsum")
def _einsum(call: AtenCall) -> LoweringResult:
    """Lower an equation to products of two tensors from left to right, each with the letters that later tensors or the result have."""
    letters, out = einsum_letters(str(call.arguments["equation"]), call.values)
    # a product of constants alone has no operator: a tensor that depends on the input comes first
    pending = sorted(zip(letters, call.values, strict=True), key=lambda pair: not pair[1].op)
    size: dict[str, int] = {}
    for term, value in pending:
        size.update((letter, max(length, size.get(letter, 1))) for letter, length in zip(term, value.shape, strict=True))
    (first, left), *pending = pending
    if not pending:
        attrs = attributes(call.out, "reduce", "einsum", elements(call.out, max(1, prod(left.shape) // prod(call.out))))
        return [_product_step(f"{first}->{out}", [left], attrs)]
    steps: list[Step] = []
    for position, (second, right) in enumerate(pending, start=1):
        later = {letter for term, _ in pending[position:] for letter in term}
        result = (
            out if position == len(pending) else "".join(dict.fromkeys(letter for letter in first + second if letter in {*later, *out}))
        )
        shape = tuple(size[letter] for letter in result)
        work = (
            prod(size[letter] for letter in {*first, *second} - {*result}),
            prod(size[letter] for letter in result if letter not in first),
            prod(size[letter] for letter in result if letter in first and letter in second),
            1,
            prod(size[letter] for letter in result if letter not in second),
        )
        step = _product_step(f"{first},{second}->{result}", [left, right], attributes(shape, "matmul", "matmul", work))
        steps.append(Step(step.kind, step.attrs, step.reads[1:], step.weights) if steps else step)
        first, left = result, AtenValue("-", shape, dtype=torch.float32)
    return steps


def _product_step(equation: str, operands: Sequence[AtenValue], attrs: Mapping[str, Attr]) -> Step:
    """Return the opaque operator of an equation over tensors."""
    recorder = CallRecorder()
    return recorder.step(attrs, [Call("einsum.default", (equation, [recorder(operand) for operand in operands]))])


@_add("scaled_dot_product_attention")
def _attention(call: AtenCall) -> LoweringResult:
    """Lower attention to a scaled product, a softmax over it and a second product, as runtimes without an attention operator compute it."""
    query, key, value = (call.arguments[name] for name in ("query", "key", "value"))
    mask, scale = call.arguments.get("attn_mask"), call.arguments.get("scale")
    batch, inner, left, right = prod(query.shape[:-2]), query.shape[-1], query.shape[-2], key.shape[-2]
    floats = not isinstance(mask, AtenValue) or mask.dtype == torch.float32
    if not (query.op and key.op and value.op) or call.arguments.get("is_causal") or call.arguments.get("enable_gqa") or not floats:
        # one operator, at the cost of two products of the same size
        return [opaque_step(call, "matmul", (inner, right, batch, 2, left))]
    scores = (*call.out[:-1], right)
    product = attributes(scores, "matmul", "matmul", (inner, right, batch, 1, left))
    recorder = CallRecorder()
    calls = (
        Call("mul.Scalar", (recorder(query), float(inner**-0.5 if scale is None else scale))),
        Call("transpose.int", (recorder(key), -2, -1)),
        Call("matmul.default", ({"call": 0}, {"call": 1})),
    )
    steps = [recorder.step(product, calls)]
    if isinstance(mask, AtenValue):
        steps.append(_following_step(scores, over_elements(scores, "elementwise", "add"), "add.Tensor", mask))
    steps.append(_following_step(scores, over_elements(scores, "elementwise", "softmax"), "softmax.int", -1))
    second = attributes(call.out, "matmul", "matmul", (right, value.shape[-1], batch, 1, left))
    return [*steps, _following_step(scores, second, "matmul.default", value)]


def _following_step(reads: Shape, attrs: Mapping[str, Attr], operator: str, argument: Any) -> Step:
    """Return an opaque operator of one call; its first input is the preceding operator in the chain."""
    recorder = CallRecorder()
    before = recorder(AtenValue("-", reads, dtype=torch.float32))
    step = recorder.step(attrs, [Call(operator, (before, recorder(argument)))])
    return Step(step.kind, step.attrs, step.reads[1:], step.weights)


@_add(*_RECURRENT)
def _recurrent(call: AtenCall) -> LoweringResult:
    """Return the cost of a recurrent layer: one product of each step's input with the weights of all gates and layers.

    Each direction of each layer has a matrix for its input and one for its state; a third one projects its state.
    """
    x, matrices = call.tensors[0], [item.shape for item in call.arguments["params"] if len(item.shape) == 2]
    require_supported(all(a[0] == b[0] for a, b in pairwise(matrices)), "ONNX has no recurrent layer that projects its states")
    gates = matrices[0][0]
    return [opaque_step(call, "linear", (sum(map(prod, matrices)) // gates, gates, 1, 1, prod(x.shape[:-1])))]


# Norms, pools and reductions.


@_add("batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(call: AtenCall) -> LoweringResult:
    x = call.tensor("input")
    if x is None or len(x.shape) < 2 or call.arguments.get("training"):
        return None
    names = ("weight", "bias", "running_mean", "running_var")
    weight, bias, mean, variance = (_constant(call.arguments.get(name)) for name in names)
    computable = len(call.out) in (2, 4) and mean is not None and variance is not None and (weight is not None or bias is None)
    bias = torch.zeros_like(weight) if weight is not None and bias is None else bias
    weights = _drop_none(weight=weight, bias=bias, running_mean=mean, running_var=variance) if computable else None
    numbers: dict[str, Attr] = {key: float(call.arguments[key]) for key in ("eps", "momentum")}
    return [Step("batch_norm", {**numbers, "affine": call.arguments["weight"] is not None}, (x,), weights)]


@_add("softmax", "log_softmax", "_softmax", "_log_softmax", "_safe_softmax")
def _softmax(call: AtenCall) -> LoweringResult:
    kind = "log_softmax" if "log" in call.operator else "softmax"
    built = call_family_rule(call, ATEN[kind], "dtype") if len(call.tensors[0].shape) in (2, 4) else None
    return built or [opaque_step(call, "elementwise", elements(call.out), kind)]


def _on_images(rule: FunctionRule) -> AtenRule:
    """Restrict the rule of a family to batches of images."""
    return lambda call: call_family_rule(call, rule) if len(call.out) == 4 else None


RULES["group_norm"] = _on_images(FUNCTIONS[torch.nn.functional.group_norm])
RULES.update({name: _on_images(rule) for name, rule in ATEN.items() if "_pool2d" in name})


@_add(*REDUCTIONS)
def _reduce(call: AtenCall) -> LoweringResult:
    """Lower a mean or maximum over height and width to global pooling; any other reduction is opaque."""
    x = call.tensors[0]
    dims = call.arguments.get("dim")
    over = sorted(d % len(x.shape) for d in ([dims] if isinstance(dims, int) else dims or ()))
    if len(x.shape) == 4 and over == [2, 3] and call.operator in ("mean", "amax"):
        kind = "global_avg_pool" if call.operator == "mean" else "global_max_pool"
        return [Step(kind, {"keepdims": bool(call.arguments["keepdim"])}, (x,))]
    return None


# Operators that keep every element in its place.


@_add("hardtanh", "clamp", "clip", "clamp_min")
def _clamp(call: AtenCall) -> LoweringResult:
    low = call.arguments.get("min_val", call.arguments.get("min"))
    high = call.arguments.get("max_val", call.arguments.get("max"))
    if isinstance(low, AtenValue) or isinstance(high, AtenValue) or low is None or (high is None and low != 0):
        return None
    return call_family_rule(AtenCall(call.node, {"self": call.tensors[0], "min": low, "max": high}, call.shapes), clamp)


def _with_number(x: AtenValue, kind: str, value: float, neutral: float) -> LoweringResult:
    return x if value == neutral else [Step(kind, {"value": float(value)}, (x,))]


@_add("neg")
def _negative(call: AtenCall) -> LoweringResult:
    return _with_number(call.arguments["self"], "mul_scalar", -1.0, 1.0)


@_add("add", "sub", "mul", "div")
def _arithmetic(call: AtenCall) -> LoweringResult:
    a, b, name = call.arguments["self"], call.arguments["other"], call.operator
    if call.arguments.get("alpha", 1) != 1 or call.arguments.get("rounding_mode"):
        return None
    if isinstance(b, int | float) and a.op and a.shape == call.out:
        if name in ("add", "sub"):
            return _with_number(a, "add_scalar", b if name == "add" else -b, 0.0)
        return _with_number(a, "mul_scalar", b if name == "mul" else 1 / b, 1.0) if b or name == "mul" else None
    if not isinstance(b, AtenValue):
        return None
    if a.op and b.op:
        return _binary_operator(call, a, b)
    x, constant = (a, b) if a.op else (b, a)
    sizes = (*[1] * (len(call.out) - len(constant.shape)), *constant.shape)
    if name in ("add", "mul") and x.shape == call.out and len(sizes) in (2, 4) and sizes[1] == call.out[1] == prod(sizes):
        kind, key = ("scale", "weight") if name == "mul" else ("shift", "bias")
        return [Step(kind, {}, (x,), None if constant.tensor is None else {key: constant.tensor.reshape(-1)})]
    return None


def _binary_operator(call: AtenCall, a: AtenValue, b: AtenValue) -> LoweringResult:
    """Lower an operator of two images; a difference becomes the sum of the first and the negative of the second."""
    if len(a.shape) != len(b.shape):
        return None
    if call.operator == "sub":
        computed = _is_floating_point(call) and a.shape[0] == b.shape[0]
        return [Step("mul_scalar", {"value": -1.0}, (b,)), Step("add", {}, (a,))] if computed else None
    # an operator that repeats one image for several ones belongs to no family
    return [Step(call.operator, {}, (a, b), {} if a.shape[:1] == b.shape[:1] else None)]


@_add("addcmul")
def _with_product(call: AtenCall) -> LoweringResult:
    """Lower a tensor times one factor per channel plus one offset per channel."""
    offset, first, second = (call.arguments[name] for name in ("self", "tensor1", "tensor2"))
    x, factor = (first, second) if first.op else (second, first)
    shape = (1, call.out[1], 1, 1) if len(call.out) == 4 else ()
    fits = all(not value.op and value.tensor is not None and value.shape == shape for value in (factor, offset))
    if call.arguments.get("value", 1) != 1 or not x.op or x.shape != call.out or not fits:
        return None
    return [
        Step("scale", {}, (x,), {"weight": factor.tensor.reshape(-1)}),
        Step("shift", {}, (), {"bias": offset.tensor.reshape(-1)}),
    ]
