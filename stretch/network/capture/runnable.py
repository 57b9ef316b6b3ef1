"""Any network that torch can export to an operator graph that computes it: calls of torch compute operators that no family describes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import inf, prod
from typing import Any

import torch
from torch import fx, nn

from predictors.errors import StretchError, need
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.operators.opaque import CALLS, attributes
from predictors.shapes import Attr, Shape, ints
from stretch.network.capture.aten import (
    RULES,
    AtenCall,
    AtenStep,
    AtenValue,
    CallRecorder,
    LoweringResult,
    Unsupported,
    call_family_rule,
    conversion,
    opaque_node,
    opaque_step,
    over_elements,
    pieces,
    storage_dtype,
    with_storage_dtype,
)
from stretch.network.capture.axes import applied, chain_of, written_out
from stretch.network.capture.exported import AtenLowering, export, input_placeholders, returned_nodes
from stretch.network.capture.inputs import Inputs, InputShapes
from stretch.network.capture.maps import Maps
from stretch.network.capture.results import Captured, OutputStructure, Result, differences, rebuild, unused_inputs, walk_leaves
from stretch.network.capture.trace import evaluation_mode, fold_infinite_padding, is_close
from stretch.operators.capturing import FUNCTIONS, UnsupportedNode, pair, require_supported
from stretch.operators.lowerings import make_module
from stretch.operators.opaque.calls import Call, computes

Weights = dict[str, torch.Tensor]

_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
#: Drop at random where their ``train`` says so.
_DROPOUTS = _RECURRENT | {"dropout", "feature_dropout", "alpha_dropout", "native_dropout", "feature_alpha_dropout"}

#: Options of calls for the place and layout of tensors, not for their values.
_PLACEMENT_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "memory_format", "generator", "non_blocking"})


def runnable_steps(call: AtenCall) -> LoweringResult:
    """Return the module that computes a call: a chain of operators, the tensor itself in another shape, or its pieces."""
    drops = call.operator in _DROPOUTS and call.arguments.get("train")
    require_supported(not drops and not call.arguments.get("dropout_p"), "it drops at random in evaluation too")
    rule = OPERATOR_RULES.get(call.operator) or RULES.get(call.operator)
    built = None if rule is None else rule(call)
    if isinstance(built, AtenValue | tuple):
        return built
    if built is not None and all(step.weights or CALLS in step.attrs for step in built if step.kind == "opaque"):
        steps = [_with_weights(call, step) for step in built]
        if all(steps):
            return [step for step in steps if step is not None]
    return [call_step(call, built)]


def call_step(call: AtenCall, steps: list[AtenStep] | None, numbers: Sequence[int] = (0,)) -> AtenStep:
    """One operator for a call whatever a rule makes of it: opaque, computed by torch.

    Args:
        numbers: Which of several results it gives: one, or more in one row (1, n), each behind the other.
    """
    return _recorded_step(call, _cost_step(call, steps), numbers)


def _cost_step(call: AtenCall, steps: list[AtenStep] | None) -> AtenStep:
    """The opaque operator of a call, at the price of the kernel that its rule has for it; attention at that of two products of one size."""
    step = steps[0] if steps is not None and len(steps) == 1 else None
    if step is None and call.operator == "scaled_dot_product_attention":
        query, key = call.arguments["query"].shape, call.arguments["key"].shape
        return opaque_step(call, "matmul", (query[-1], key[-2], prod(query[:-2]), 2, query[-2]))
    if step is None or (step.kind != "opaque" and not call.out):
        return opaque_node(call)
    if step.kind == "opaque":
        return step
    work = kind_of(step.kind).work([value.shape for value in step.reads], step.attrs, call.out)
    return opaque_step(call, work.kind, (work.in_channels, work.out_channels, work.groups, work.taps, work.pixels))


def _with_weights(call: AtenCall, step: AtenStep) -> AtenStep | None:
    """An operator of a family with its weights; None if it is not as its family computes it."""
    if step.kind == "opaque":
        return step
    if not _is_floating_point(call) or len(call.out) < 2 or any(len(value.shape) < 2 for value in step.reads):
        return None
    bind = _WEIGHT_BINDERS.get(step.kind)
    if bind is None or step.weights:
        return step
    weights = bind(call, step)
    return None if weights is None else replace(step, weights=weights)


def _is_floating_point(call: AtenCall) -> bool:
    """Whether everything that a call reads and writes is of 32-bit reals."""
    return all(dtype == torch.float32 for dtype in (*(value.dtype for value in call.values), _result_type(call)))


def _result_of(whole: AtenValue, call: AtenCall, numbers: Sequence[int], number: int) -> AtenValue:
    """One of the results that lie behind each other in a row; nobody reads one that does not."""
    shape, start = call.shapes[number], sum(prod(call.shapes[earlier]) for earlier in numbers if earlier < number)
    piece = AtenStep("slice", {"start": start, "stop": start + prod(shape)}, (whole,))
    return AtenValue(whole.op, shape, piece=piece) if number in numbers else AtenValue("", shape)


def _result_type(call: AtenCall, number: int = 0) -> torch.dtype:
    result = call.node.meta["val"]
    dtype: torch.dtype = (result[number] if isinstance(result, tuple | list) else result).dtype
    return dtype


def _constant(call: AtenCall, name: str) -> torch.Tensor | None:
    value = call.arguments.get(name)
    return value.tensor if isinstance(value, AtenValue) else None


def _matrix(call: AtenCall, step: AtenStep) -> Weights | None:
    """Of a linear layer on vectors, or a product with a constant matrix."""
    if len(call.out) != 2 or any(call.arguments.get(factor, 1) != 1 for factor in ("alpha", "beta")):
        return None
    if call.operator == "linear":
        weight, bias = _constant(call, "weight"), _constant(call, "bias")
    else:
        operand = next((name for name in ("mat2", "other") if name in call.arguments), "")
        constant = _constant(call, operand)
        weight, bias = None if constant is None else constant.t(), _constant(call, "self") if step.attrs["bias"] else None
    return _drop_none(weight=weight, bias=bias) if weight is not None and bool(step.attrs["bias"]) == (bias is not None) else None


def _batch_norm(call: AtenCall, step: AtenStep) -> Weights | None:
    mean, variance = _constant(call, "running_mean"), _constant(call, "running_var")
    weight, bias = _constant(call, "weight"), _constant(call, "bias")
    if mean is None or variance is None or (weight is None and bias is not None) or len(call.out) not in (2, 4):
        return None
    if weight is not None and bias is None:
        bias = torch.zeros_like(weight)
    return _drop_none(weight=weight, bias=bias, running_mean=mean, running_var=variance)


def _per_channel(key: str) -> Callable[[AtenCall, AtenStep], Weights | None]:
    def bind(call: AtenCall, step: AtenStep) -> Weights | None:
        first = next((value.tensor for value in call.values if not value.op), None)
        return None if first is None or first.dtype != torch.float32 else {key: first.reshape(-1)}

    return bind


def _same_batch(call: AtenCall, step: AtenStep) -> Weights | None:
    """A sum or product that pairs images: one that repeats an image for others is no operator of a family."""
    return {} if len({value.shape[0] for value in step.reads}) == 1 else None


def _check_scale_factors(call: AtenCall, step: AtenStep) -> Weights | None:
    """Factors that torch was given are those of the sizes."""
    value = call.arguments.get("scale_factors") or [call.arguments.get("scales_h"), call.arguments.get("scales_w")]
    scale = step.attrs["scale"]
    assert isinstance(scale, tuple)
    return {} if all(item in (None, factor) for item, factor in zip(value, scale, strict=True)) else None


#: By kind: its weights in a call; None if the call computes something else.
_WEIGHT_BINDERS: Mapping[str, Callable[[AtenCall, AtenStep], Weights | None]] = {
    "linear": _matrix,
    "batch_norm": _batch_norm,
    "scale": _per_channel("weight"),
    "shift": _per_channel("bias"),
    "add": _same_batch,
    "mul": _same_batch,
    "div": _same_batch,
    "upsample": _check_scale_factors,
}


def _drop_none(**weights: torch.Tensor | None) -> Weights:
    return {key: value for key, value in weights.items() if value is not None}


def _recorded_step(call: AtenCall, step: AtenStep, numbers: Sequence[int]) -> AtenStep:
    """An opaque operator with the calls of torch that compute some results of a call."""
    assert isinstance(call.node.target, torch._ops.OpOverload)
    schema = call.node.target._schema
    name = _functional(call)
    positional = [(argument.name, argument.kwarg_only) for argument in schema.arguments]
    recorder = CallRecorder()
    try:
        arguments = tuple(recorder(call.arguments[name]) for name, only in positional if not only)
        options = {
            key: recorder(call.arguments[key])
            for key, only in positional
            if only and key not in _PLACEMENT_ARGUMENTS and call.arguments[key] is not None
        }
    except ValueError as error:
        raise UnsupportedNode(f"its argument {error}") from error
    if len(numbers) == 1:
        attrs = {**step.attrs, "shape": call.shapes[numbers[0]]}
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
    return recorder.step({**step.attrs, "shape": (1, sum(prod(call.shapes[number]) for number in numbers))}, calls)


def _functional(call: AtenCall) -> str:
    """Name of the operator that gives what one that writes in place writes."""
    target: Any = call.node.target
    overload, packet = target._overloadname, target._overloadpacket.__name__
    if target.namespace == "aten" and target._schema.is_mutable:
        packet = packet.removesuffix("_")
        target = getattr(getattr(torch.ops.aten, packet, None), overload, target)
    if target.namespace != "aten" or not computes(target):
        raise UnsupportedNode(f"`{target}` is no operator of torch that computes tensors from tensors alone")
    return f"{packet}.{overload}"


def _call_operator(variant: str, kernel: str, out: Shape, operator: str, *arguments: Any, **options: Any) -> AtenStep:
    """An opaque operator of one call that the network does not have as such; without a `dtype` it moves elements, whatever they are."""
    recorder, to = CallRecorder(), options.get("dtype", torch.float32)
    given = [with_storage_dtype(argument) if isinstance(argument, AtenValue) and not options else argument for argument in arguments]
    call = Call(operator, tuple(map(recorder, given)), {key: recorder(option) for key, option in options.items()})
    return recorder.step(over_elements(out, kernel, variant), [call], to)


def _permute(call: AtenCall) -> LoweringResult:
    """A view where only axes of one element move."""
    x = call.tensors[0]
    order = call.order(len(x.shape))
    moved = [d for d in order if x.shape[d] != 1]
    return (
        x.reshape(call.out) if moved == sorted(moved) else [_call_operator("permute", "copy", call.out, "permute.default", x, list(order))]
    )


def _expand(call: AtenCall) -> LoweringResult:
    x = call.tensors[0]
    return x if x.shape == call.out else [_call_operator("expand", "copy", call.out, "expand.default", x, list(call.out))]


def _split(call: AtenCall) -> LoweringResult:
    return pieces(call, _piece)


def _piece(x: AtenValue, dim: int, at: int, shape: Shape) -> AtenStep:
    if len(shape) < len(x.shape):
        return _call_operator("slice", "copy", shape, "select.int", x, dim, at)
    if dim == 1 and len(shape) in (2, 4):
        return AtenStep("slice", {"start": at, "stop": at + shape[1]}, (x,))
    return _call_operator("slice", "copy", shape, "slice.Tensor", x, dim, at, at + shape[dim], 1)


def _identity(call: AtenCall) -> LoweringResult:
    """The tensor itself, unless its type changes."""
    x = call.tensors[0]
    to = _result_type(call)
    return (
        x
        if x.dtype == to or to == storage_dtype(x.dtype)
        else [_call_operator("cast", "elementwise", call.out, "_to_copy.default", x, dtype=to)]
    )


def _dropout(call: AtenCall) -> LoweringResult:
    """One that drops while the network is trained."""
    x, p = call.tensors[0], float(call.arguments["p"])
    alone = len(x.shape) in (2, 4) and x.shape == (x.base or x.shape)
    return [AtenStep("dropout", {"p": p}, (x,))] if p and alone and _is_floating_point(call) else _identity(call)


def _pad(call: AtenCall) -> LoweringResult:
    """Padding of an image; one by −∞ becomes part of the poolings that read it (`stretch.network.capture.trace.fold_infinite_padding`)."""
    pads, x = [int(n) for n in call.arguments["pad"]], call.tensors[0]
    if (
        not any(pads)
        or len(x.shape) != 4
        or x.shape != (x.base or x.shape)
        or (call.arguments.get("value") == -inf and not _is_padded_pool(call, pads))
    ):
        return RULES["pad"](call)
    return call_family_rule(call, FUNCTIONS[torch.nn.functional.pad]) or RULES["pad"](call)


def _is_padded_pool(call: AtenCall, pads: Sequence[int]) -> bool:
    """Whether nothing but max pooling that rounds down reads an image, which together pads no more than half of its window."""
    for node in call.node.users:
        if AtenCall(node, {}).operator != "max_pool2d":
            return False
        settings = dict(zip(("window", "stride", "padding", "dilation", "ceil_mode"), node.args[1:], strict=False))
        half, earlier = min(pair(settings["window"])) // 2, max(pair(settings.get("padding") or 0))
        if settings.get("ceil_mode") or max(pads) + earlier > half:
            return False
    return True


def _attention(call: AtenCall) -> LoweringResult:
    """A scaled product, a softmax over it, and a second product, as runtimes without attention compute it."""
    query, key, value = (call.arguments[name] for name in ("query", "key", "value"))
    mask = call.arguments.get("attn_mask")
    floats = not isinstance(mask, AtenValue) or mask.dtype == torch.float32
    if not (query.op and key.op and value.op) or call.arguments.get("is_causal") or call.arguments.get("enable_gqa") or not floats:
        return None
    batch, inner, left, right = prod(query.shape[:-2]), query.shape[-1], query.shape[-2], key.shape[-2]
    scores = (*call.out[:-1], right)
    product = attributes(scores, "matmul", "matmul", (inner, right, batch, 1, left))
    scale = call.arguments.get("scale")
    recorder = CallRecorder()
    calls = (
        Call("mul.Scalar", (recorder(query), float(inner**-0.5 if scale is None else scale))),
        Call("transpose.int", (recorder(key), -2, -1)),
        Call("matmul.default", ({"call": 0}, {"call": 1})),
    )
    steps = [recorder.step(product, calls)]
    if isinstance(mask, AtenValue):
        steps.append(_following_step(scores, "elementwise", "add", lambda recorder, x: [Call("add.Tensor", (x, recorder(mask)))]))
    steps.append(_following_step(scores, "elementwise", "softmax", lambda recorder, x: [Call("softmax.int", (x, -1))]))
    second = attributes(call.out, "matmul", "matmul", (right, value.shape[-1], batch, 1, left))
    steps.append(_following_step(scores, "matmul", "matmul", lambda recorder, x: [Call("matmul.default", (x, recorder(value)))], second))
    return steps


def _following_step(
    reads: Shape, kernel: str, variant: str, calls: Callable[[CallRecorder, Any], list[Call]], attrs: Mapping[str, Attr] | None = None
) -> AtenStep:
    """An opaque operator that reads, before anything else, the one before it in a chain."""
    before = AtenValue("-", reads, dtype=torch.float32)
    recorder = CallRecorder()
    x = recorder(before)
    step = recorder.step(attrs or over_elements(reads, kernel, variant), calls(recorder, x))
    return replace(step, reads=step.reads[1:])


def _operands(call: AtenCall) -> tuple[AtenValue, AtenValue] | None:
    """The two operands of a call, if both are tensors of the network and of one rank."""
    pair = call.arguments["self"], call.arguments["other"]
    tensors = all(isinstance(item, AtenValue) and item.op for item in pair)
    return pair if tensors and len(pair[0].shape) == len(pair[1].shape) else None


def _difference(call: AtenCall) -> LoweringResult:
    """Of two tensors, as the sum of one and the other's negative."""
    pair = _operands(call)
    if pair is None or call.arguments.get("alpha", 1) != 1 or not _is_floating_point(call):
        return RULES["sub"](call)
    return [AtenStep("mul_scalar", {"value": -1.0}, pair[1:]), AtenStep("add", {}, pair[:1])]


def _quotient(call: AtenCall) -> LoweringResult:
    pair = _operands(call)
    return RULES["div"](call) if pair is None or call.arguments.get("rounding_mode") else [AtenStep("div", {}, pair)]


def _with_product(call: AtenCall) -> LoweringResult:
    """A tensor times a factor a channel plus an offset a channel."""
    offset, first, second = (call.arguments[name] for name in ("self", "tensor1", "tensor2"))
    x, factor = (first, second) if first.op else (second, first)
    rank, channels = len(call.out), call.out[1] if len(call.out) > 1 else 0
    fits = [not value.op and value.tensor is not None and value.shape == (1, channels, *[1] * (rank - 2)) for value in (factor, offset)]
    if call.arguments.get("value", 1) != 1 or not x.op or x.shape != call.out or not all(fits) or not _is_floating_point(call) or rank != 4:
        return None
    return [
        AtenStep("scale", {}, (x,), {"weight": factor.tensor.reshape(-1)}),
        AtenStep("shift", {}, (), {"bias": offset.tensor.reshape(-1)}),
    ]


def _recurrent(call: AtenCall) -> LoweringResult:
    """A recurrent layer; three matrices for a layer and direction project its states."""
    matrices = [value for value in call.arguments["params"] if len(value.shape) == 2]
    require_supported(all(a.shape[0] == b.shape[0] for a, b in pairwise(matrices)), "ONNX has no recurrent layer that projects its states")
    return RULES["lstm"](call)


#: Rules of operators that predictions treat differently: there, an operator that no runtime moves is free.
OPERATOR_RULES: dict[str, Callable[[AtenCall], LoweringResult]] = {
    **dict.fromkeys(("permute", "transpose", "t", "swapaxes", "movedim", "numpy_T", "mT", "adjoint"), _permute),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    **dict.fromkeys(("split", "chunk", "split_with_sizes", "unbind", "tensor_split", "unsafe_split", "unsafe_chunk"), _split),
    **dict.fromkeys(("detach", "alias", "contiguous", "clone", "lift_fresh_copy", "to", "_to_copy", "type_as"), _identity),
    **dict.fromkeys(_DROPOUTS - _RECURRENT, _identity),
    **dict.fromkeys(_RECURRENT, _recurrent),
    "dropout": _dropout,
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    # unless bits are read as another type
    "view": lambda call: None if call.overload == "dtype" else RULES["reshape"](call),
    "sub": _difference,
    "div": _quotient,
    "addcmul": _with_product,
    "group_norm": lambda call: call_family_rule(call, FUNCTIONS[torch.nn.functional.group_norm]) if len(call.out) == 4 else None,
    "scaled_dot_product_attention": _attention,
}


#: Make tensors of a given shape, whatever the elements of what they read.
_FILL_OPERATORS = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})


class RunnableLowering(AtenLowering):
    """Lowers one exported graph to operators that are computed, with their weights.

    Args:
        exported: ATen operators; shapes are in ``meta["val"]`` of its nodes.
        tensors: Parameters, buffers and constants, by the name of their node.
    """

    def __init__(self, exported: fx.Graph, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(exported, name)
        self._tensors = tensors
        self._maps = Maps(self._ops, self.weights, self._free_name, self._computed, self.reading, self._name_of)
        #: Products with a softmax between, by the second product, and nodes before it, which wait for it.
        self._chains: dict[fx.Node, list[fx.Node]] = {}
        self._waiting: set[fx.Node] = set()

    def _name_of(self, call: AtenCall) -> str:
        return self._operator_name(call.node, set())

    def _extra_input(self, node: fx.Node) -> AtenValue:
        tensor = self._tensors.get(node.name)
        if tensor is None:
            # who reads it is refused
            return super()._extra_input(node)
        return AtenValue("", tuple(tensor.shape), dtype=tensor.dtype, tensor=tensor, learned=isinstance(tensor, nn.Parameter))

    def _constant(self, call: AtenCall) -> tuple[AtenValue, ...]:
        target: Any = call.node.target
        learned = any(value.learned for value in call.values)
        args, kwargs = fx.node.map_aggregate((call.node.args, call.node.kwargs), self._tensor)
        with torch.no_grad():
            result = target(*args, **kwargs)
        return tuple(
            AtenValue("", tuple(item.shape), dtype=item.dtype, tensor=item, learned=learned and item.is_floating_point())
            for item in (result if isinstance(result, tuple | list) else [result])
        )

    def _tensor(self, argument: Any) -> Any:
        if not isinstance(argument, fx.Node):
            return argument
        value = self._to_values(argument)
        return value.tensor if isinstance(value, AtenValue) else value

    def _apply(self, call: AtenCall) -> tuple[AtenValue, ...]:
        try:
            return (self._fill_value(call),) if call.operator in _FILL_OPERATORS else self._results(call)
        except UnsupportedNode as error:
            raise StretchError(f"cannot capture node `{call.node.name}` of `{self._name}`: {error}") from error

    def _fill_value(self, call: AtenCall) -> AtenValue:
        """A tensor of which only the shape depends on the input, and that is known."""
        target: Any = call.node.target
        args, kwargs = fx.node.map_aggregate((call.node.args, call.node.kwargs), self._shape_tensor)
        built = target(*args, **kwargs)
        return AtenValue("", tuple(built.shape), tensor=built)

    def _shape_tensor(self, argument: Any) -> Any:
        tensor = self._tensor(argument)
        meta = argument.meta.get("val") if isinstance(argument, fx.Node) else None
        return torch.zeros(tuple(meta.shape), dtype=meta.dtype) if isinstance(meta, torch.Tensor) and tensor is None else tensor

    def _lower(self, node: fx.Node) -> None:
        if node in self._waiting:
            return
        chain = self._chains.get(node)
        ahead = chain_of(node) if chain is None else []
        if ahead:
            self._chains[ahead[-1]] = ahead
            self._waiting.update(ahead[:-1])
        elif chain is None:
            super()._lower(node)
        else:
            calls = [AtenCall(item, AtenLowering._call_arguments(self, item), [self._shape(item, item.meta["val"])]) for item in chain]
            with suppress(Unsupported):
                self._values[node] = replace(written_out(self._maps, calls), dtype=node.meta["val"].dtype)
                return
            for item in chain:
                super()._lower(item)

    def _reachable_ops(self, outputs: Sequence[str]) -> list[Op]:
        """Operators that lead to outputs; parts of a tensor that is computed whole anyway are not computed again."""
        while True:
            kept = super()._reachable_ops(outputs)
            needed = {op.name for op in kept}
            twice = [name for name, (whole, _) in self._maps.instead.items() if name in needed and whole in needed]
            for name in twice:
                _, self._ops[name] = self._maps.instead.pop(name)
                self.weights.pop(name, None)
            if not twice:
                return fold_infinite_padding(kept)

    def _finish(self, returned: Sequence[str]) -> OpGraph:
        """The operators that lead to the outputs; the only remaining part of an operator has its name."""
        graph = super()._finish(returned)
        left = [(built, whole) for built, (whole, _) in self._maps.instead.items() if built in graph.by_name and whole not in graph.by_name]
        alone = Counter(whole for _, whole in left)
        names = {built: whole for built, whole in left if alone[whole] == 1}
        self.weights |= {whole: self.weights.pop(built) for built, whole in names.items() if built in self.weights}
        self._returned = {node: names.get(name, name) if name else None for node, name in self._returned.items()}
        named = [
            replace(op, name=names.get(op.name, op.name), inputs=tuple(names.get(item, item) for item in op.inputs)) for op in graph.ops
        ]
        return OpGraph.build(graph.name, named, [names.get(output, output) for output in graph.outputs])

    def reading(self, value: AtenValue) -> str:
        """Name of the operator whose tensor has the value's shape, its elements in their order."""
        value = self._maps.to_plain(value)
        op = self._ops[value.op]
        if value.shape == op.shape[:2] and op.shape[2:] == (1, 1) and not kind_of(op.kind).stated:
            return self._maps.add(f"{op.name}_vector", "flatten", (op.name,), {})
        return super().reading(value)

    def _results(self, call: AtenCall) -> tuple[AtenValue, ...]:
        with suppress(Unsupported):
            built = applied(self._maps, call)
            return (built,) if isinstance(built, AtenValue) else built
        several = isinstance(call.node.meta["val"], tuple | list)
        return self._computed(replace(call, arguments={name: self._to_plain(item) for name, item in call.arguments.items()}), several)

    def _to_plain(self, argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [self._to_plain(item) for item in argument]
        return self._maps.to_plain(argument) if isinstance(argument, AtenValue) else argument

    def _computed(self, call: AtenCall, several: bool = False) -> tuple[AtenValue, ...]:
        require_supported(hasattr(call.node.target, "_schema"), f"`{call.node.target}` is no operator of torch")
        built = runnable_steps(call)
        if isinstance(built, AtenValue | tuple):
            return built if isinstance(built, tuple) else (built,)
        assert built is not None
        indices = [reader.args[1] for reader in call.node.users if reader.users] if several else [0]
        read = {number for number in indices if isinstance(number, int)}
        numbers = sorted(number for number in read if 0 not in call.shapes[number])
        if numbers not in ([], [0]):
            built = [call_step(call, built, numbers)]
        shape = call.shapes[0] if len(numbers) < 2 else ints(built[0].attrs, "shape")
        whole = self._emit(replace(call, shapes=[call.shapes[numbers[0]] if len(numbers) == 1 else shape]), built)
        if whole is None:
            raise UnsupportedNode(f"its shapes {call.shapes} do not fit")
        return tuple(whole if numbers in ([], [number]) else _result_of(whole, call, numbers, number) for number in range(len(call.shapes)))

    def _call_arguments(self, node: fx.Node) -> dict[str, Any]:
        unknown = [all_input_node for all_input_node in node.all_input_nodes if self._source(all_input_node) not in self._values]
        if unknown:
            raise StretchError(f"cannot capture node `{node.name}` of `{self._name}`: it reads `{unknown[0].name}`, which is no tensor")
        return super()._call_arguments(node)


def capture_runnable(module: nn.Module, input_shape: InputShapes | Inputs, name: str, refusal: str = "") -> Captured:
    """The operator graph of a network and its weights, by `torch.export`."""
    arguments = Inputs.of(input_shape, module)
    with evaluation_mode(module):
        program = export(module, arguments, name)
        lowering = RunnableLowering(program.graph, name, _tensors(program))
        outputs = returned_nodes(program)
        graph = lowering.graph(input_placeholders(program, arguments, name), [output for output in outputs if output is not None])
        weights = {op.name: lowering.weights[op.name] for op in graph.ops if op.name in lowering.weights}
        with torch.no_grad():
            want = arguments.call(module, arguments.random())
        returned = _output_structure(want, [None if output is None else lowering.result(output) for output in outputs], name)
        warnings = unused_inputs(returned, [op.name for op in graph.inputs])
        captured = Captured(graph, weights, module, refusal, returned, tuple(warnings))
        _check(captured, arguments, want)
    return captured


def _output_structure(output: Any, results: Sequence[str | None], name: str) -> OutputStructure:
    """Results of a network, each tensor with its operator."""
    held = list(walk_leaves(output))
    need(
        len(held) == len(results),
        f"`{name}` returns a {type(output).__name__} that torch.export sees in another form",
        "let its forward return tensors in tuples, lists and dictionaries",
    )
    returned: list[Any] = []
    for (key, leaf), result in zip(held, results, strict=True):
        if result is not None and isinstance(leaf, torch.Tensor):
            # a network in another precision is planned and computed in float32
            returned.append(Result(result, key, torch.float32 if leaf.is_floating_point() else leaf.dtype))
        else:
            returned.append(leaf.detach() if isinstance(leaf, torch.Tensor) else leaf)
    return OutputStructure(rebuild(output, iter(returned)))


def _tensors(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Parameters, buffers and constants by the names of their nodes."""
    signature = program.graph_signature
    stored: dict[str, Any] = {**program.constants, **program.state_dict}
    named = signature.inputs_to_parameters | signature.inputs_to_buffers | signature.inputs_to_lifted_tensor_constants
    return {node: stored[name] for node, name in named.items() if isinstance(stored.get(name), torch.Tensor)}


def _check(captured: Captured, inputs: Inputs, want: Any) -> None:
    """A captured graph is never silently wrong: it gives what the network gives."""
    results = {result.name for result in captured.returned.results}
    with torch.no_grad():
        values = dict(zip(inputs.shapes, inputs.random(), strict=True))
        left = {name: len(readers) for name, readers in captured.graph.consumers.items()}
        for op in captured.graph.ops:
            if op.kind != "input":
                values[op.name] = _module(captured, op)(*(values[item] for item in op.inputs))
            for item in dict.fromkeys(op.inputs):
                left[item] -= 1
                if not left[item] and item not in results:
                    del values[item]
    need(
        all(is_close(got, expected) for got, expected in differences(values, want, captured.returned)),
        f"`{captured.graph.name}` computes something else when it is exported by torch",
        "its forward must not draw random numbers in evaluation, nor depend on values of its input",
    )


def _module(captured: Captured, op: Op) -> nn.Module:
    """Module that computes an operator, with the network's own weights."""
    with torch.device("meta"):
        module = make_module(op, captured.graph.input_shapes(op)).eval()
    module.load_state_dict(captured.weights.get(op.name, {}), strict=False, assign=True)
    return module
