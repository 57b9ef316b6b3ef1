"""Attention in exported networks, whether torch's own or written out: two products with a softmax between them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import fx

from predictors.shapes import Attr, number
from stretch.capture.aten_call import AtenCall, AtenValue
from stretch.capture.axes.maps import Maps, spread
from stretch.capture.factors import Axes, Factor, common

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
