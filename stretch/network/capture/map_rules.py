"""Effects of ATen operators on tensors whose axes are known: attention, views that cost nothing, and operators on feature maps."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import fx

from predictors.registry import RuleTable
from predictors.shapes import Attr, Shape, number
from stretch.network.capture.aten import AtenCall, AtenValue, einsum_letters
from stretch.network.capture.axes import Axes, Axis, Factor, Unsupported, common_factors, require, require_that
from stretch.network.capture.maps import Maps, broadcast_over
from stretch.operators.products import pointwise as pointwise_attrs

Result = AtenValue | tuple[AtenValue, ...]
Rule = Callable[[Maps, AtenCall], Result]

#: Rules by name of the ATen operator without its overload; they raise `Unsupported` for calls they cannot follow to single channels.
RULES: RuleTable[Rule] = RuleTable()

_rule = RULES.add

#: Products of two tensors.
PRODUCTS = frozenset({"matmul", "bmm", "einsum"})
#: Operators that may be between the first product and the second.
_SCORE_OPERATORS = frozenset(
    {
        *("mul", "div", "add", "sub", "softmax", "_softmax", "_safe_softmax"),
        *("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "permute", "transpose", "expand"),
        *("clone", "contiguous", "detach", "alias", "dropout", "to", "_to_copy", "type_as"),
    }
)
_VIEWS = frozenset({"view", "reshape", "_unsafe_view", "unsqueeze", "squeeze"})
_PERMUTATIONS = frozenset({"permute", "transpose"})
_SOFTMAX = frozenset({"softmax", "_softmax", "_safe_softmax"})

#: Value of masked scores: the most negative number of fp16, for which a softmax gives zeros.
_MASKED = -torch.finfo(torch.float16).max


def operator_of(node: fx.Node) -> str:
    """Return the name of a node's operator as the rules use it; empty if the node is no call."""
    return AtenCall(node, {}).operator if node.op == "call_function" else ""


def chain_of(node: fx.Node) -> list[fx.Node]:
    """Return the chain of sole readers from one product to the next, if a softmax is among them; otherwise an empty list."""
    if operator_of(node) not in PRODUCTS:
        return []
    chain, softened = [node], False
    while len(chain[-1].users) == 1:
        (reader,) = chain[-1].users
        name = operator_of(reader)
        if name in PRODUCTS:
            return [*chain, reader] if softened else []
        if name not in _SCORE_OPERATORS:
            return []
        softened = softened or name in _SOFTMAX
        chain.append(reader)
    return []


@dataclass
class Scores:
    """The product of queries and keys, while its operators are followed."""

    axes: Axes  # Axes of the scores.
    scale: float = 1.0  # Factor of the products.
    factors: torch.Tensor | None = None  # Factors of single heads, in addition to the scale.
    learned: list[torch.Tensor] = field(default_factory=list)  # Learned additions, with the axes of `ADDED`.
    fixed: list[torch.Tensor] = field(default_factory=list)  # Additions that are not learned.
    softened: str = ""  # Kind of axis that the softmax normalises; empty before the softmax.

    def add(self, value: Any, sign: float = 1.0) -> None:
        """Add a constant to the scores."""
        require_that(isinstance(value, AtenValue) and not value.op)
        tensor = require(value.tensor)
        if tensor.dtype == torch.bool:
            tensor = torch.where(tensor, 0.0, _MASKED)
        spread = broadcast_over(tensor, self.axes, ("channel", "pixel", "query", "key"))
        finite = spread.nan_to_num(nan=torch.nan, neginf=_MASKED) if spread.isinf().any() else spread
        (self.learned if value.learned else self.fixed).append(finite if sign == 1 else finite * sign)

    def multiply(self, by: Any) -> None:
        """Multiply the scores by a number, or by one number per head."""
        if isinstance(by, int | float):
            self.scale *= by
            self.learned, self.fixed = [item * by for item in self.learned], [item * by for item in self.fixed]
            return
        require_that(isinstance(by, AtenValue) and not by.op and not self.learned and not self.fixed)
        spread = broadcast_over(require(by.tensor), self.axes, ("channel",))
        self.factors = spread if self.factors is None else self.factors * spread


@dataclass(frozen=True)
class _AttentionOperand:
    """Queries, keys or values: a map, and its axes as leading axes, tokens and channels of a head."""

    op: str
    axes: Axes

    @property
    def leading(self) -> tuple[tuple[Factor, ...], ...]:
        """Axes of images, heads and further groups."""
        return self.axes.axes[:-2]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return prod(factor.size for axis in self.leading for factor in axis if factor.of == "channel")

    @property
    def rows(self) -> int:
        """Number of groups of tokens that attend separately."""
        return prod(factor.size for axis in self.leading for factor in axis if factor.of == "pixel")

    @property
    def tokens(self) -> int:
        """Number of tokens in each group."""
        return prod(factor.size for factor in self.axes.axes[-2])


def _attention_operand(maps: Maps, value: AtenValue, order: Sequence[int]) -> _AttentionOperand:
    """Return a tensor as queries, keys or values, whose tokens are pixels and whose heads are channels."""
    op, axes = maps.gather(maps.value(value.op, require(maps.axes_of(value)).permute(order), value))
    require_that(all(f.of == "pixel" for f in axes.axes[-2]) and all(f.of == "channel" for f in axes.axes[-1]))
    part = _AttentionOperand(op, axes)
    return _AttentionOperand(maps.rearrange(op, axes, (part.rows, part.tokens)), axes.sort_factors())


def _require_same_factors(a: Sequence[Axis], b: Sequence[Axis]) -> None:
    """Raise `Unsupported` unless the leading axes of two operands run over the same things."""
    require_that(len(a) == len(b))
    for left, right in zip(a, b, strict=True):
        require_that(all(x.of == y.of for x, y in common_factors(left, right)))


def _attention(maps: Maps, call: AtenCall, parts: Sequence[_AttentionOperand], scores: Scores) -> tuple[str, Axes]:
    """Add the operator, and return its name and the axes of its result, with the channels of a head last."""
    query, key, value = parts
    _require_same_factors(query.leading, key.leading)
    _require_same_factors(query.leading, value.leading)
    require_that(key.tokens == value.tokens and maps.ops[query.op].shape[1] == maps.ops[key.op].shape[1])
    attrs: dict[str, Attr] = {"heads": query.heads, "keys": key.tokens}
    current: dict[str, torch.Tensor] = {}
    for name, added in (("bias", scores.learned), ("mask", scores.fixed)):
        if added:
            whole = sum(added[1:], added[0])
            attrs[name], current[name] = tuple(whole.shape), whole.detach().to(torch.float32)
    (read, by), (looked, too) = _split_scale(maps, query.op), _split_scale(maps, key.op)
    attrs["scale"] = float(scores.scale) * by * too
    if scores.factors is not None:
        channels = maps.ops[read].shape[1]
        read = maps.add(
            f"{read}_scale", "scale", (read,), {}, {"weight": scores.factors.detach().repeat_interleave(channels // len(scores.factors))}
        )
    # files list the inputs of an operator of several nodes, each tensor once
    require_that(len({read, looked, value.op}) == len(parts))
    attended = maps.add(maps.name_of(call), "attention", (read, looked, value.op), attrs, current)
    width = maps.ops[attended].shape[1] // query.heads
    return attended, Axes((*query.axes.axes[:-1], (Factor("channel", width, 1),))).sort_factors()


def _split_scale(maps: Maps, name: str) -> tuple[str, float]:
    """Return the tensor before a multiplication by a number, and the number."""
    op = maps.ops[name]
    return (op.inputs[0], number(op.attrs, "value")) if op.kind == "mul_scalar" else (name, 1.0)


@_rule("scaled_dot_product_attention")
def _torch_attention(maps: Maps, call: AtenCall) -> Result:
    """Map torch's own attention operator."""
    arguments, mask = call.arguments, call.arguments.get("attn_mask")
    named = [arguments[name] for name in ("query", "key", "value")]
    require_that(all(item.op and len(item.shape) > 2 for item in named))
    require_that(not any(arguments.get(name) for name in ("is_causal", "enable_gqa", "dropout_p")))
    query, key, value = (_attention_operand(maps, item, range(len(item.shape))) for item in named)
    scale = arguments.get("scale")
    scores = Scores(_scores(query, key), float(named[0].shape[-1] ** -0.5 if scale is None else scale))
    if mask is not None:
        scores.add(mask)
    op, axes = _attention(maps, call, (query, key, value), scores)
    return maps.value(op, axes.merge(), named[0])


def _scores(query: _AttentionOperand, key: _AttentionOperand) -> Axes:
    """Return the axes of the scores: leading axes, queries and keys."""
    return Axes((*query.leading, (Factor("query", query.tokens, 1),), (Factor("key", key.tokens, 1),))).sort_factors()


@dataclass(frozen=True)
class _Product:
    """A product of matrices with leading axes, as letters: each operand has one axis of its own, and shares one that is summed over."""

    operands: Sequence[AtenValue]
    letters: Sequence[str]  # Letters of each operand.
    out: str
    leading: str
    summed: str

    def own(self, side: int) -> str:
        """Return the letters that only one operand has."""
        return "".join(letter for letter in self.letters[side] if letter not in self.leading + self.summed)

    def order(self, side: int, *, summed_last: bool) -> list[int]:
        """Return the order of an operand's axes: leading axes first, its own and the summed one last."""
        last = self.own(side) + self.summed if summed_last else self.summed + self.own(side)
        return [self.letters[side].index(letter) for letter in self.leading + last]

    def result_order(self, first: int) -> list[int]:
        """Return the order of the result's axes among leading axes, the first operand's own axis and the other operand's."""
        letters = self.leading + self.own(first) + self.own(1 - first)
        return [letters.index(letter) for letter in self.out]


#: Name of the operator in place of the scores, which no operator computes.
_SCORES = "-"


def _product(call: AtenCall, scores: Axes | None = None) -> _Product:
    """Return the matrix product of a call; an operand that is None represents the scores."""
    arguments = call.arguments
    pair = list(arguments["tensors"]) if "tensors" in arguments else [arguments["self"], arguments.get("other", arguments.get("mat2"))]
    if scores is not None:
        pair = [AtenValue(_SCORES, scores.shape) if value is None else value for value in pair]
    require_that(len(pair) == 2 and all(isinstance(value, AtenValue) and value.op for value in pair))
    if call.operator == "einsum":
        letters, out = einsum_letters(str(arguments["equation"]), pair)
    else:
        rank = len(pair[0].shape)
        require_that(rank == len(pair[1].shape) > 2)
        leading = "abcdefgh"[: rank - 2]
        letters, out = [f"{leading}ij", f"{leading}jk"], f"{leading}ik"
    both = [letter for letter in letters[0] if letter in letters[1]]
    leading, summed = ("".join(letter for letter in source if letter in both) for source in (out, [x for x in both if x not in out]))
    product = _Product(pair, letters, out, leading, summed)
    require_that(len(summed) == len(product.own(0)) == len(product.own(1)) == 1)
    require_that(sorted(out) == sorted(leading + product.own(0) + product.own(1)))
    return product


def written_out(maps: Maps, chain: Sequence[AtenCall]) -> AtenValue:
    """Map attention that is written as two products with a softmax between."""
    product = _product(chain[0])
    left, right = (_attention_operand(maps, value, product.order(side, summed_last=True)) for side, value in enumerate(product.operands))
    _require_same_factors(left.leading, right.leading)
    scores = Scores(_scores(left, right).permute(product.result_order(0)))
    for before, call in pairwise(chain[:-1]):
        _follow_call(scores, call, before.node)
    require_that(bool(scores.softened))
    return _second_product(maps, chain[-1], (left, right), scores)


def _follow_call(scores: Scores, call: AtenCall, before: fx.Node) -> None:
    """Apply the operation of a call to the scores."""
    name, arguments = call.operator, call.arguments
    if name in _VIEWS:
        scores.axes = require(scores.axes.reshape(call.out))
    elif name in _PERMUTATIONS:
        scores.axes = scores.axes.permute(call.order(len(scores.axes.axes)))
    elif name in _SOFTMAX:
        over = scores.axes.axes[int(arguments["dim"]) % len(scores.axes.axes)]
        require_that(len(over) == 1 and over[0].of in ("query", "key") and not scores.softened)
        require_that(over[0].size == prod(f.size for f in scores.axes.factors(over[0].of)))
        scores.softened = over[0].of
    elif name in ("add", "sub", "mul", "div"):
        _apply_constant(scores, call, call.node.args[0] is before)
    else:
        require_that(call.out == scores.axes.shape and not (name == "dropout" and arguments.get("train")))


def _apply_constant(scores: Scores, call: AtenCall, reads_first: bool) -> None:
    """Apply a sum or a product with a constant to the scores."""
    arguments, name = call.arguments, call.operator
    require_that(not scores.softened and call.out == scores.axes.shape and (reads_first or name in ("add", "mul")))
    require_that(arguments.get("alpha", 1) == 1 and not arguments.get("rounding_mode"))
    by = arguments.get("other") if reads_first else arguments["self"]
    if name in ("add", "sub"):
        scores.add(by, 1.0 if name == "add" else -1.0)
    else:
        scores.multiply(by if name == "mul" else 1 / require(by if isinstance(by, int | float) and by != 0 else None))


def _second_product(maps: Maps, call: AtenCall, sides: tuple[_AttentionOperand, _AttentionOperand], scores: Scores) -> AtenValue:
    """Map the product of the softmax's result with the values."""
    product = _product(call, scores.axes)
    sources = [operand.op for operand in product.operands]
    require_that(sources.count(_SCORES) == 1)
    at = sources.index(_SCORES)
    value = product.operands[1 - at]
    # the axis of the softmax shows which operand holds the keys
    asking = "query" if scores.softened == "key" else "key"
    query, key = sides if asking == "query" else sides[::-1]
    permuted = scores.axes.permute(product.order(at, summed_last=True)).axes
    asks, asked = [{factor.of for factor in axis} for axis in permuted[-2:]]
    require_that(asked == {scores.softened} and (asks == {asking} or (not asks and query.tokens == 1)))
    looked = _attention_operand(maps, value, product.order(1 - at, summed_last=False))
    require_that(Axes(permuted[:-2]).sort_factors().axes == permuted[:-2])
    _require_same_factors(permuted[:-2], looked.leading)
    if asking == "key":
        # queries precede keys in the added bias
        added = ([item.transpose(-2, -1) for item in tensors] for tensors in (scores.learned, scores.fixed))
        scores.learned, scores.fixed = added
    op, axes = _attention(maps, call, (query, key, looked), scores)
    # the second product may merge its leading axes differently from the first
    again = Axes((*permuted[:-2], *axes.axes[-2:])).sort_factors()
    return maps.value(op, again.permute(product.result_order(at)).merge(), value)


# Views that cost nothing, and operators on feature maps.


@_rule("view", "reshape", "_unsafe_view", "unflatten", "flatten", "unsqueeze", "squeeze", "view_as", "_reshape_alias", "reshape_as")
def _reshape(maps: Maps, call: AtenCall) -> Result:
    x = call.tensors[0]
    require_that(call.overload != "dtype")
    return maps.value(x.op, require(require(x.axes).reshape(call.out)), x)


@_rule("permute", "transpose", "t", "swapaxes", "movedim", "numpy_T", "mT", "adjoint")
def _permute(maps: Maps, call: AtenCall) -> Result:
    x = call.tensors[0]
    return maps.value(x.op, require(maps.axes_of(x)).permute(call.order(len(x.shape))), x)


@_rule("dropout", "feature_dropout", "native_dropout", "detach", "alias", "contiguous", "clone", "to", "_to_copy", "type_as", "expand")
def _same(maps: Maps, call: AtenCall) -> Result:
    x, built = call.tensors[0], call.node.meta["val"]
    kept = (built[0] if isinstance(built, tuple | list) else built).dtype in (x.dtype, None)
    require_that(x.axes is not None and x.shape == call.out and kept and not call.arguments.get("train"))
    return x


@_rule("split", "chunk", "split_with_sizes", "tensor_split", "unsafe_split", "unsafe_chunk", "unbind")
def _split(maps: Maps, call: AtenCall) -> Result:
    x, dim, unbound = call.tensors[0], call.axis, call.operator == "unbind"
    require_that(not any(0 in shape for shape in call.shapes))
    sizes = [1 if unbound else shape[dim] for shape in call.shapes]
    parts = [_cut(maps, x, dim, sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    return tuple(_drop_axis(maps, part, dim) for part in parts) if unbound else tuple(parts)


@_rule("slice", "narrow")
def _slice(maps: Maps, call: AtenCall) -> Result:
    x, start, step = call.tensors[0], int(call.arguments.get("start") or 0), int(call.arguments.get("step", 1))
    if x.shape == call.out:
        require(x.axes)
        return x
    require_that(0 not in call.out)
    return _cut(maps, x, call.axis, start + (x.shape[call.axis] if start < 0 else 0), call.out[call.axis], step)


@_rule("select")
def _select(maps: Maps, call: AtenCall) -> Result:
    x, dim = call.tensors[0], call.axis
    return _drop_axis(maps, _cut(maps, x, dim, int(call.arguments["index"]) % x.shape[dim], 1), dim)


def _drop_axis(maps: Maps, part: AtenValue, dim: int) -> AtenValue:
    return maps.value(part.op, require(maps.axes_of(part)).drop_axis(dim), part)


def _cut(maps: Maps, x: AtenValue, dim: int, start: int, size: int, step: int = 1) -> AtenValue:
    """Cut a range out of an axis: channels by the axes alone, pixels by an operator."""
    axes = require(maps.axes_of(x))
    if all(factor.of == "channel" for factor in axes.axes[dim]) and axes.axes[dim] and step == 1:
        cut = require(axes.cut(dim, start, size))
        return replace(maps.value(x.op, cut, x), axes=cut)
    return _sampled(maps, x, dim, start, size, step)


def _image(maps: Maps, x: AtenValue) -> tuple[str, Axes, list[int]]:
    """Return a map with one or two tensor axes as its width and height, the tensor's axes, and the indices of the pixel axes."""
    op, axes = maps.gather(x)
    pixel_axes = [i for i, axis in enumerate(axes.axes) if any(factor.of == "pixel" for factor in axis)]
    require_that(1 <= len(pixel_axes) <= 2 and all(factor.of == "pixel" for i in pixel_axes for factor in axes.axes[i]))
    height, width = [1, *(axes.shape[i] for i in pixel_axes)][-2:]
    return maps.rearrange(op, axes, (height, width)), axes, pixel_axes


def _resized(maps: Maps, op: str, axes: Axes, sizes: dict[int, int], like: AtenValue) -> AtenValue:
    """Return a map of another height or width with axes of the new sizes."""
    resized = [(Factor("pixel", sizes[i], 1),) if i in sizes else axis for i, axis in enumerate(axes.axes)]
    return maps.value(op, Axes(tuple(resized)).sort_factors().merge(), like)


def _sampled(maps: Maps, x: AtenValue, dim: int, start: int, size: int, step: int) -> AtenValue:
    op, axes, pixel_axes = _image(maps, x)
    require_that(dim in pixel_axes)
    down = len(pixel_axes) == 2 and dim == pixel_axes[0]
    extent, stop = maps.ops[op].shape[2:], start + (size - 1) * step + 1
    attrs: dict[str, Attr] = {
        "start": (start, 0) if down else (0, start),
        "stop": (stop, extent[1]) if down else (extent[0], stop),
        "step": (step, 1) if down else (1, step),
    }
    return _resized(maps, maps.add(f"{op}_sampled", "subsample", (op,), attrs), axes, {dim: size}, x)


@_rule("roll")
def _roll(maps: Maps, call: AtenCall) -> Result:
    x = call.tensors[0]
    op, axes, pixel_axes = _image(maps, x)
    dims = [int(d) % len(x.shape) for d in call.arguments["dims"] or ()]
    require_that(bool(dims) and all(d in pixel_axes for d in dims))
    shift = [0, 0]
    for d, by in zip(dims, call.arguments["shifts"], strict=True):
        at = pixel_axes.index(d) if len(pixel_axes) == 2 else 1
        shift[at] = (shift[at] + int(by)) % maps.ops[op].shape[2 + at]
    rolled = maps.add(f"{op}_rolled", "roll", (op,), {"shift": tuple(shift)}) if any(shift) else op
    return maps.value(rolled, axes.sort_factors().merge(), x)


@_rule("pad", "constant_pad_nd")
def _pad(maps: Maps, call: AtenCall) -> Result:
    x, pad = call.tensors[0], [int(n) for n in call.arguments["pad"]]
    require_that(x.axes is not None and call.arguments.get("mode", "constant") == "constant" and not call.arguments.get("value"))
    sides = {len(x.shape) - 1 - i: (pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2) if pad[2 * i] or pad[2 * i + 1]}
    if not sides:
        return x
    op, axes, pixel_axes = _image(maps, x)
    require_that(all(d in pixel_axes for d in sides) and min(pad) >= 0)
    (top, bottom), (left, right) = [(0, 0), *(sides.get(d, (0, 0)) for d in pixel_axes)][-2:]
    padded = maps.add(f"{op}_padded", "pad", (op,), {"padding": (top, left, bottom, right)})
    return _resized(maps, padded, axes, {d: x.shape[d] + sum(sides[d]) for d in sides}, x)


@_rule("cat", "concat", "concatenate")
def _concat(maps: Maps, call: AtenCall) -> Result:
    """Map a concatenation of channels."""
    parts, dim = list(call.arguments.get("tensors") or ()), call.axis
    require_that(all(isinstance(part, AtenValue) and part.op for part in parts) and any(part.axes is not None for part in parts))
    op, axes = maps.gather(parts[0])
    joined = [_concat_operand(maps, part, op, axes, dim) for part in parts]
    whole = maps.add(f"{op}_joined", "concat", joined, {}) if len(joined) > 1 else joined[0]
    joined_axes = Axes((*axes.axes[:dim], (Factor("channel", maps.ops[whole].shape[1], 1),), *axes.axes[dim + 1 :]))
    return maps.value(whole, joined_axes, parts[0])


def _concat_operand(maps: Maps, part: AtenValue, op: str, axes: Axes, dim: int) -> str:
    """Return the map of a tensor whose axis `dim` runs over all channels, with its pixels in the order of another map."""
    gathered, part_axes = maps.gather(part)
    gathered_shape, op_shape = maps.ops[gathered].shape, maps.ops[op].shape
    require_that(all(f.of == "channel" for f in part_axes.axes[dim]) and prod(f.size for f in part_axes.axes[dim]) == gathered_shape[1])
    with suppress(Unsupported):
        return maps.align(part, op, Axes((*axes.axes[:dim], part_axes.axes[dim], *axes.axes[dim + 1 :])))
    require_that(part_axes.drop_axis(dim).axes == axes.drop_axis(dim).axes and gathered_shape[2:] == op_shape[2:])
    return gathered


@_rule("linear")
def _linear(maps: Maps, call: AtenCall) -> Result:
    weight, bias = require(call.constant("weight")), call.arguments["bias"]
    require_that(bias is None or not bias.op)
    return _projected(maps, call, "input", require(weight.tensor), None if bias is None else bias.tensor)


@_rule("addmm")
def _addmm(maps: Maps, call: AtenCall) -> Result:
    weight, bias = require(call.constant("mat2")), require(call.constant("self"))
    require_that(len(bias.shape) == 1 and all(call.arguments.get(factor, 1) == 1 for factor in ("alpha", "beta")))
    return _projected(maps, call, "mat1", require(weight.tensor).t(), bias.tensor)


@_rule(*PRODUCTS, "mm")
def _projected_by_matrix(maps: Maps, call: AtenCall) -> Result:
    """Map a product with a constant matrix."""
    weight = require(call.constant("mat2") or call.constant("other"))
    require_that(len(weight.shape) == 2)
    return _projected(maps, call, "self", require(weight.tensor).t(), None)


def _projected(maps: Maps, call: AtenCall, name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> Result:
    """Map a linear layer over the channels of every pixel to a 1×1 convolution."""
    x = require(call.tensor(name))
    require_that(weight.dtype == torch.float32 and (x.axes is not None or len(x.shape) > 2))
    op, axes = maps.channels_last(x)
    projected = {"weight": weight[:, :, None, None]} | ({} if bias is None else {"bias": bias})
    conv = maps.add(maps.name_of(call), "conv", (op,), pointwise_attrs(len(weight), bias is not None), projected)
    return maps.value(conv, Axes((*axes.axes[:-1], (Factor("channel", len(weight), 1),))).merge(), x)


@_rule("layer_norm")
def _layer_norm(maps: Maps, call: AtenCall) -> Result:
    x, weight, bias = call.tensors[0], call.arguments.get("weight"), call.arguments.get("bias")
    require_that(tuple(call.arguments["normalized_shape"]) == (x.shape[-1],) and (weight is not None or bias is None))
    vector = x.axes is None and len(x.shape) == 2
    op, axes = (maps.reading(x), None) if vector else maps.channels_last(x)
    layer_norm = {}
    if weight is not None:
        layer_norm = {"weight": weight.tensor, "bias": torch.zeros_like(weight.tensor) if bias is None else bias.tensor}
    attrs: dict[str, Attr] = {"eps": float(call.arguments["eps"]), "affine": weight is not None}
    norm = maps.add(maps.name_of(call), "layer_norm", (op,), attrs, layer_norm)
    return AtenValue(norm, x.shape) if axes is None else maps.value(norm, axes, x)


@_rule("batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(maps: Maps, call: AtenCall) -> Result:
    """Map a batch norm of tokens that are in one row and whose second axis is the channels."""
    x = call.tensors[0]
    require_that(x.axes is not None and len(x.shape) > 1)
    op, axes = maps.gather(x)
    require_that(axes.axes[1] == (Factor("channel", maps.ops[op].shape[1], 1),))
    return maps.value(_on_maps(maps, call, {id(x): op}, op), axes, x)


@_rule("mean")
def _mean(maps: Maps, call: AtenCall) -> Result:
    """Map a mean: over all pixels it is global pooling; over the channels of each pixel it leaves one channel."""
    return _reduced(maps, call, "global_avg_pool", "channel_mean")


@_rule("linalg_vector_norm", "norm")
def _norm(maps: Maps, call: AtenCall) -> Result:
    """Map an L2 norm over all pixels of each channel."""
    require_that(call.arguments.get("ord", call.arguments.get("p")) == 2)
    return _reduced(maps, call, "global_l2_norm", "")


def _reduced(maps: Maps, call: AtenCall, over_pixels: str, over_channels: str) -> Result:
    x, dims, keep = call.tensors[0], call.arguments.get("dim"), bool(call.arguments.get("keepdim"))
    over = sorted(int(d) % len(x.shape) for d in ([dims] if isinstance(dims, int) else dims or ()))
    op, axes = maps.gather(x)
    require_that(bool(over) and call.arguments.get("dtype") is None)
    reduced = [factor.of for d in over for factor in axes.axes[d]]
    require_that(reduced in (["pixel"] * len(axes.factors("pixel")), ["channel"] * len(axes.factors("channel"))) and bool(reduced))
    remaining = Axes(tuple(() if i in over else axis for i, axis in enumerate(axes.axes) if keep or i not in over))
    if reduced[0] == "channel":
        require_that(keep and bool(over_channels))
        return maps.value(maps.add(maps.name_of(call), over_channels, (op,), {}), remaining, x)
    vector = remaining.shape == maps.ops[op].shape[:2]
    pooled = maps.add(maps.name_of(call), over_pixels, (op,), {"keepdims": not vector})
    return AtenValue(pooled, maps.ops[pooled].shape) if vector else maps.value(pooled, remaining, x)


def elementwise(maps: Maps, call: AtenCall) -> Result:
    """Keep the axes of an elementwise operator, which computes the same in any order of elements."""
    leader = require(next((value for value in call.tensors if value.axes is not None and value.shape == call.out), None))
    op, axes = maps.gather(leader)
    operands = {id(value): _align_operand(maps, value, op, axes, call.out) for value in call.values}
    return maps.value(_on_maps(maps, call, operands, op), axes, leader)


def _align_operand(maps: Maps, value: AtenValue, op: str, axes: Axes, out: Shape) -> str | AtenValue:
    """Align a tensor with a map, or reshape it so that it broadcasts to the map."""
    if not value.op:
        spread = broadcast_over(require(value.tensor), axes, ("channel", "pixel"))
        channels, pixels = spread.shape
        height, width = maps.ops[op].shape[2:] if pixels > 1 else (1, 1)
        tensor = spread.reshape(1, channels, height, width)
        return replace(value, shape=tuple(tensor.shape), tensor=tensor)
    if value.shape == out:
        return maps.align(value, op, axes)
    current, seen_axes = maps.gather(value)
    padded = (*[()] * (len(axes.axes) - len(seen_axes.axes)), *seen_axes.axes)
    require_that(all(not factor or factor == expected for factor, expected in zip(padded, axes.axes, strict=True)))
    read_shape, op_shape = maps.ops[current].shape, maps.ops[op].shape
    require_that(read_shape[1] in (1, op_shape[1]) and read_shape[2:] in ((1, 1), op_shape[2:]))
    return current


def _on_maps(maps: Maps, call: AtenCall, operands: Mapping[int, str | AtenValue], op: str) -> str:
    """Return the name of the operator that computes a call on maps in place of their views."""

    def placed(argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [placed(item) for item in argument]
        operand = operands.get(id(argument))
        if isinstance(operand, str):
            return AtenValue(operand, maps.ops[operand].shape, dtype=argument.dtype)
        return argument if operand is None else operand

    on_maps = {name: placed(argument) for name, argument in call.arguments.items()}
    value = maps.compute(AtenCall(call.node, on_maps, [maps.ops[op].shape]))[0]
    require_that(bool(value.op) and maps.ops[value.op].shape == maps.ops[op].shape)
    return value.op


#: Elementwise operators that torch does not tag as such.
_POINTWISE = frozenset({"hardswish", "hardsigmoid", "hardtanh", "relu6", "selu", "celu", "softplus", "log_sigmoid", "elu", "mish"})


def applied(maps: Maps, call: AtenCall) -> Result:
    """Map a call of tensors with known axes; raise `Unsupported` if no rule covers it or it reorders elements in another way."""
    rule = RULES.get(call.operator)
    if rule is not None:
        return rule(maps, call)
    require_that(call.operator in _POINTWISE or torch.Tag.pointwise in getattr(call.node.target, "tags", ()))
    return elementwise(maps, call)
