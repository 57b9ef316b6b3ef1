"""Attention in torch and ONNX."""

import torch
from torch import nn

from predictors.graph import Op
from predictors.operators.attention import ADDED
from predictors.shapes import Attr, Attrs, Shape, integer, ints, number
from stretch.operators.capturing import Step, UnsupportedNode, modules
from stretch.operators.formats.onnx import OnnxWriter
from stretch.operators.lowerings import register


class Attention(nn.Module):
    """Attention among the pixels of a row, for each head: softmax(scale · qᵀk + bias + mask) applied to the values.

    Args:
        keys: Number of keys.
        bias: Shape of a learned tensor that is added to the scores, heads×G×T×T over rows, queries and keys; None for no bias.
        mask: Shape of an added tensor that is not learned; None for no mask.
    """

    mask: torch.Tensor | None

    def __init__(self, heads: int, keys: int, scale: float, bias: Shape | None = None, mask: Shape | None = None) -> None:
        super().__init__()
        self.heads, self.keys, self.scale = heads, keys, scale
        self.bias = None if bias is None else nn.Parameter(torch.zeros(bias))
        self.register_buffer("mask", None if mask is None else torch.zeros(mask))

    def extra_repr(self) -> str:
        """Return the number of heads and the scale."""
        return f"heads={self.heads}, scale={self.scale:g}"

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the attended values (N×C×G×T) for queries, keys and values of the form N×C×G×T; C is a multiple of the heads."""
        q, k, v = (tensor.unflatten(1, (self.heads, -1)).permute(0, 1, 3, 4, 2) for tensor in (query, key, value))
        added = self.mask if self.bias is None else self.bias if self.mask is None else self.bias + self.mask
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=self.scale)
        return attended.permute(0, 1, 4, 2, 3).flatten(1, 2)


@modules("Attention")
def _module(m: nn.Module, shape: Shape) -> Step:
    if not isinstance(m, Attention):
        raise UnsupportedNode("it is the attention of another package")
    added = {key: tensor for key in ADDED if (tensor := getattr(m, key)) is not None}
    shapes: dict[str, Attr] = {key: tuple(tensor.shape) for key, tensor in added.items()}
    return Step("attention", {"heads": m.heads, "keys": m.keys, "scale": m.scale, **shapes}, weights=added)


def _make(ins: list[Shape], a: Attrs) -> nn.Module:
    bias, mask = (ints(a, key) if key in a else None for key in ADDED)
    return Attention(integer(a, "heads"), integer(a, "keys"), number(a, "scale"), bias, mask)


def _onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    """Write two products with a softmax between."""
    heads, keys = integer(op.attrs, "heads"), integer(op.attrs, "keys")
    n, _, rows, tokens = op.shape
    name = op.name
    # queries become N×heads×G×T×D, keys N×heads×G×D×T, values N×heads×G×T×D
    parts = (("query", tokens, [0, 1, 3, 4, 2]), ("key", keys, [0, 1, 3, 2, 4]), ("value", keys, [0, 1, 3, 4, 2]))
    for tensor, (part, count, order) in zip(ins, parts, strict=True):
        sizes = w.indices(op, f"{part}.sizes", [n, heads, -1, rows, count])
        w.node("Reshape", op, [tensor, sizes], output=f"{name}.{part}.heads")
        w.node("Transpose", op, [f"{name}.{part}.heads"], output=f"{name}.{part}", perm=order)
    w.node("Mul", op, [f"{name}.query", w.number(op, "scale", number(op.attrs, "scale"))], output=f"{name}.scaled")
    w.node("MatMul", op, [f"{name}.scaled", f"{name}.key"], output=f"{name}.scores")
    scores = f"{name}.scores"
    for key in ADDED:
        if key in op.attrs:
            w.node("Add", op, [scores, w.weight(op, key)], output=f"{name}.with_{key}")
            scores = f"{name}.with_{key}"
    w.node("Softmax", op, [scores], output=f"{name}.shares", axis=-1)
    w.node("MatMul", op, [f"{name}.shares", f"{name}.value"], output=f"{name}.seen")
    w.node("Transpose", op, [f"{name}.seen"], output=f"{name}.last", perm=[0, 1, 4, 2, 3])
    w.node("Reshape", op, [f"{name}.last", w.indices(op, "sizes", op.shape)])


register("attention", _make, _onnx, stored=ADDED)
