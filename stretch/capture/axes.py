"""What ATen operators do to tensors whose axes are known: attention, views that cost nothing, and operators on feature maps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import fx

from predictors.registry import RuleTable
from predictors.shapes import Attr, Shape, number
from stretch.capture.aten import AtenCall, AtenValue, Axes, Factor, common
from stretch.capture.maps import Maps, spread
from stretch.operators.products import pointwise as pointwise_attrs

#: Products of two tensors.
PRODUCTS = frozenset({"matmul", "bmm", "einsum"})
#: What may stand between the first product and the second.
_BETWEEN = frozenset(
    {
        *("mul", "div", "add", "sub", "softmax", "_softmax", "_safe_softmax"),
        *("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "permute", "transpose", "expand"),
        *("clone", "contiguous", "detach", "alias", "dropout", "to", "_to_copy", "type_as"),
    }
)
_SEEN = frozenset({"view", "reshape", "_unsafe_view", "unsqueeze", "squeeze"})
_MOVED = frozenset({"permute", "transpose"})
_SOFTMAX = frozenset({"softmax", "_softmax", "_safe_softmax"})

#: Stands for what must not be looked at: the most negative number of fp16, behind which a softmax gives zeros.
_NOTHING = -torch.finfo(torch.float16).max


def operator_of(node: fx.Node) -> str:
    """Name of an operator, as rules know it."""
    return AtenCall(node, {}).operator if node.op == "call_function" else ""


def chain_of(node: fx.Node) -> list[fx.Node]:
    """A product, what alone reads it and so on, up to the second product, with a softmax among them; nothing if there is none."""
    if operator_of(node) not in PRODUCTS:
        return []
    chain, softened = [node], False
    while len(chain[-1].users) == 1:
        (reader,) = chain[-1].users
        name = operator_of(reader)
        if name in PRODUCTS:
            return [*chain, reader] if softened else []
        if name not in _BETWEEN:
            return []
        softened = softened or name in _SOFTMAX
        chain.append(reader)
    return []


@dataclass
class Scores:
    """What queries and keys make of each other, while it is followed."""

    axes: Axes  # Of the scores.
    scale: float = 1.0  # Of the products.
    factors: torch.Tensor | None = None  # Of single heads, beside the scale.
    learned: list[torch.Tensor] = field(default_factory=list)  # What is added and learned, with the axes of `ADDED`.
    fixed: list[torch.Tensor] = field(default_factory=list)  # What is added and not learned.
    softened: str = ""  # What the softmax goes over, once there was one.

    def add(self, value: AtenValue, sign: float = 1.0) -> bool:
        """Add a constant; False if it is none that is added to scores."""
        if value.op or value.tensor is None:
            return False
        tensor = value.tensor
        if tensor.dtype == torch.bool:
            tensor = torch.where(tensor, 0.0, _NOTHING)
        seen = spread(tensor, self.axes, ("channel", "pixel", "query", "key"))
        if seen is None:
            return False
        finite = seen.nan_to_num(nan=torch.nan, neginf=_NOTHING) if seen.isinf().any() else seen
        (self.learned if value.learned else self.fixed).append(finite if sign == 1 else finite * sign)
        return True

    def multiply(self, by: Any) -> bool:
        """Multiply by a number, or by one for each head; False if it is something else."""
        if isinstance(by, int | float):
            self.scale *= by
            self.learned, self.fixed = [item * by for item in self.learned], [item * by for item in self.fixed]
            return True
        if not isinstance(by, AtenValue) or by.op or by.tensor is None or self.learned or self.fixed:
            return False
        seen = spread(by.tensor, self.axes, ("channel",))
        if seen is None:
            return False
        self.factors = seen if self.factors is None else self.factors * seen
        return True


@dataclass(frozen=True)
class _AttentionOperand:
    """Queries, keys or values: a map, and its axes as leading ones, tokens and channels of a head."""

    op: str
    axes: Axes

    @property
    def leading(self) -> tuple[tuple[Factor, ...], ...]:
        """Axes of images, heads and what is looked at apart."""
        return self.axes.axes[:-2]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return prod(factor.size for axis in self.leading for factor in axis if factor.of == "channel")

    @property
    def rows(self) -> int:
        """What is looked at apart."""
        return prod(factor.size for axis in self.leading for factor in axis if factor.of == "pixel")

    @property
    def tokens(self) -> int:
        """What is looked at together."""
        return prod(factor.size for factor in self.axes.axes[-2])


def _part(maps: Maps, value: AtenValue, order: Sequence[int]) -> _AttentionOperand | None:
    """A tensor as queries, keys or values; None if tokens are not pixels, or heads not channels."""
    axes = maps.axes_of(value)
    result = None if axes is None else maps.gathered(maps.value(value.op, axes.permuted(order), value))
    if result is None:
        return None
    op, axes = result
    if any(f.of != "pixel" for f in axes.axes[-2]) or any(f.of != "channel" for f in axes.axes[-1]):
        return None
    part = _AttentionOperand(op, axes)
    arranged = maps.arranged(op, axes, (part.rows, part.tokens))
    return None if arranged is None else _AttentionOperand(arranged, axes.in_order())


def _alike(a: _AttentionOperand, b: _AttentionOperand) -> bool:
    """Whether the leading axes of two parts run over the same."""
    if len(a.leading) != len(b.leading):
        return False
    for mine, theirs in zip(a.leading, b.leading, strict=True):
        pairs = common(mine, theirs)
        if pairs is None or any(x.of != y.of for x, y in pairs):
            return False
    return True


def _attention(maps: Maps, call: AtenCall, parts: Sequence[_AttentionOperand], scores: Scores) -> tuple[str, Axes] | None:
    """The operator, and the axes of its result with the channels of a head last."""
    query, key, value = parts
    if not (_alike(query, key) and _alike(query, value)) or key.tokens != value.tokens:
        return None
    if maps.ops[query.op].shape[1] != maps.ops[key.op].shape[1]:
        return None
    attrs: dict[str, Attr] = {"heads": query.heads, "keys": key.tokens}
    current: dict[str, torch.Tensor] = {}
    for name, added in (("bias", scores.learned), ("mask", scores.fixed)):
        if added:
            whole = sum(added[1:], added[0])
            attrs[name], current[name] = tuple(whole.shape), whole.detach().to(torch.float32)
    (read, by), (looked, too) = _unscaled(maps, query.op), _unscaled(maps, key.op)
    attrs["scale"] = float(scores.scale) * by * too
    if scores.factors is not None:
        channels = maps.ops[read].shape[1]
        read = maps.add(
            f"{read}_scale", "scale", (read,), {}, {"weight": scores.factors.detach().repeat_interleave(channels // len(scores.factors))}
        )
    if len({read, looked, value.op}) < len(parts):
        # files tell what an operator of several nodes reads, each tensor once
        return None
    attended = maps.add(maps.name_of(call), "attention", (read, looked, value.op), attrs, current)
    width = maps.ops[attended].shape[1] // query.heads
    return attended, Axes((*query.axes.axes[:-1], (Factor("channel", width, 1),))).in_order()


def _unscaled(maps: Maps, name: str) -> tuple[str, float]:
    """What is multiplied by a number, and the number."""
    op = maps.ops[name]
    return (op.inputs[0], number(op.attrs, "value")) if op.kind == "mul_scalar" else (name, 1.0)


def attention(maps: Maps, call: AtenCall) -> AtenValue | None:
    """Torch's own attention."""
    arguments, mask = call.arguments, call.arguments.get("attn_mask")
    named = [arguments[name] for name in ("query", "key", "value")]
    if (
        any(not item.op or len(item.shape) < 3 for item in named)
        or arguments.get("is_causal")
        or arguments.get("enable_gqa")
        or arguments.get("dropout_p")
    ):
        return None
    parts = [_part(maps, item, range(len(item.shape))) for item in named]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    scale = arguments.get("scale")
    scores = Scores(_scores(known[0], known[1]), float(named[0].shape[-1] ** -0.5 if scale is None else scale))
    if mask is not None and not scores.add(mask):
        return None
    built = _attention(maps, call, known, scores)
    return None if built is None else maps.value(built[0], built[1].merged(), named[0])


def _scores(query: _AttentionOperand, key: _AttentionOperand) -> Axes:
    """Axes of leading ones, queries and keys."""
    return Axes((*query.leading, (Factor("query", query.tokens, 1),), (Factor("key", key.tokens, 1),))).in_order()


@dataclass(frozen=True)
class _Product:
    """A product of two tensors, as letters of their axes: some lead, one is summed over, one is of each alone."""

    first: str
    second: str
    out: str

    @property
    def summed(self) -> str:
        """What is summed over."""
        return "".join(letter for letter in self.first if letter in self.second and letter not in self.out)

    @property
    def leading(self) -> str:
        """What both have."""
        return "".join(letter for letter in self.out if letter in self.first and letter in self.second)

    def alone(self, operand: str) -> str:
        """What one operand has alone."""
        return "".join(letter for letter in operand if letter not in self.leading and letter not in self.summed)

    @property
    def plain(self) -> bool:
        """Whether it is a product of matrices with leading axes."""
        alone = [self.alone(operand) for operand in (self.first, self.second)]
        return len(self.summed) == 1 and all(len(item) == 1 for item in alone) and sorted(self.out) == sorted(self.leading + "".join(alone))


def _product(call: AtenCall) -> tuple[_Product, Any, Any] | None:
    """The letters of a product and its operands."""
    if call.operator == "einsum":
        equation = str(call.arguments["equation"]).replace(" ", "")
        operands = list(call.arguments["tensors"])
        if len(operands) != 2 or "." in equation or "->" not in equation:
            return None
        (first, second), out = equation.split("->")[0].split(","), equation.split("->")[1]
        product, pair = _Product(first, second, out), (operands[0], operands[1])
    else:
        names = ("self", "other") if "other" in call.arguments else ("self", "mat2")
        pair = (call.arguments[names[0]], call.arguments[names[1]])
        ranks = [len(item.shape) for item in pair if isinstance(item, AtenValue)]
        if len(set(ranks)) != 1 or len(ranks) < 2 or ranks[0] < 3:
            return None
        leading = "abcdefgh"[: ranks[0] - 2]
        product = _Product(f"{leading}ij", f"{leading}jk", f"{leading}ik")
    return (product, *pair) if product.plain and all(isinstance(item, AtenValue) for item in pair) else None


def written_out(maps: Maps, chain: Sequence[AtenCall]) -> AtenValue | None:
    """Attention as products with a softmax between."""
    result = _product(chain[0])
    if result is None or not all(item.op for item in result[1:]):
        return None
    product, a, b = result
    orders = [
        [letters.index(x) for x in product.leading + product.alone(letters) + product.summed] for letters in (product.first, product.second)
    ]
    parts = [_part(maps, value, order) for value, order in zip((a, b), orders, strict=True)]
    left, right = parts
    if left is None or right is None or not _alike(left, right):
        return None
    letters = product.leading + product.alone(product.first) + product.alone(product.second)
    scores = Scores(_scores(left, right).permuted([letters.index(x) for x in product.out]))
    before = chain[0].node
    for call in chain[1:-1]:
        if not _followed(scores, call, before):
            return None
        before = call.node
    if not scores.softened:
        return None
    return _second(maps, chain[-1], before, (left, right), scores)


def _followed(scores: Scores, call: AtenCall, before: fx.Node) -> bool:
    """Whether what is done to scores is understood; they are changed by it."""
    name, arguments = call.operator, call.arguments
    if name in _SEEN:
        axes = scores.axes.reshaped(call.out)
        scores.axes = axes or scores.axes
        return axes is not None
    if name in _MOVED:
        scores.axes = scores.axes.permuted(call.order(len(scores.axes.axes)))
        return True
    if name in _SOFTMAX:
        over = scores.axes.axes[int(arguments["dim"]) % len(scores.axes.axes)]
        sides = {factor.of for factor in over}
        whole = len(over) == 1 and sides <= {"query", "key"} and over[0].size == prod(f.size for f in scores.axes.factors(over[0].of))
        scores.softened = over[0].of if whole and not scores.softened else ""
        return bool(scores.softened)
    if name in ("add", "sub", "mul", "div"):
        return not scores.softened and _changed(scores, call, before)
    return call.out == scores.axes.shape and not (name == "dropout" and arguments.get("train"))


def _changed(scores: Scores, call: AtenCall, before: fx.Node) -> bool:
    """Whether a sum or a product with scores is one with a constant."""
    first, other, name = call.arguments["self"], call.arguments.get("other"), call.operator
    reads_first = call.node.args[0] is before
    if call.arguments.get("alpha", 1) != 1 or call.arguments.get("rounding_mode") or call.out != scores.axes.shape:
        return False
    if not reads_first and name in ("sub", "div"):
        return False
    by = other if reads_first else first
    if name in ("add", "sub"):
        return isinstance(by, AtenValue) and scores.add(by, 1.0 if name == "add" else -1.0)
    if name == "div":
        return isinstance(by, int | float) and by != 0 and scores.multiply(1 / by)
    return scores.multiply(by)


def _second(
    maps: Maps, call: AtenCall, before: fx.Node, sides: tuple[_AttentionOperand, _AttentionOperand], scores: Scores
) -> AtenValue | None:
    """The product of the shares with values."""
    stand_in = replace(call.values[0], op="-", shape=scores.axes.shape)
    args = dict(call.arguments)
    flat = [list(args["tensors"])] if "tensors" in args else []
    named = ("self", "other") if "other" in args else ("self", "mat2")
    nodes = list(call.node.args[1]) if flat else list(call.node.args[:2])  # type: ignore[arg-type]
    values = flat[0] if flat else [args[name] for name in named]
    at = next((i for i, node in enumerate(nodes) if node is before), None)
    if at is None:
        return None
    values[at] = stand_in
    args = {**args, "tensors": values} if flat else {**args, **dict(zip(named, values, strict=True))}
    result = _product(AtenCall(call.node, args, call.shapes))
    if result is None:
        return None
    product, *operands = result
    value = operands[1 - at]
    mine, theirs = (product.first, product.second) if at == 0 else (product.second, product.first)
    if not isinstance(value, AtenValue) or not value.op:
        return None
    # the softmax says which side is looked at
    query, key = sides if scores.softened == "key" else (sides[1], sides[0])
    request = "query" if scores.softened == "key" else "key"
    order = [mine.index(x) for x in product.leading + product.alone(mine) + product.summed]
    seen = scores.axes.permuted(order).axes
    ends = [{factor.of for factor in axis} for axis in seen[-2:]]
    if ends != [{request}, {scores.softened}] and not (ends[0] == set() and query.tokens == 1 and ends[1] == {scores.softened}):
        return None
    looked = _part(maps, value, [theirs.index(x) for x in product.leading + product.summed + product.alone(theirs)])
    if Axes(seen[:-2]).in_order().axes != seen[:-2]:
        return None
    second = (
        None if looked is None or not _leads(seen[:-2], looked) else _attention(maps, call, (query, key, looked), _turned(scores, request))
    )
    if second is None:
        return None
    op, axes = second
    # leading axes of the second product may be merged otherwise than those of the first
    again = Axes((*seen[:-2], *axes.axes[-2:])).in_order()
    letters = product.leading + product.alone(mine) + product.alone(theirs)
    return maps.value(op, again.permuted([letters.index(x) for x in product.out]).merged(), value)


def _leads(leading: Sequence[tuple[Factor, ...]], part: _AttentionOperand) -> bool:
    """Whether leading axes of scores run over what those of values do."""
    if len(leading) != len(part.leading):
        return False
    pairs = [common(a, b) for a, b in zip(leading, part.leading, strict=True)]
    return all(pair is not None and all(x.of == y.of for x, y in pair) for pair in pairs)


def _turned(scores: Scores, name: str) -> Scores:
    """With queries before keys in what is added."""
    if name == "query":
        return scores
    turn = [[item.transpose(-2, -1) for item in added] for added in (scores.learned, scores.fixed)]
    return replace(scores, learned=turn[0], fixed=turn[1])


# What ATen operators do to tensors whose axes are known: views that cost nothing, and operators on feature maps.


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
