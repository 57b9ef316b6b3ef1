"""Products of matrices."""

import math
from collections.abc import Mapping

from scheduler.formats.onnx.shapes.node import REALS, Cost, Rule, ShapeNode, broadcast, gives, need


def _matmul(node: ShapeNode) -> Cost:
    need(len(node.inputs) == 2, f"it has {len(node.inputs)} inputs")
    left, right = node.tensors(REALS)
    need(bool(left.shape and right.shape), "one of its inputs is a single number")
    rows, columns = left.shape[-2:-1], right.shape[-1:] if len(right.shape) > 1 else ()
    inner = right.shape[-2] if columns else right.shape[0]
    need(left.shape[-1] == inner, f"{left.shape[-1]} columns meet {inner} rows")
    shape = (*broadcast([left.shape[:-2], right.shape[:-2]]), *rows, *columns)
    return gives(shape, math.prod(shape) * inner, left.type)


def _gemm(node: ShapeNode) -> Cost:
    left, right = node.tensor(0, REALS), node.tensor(1, REALS)
    a, b = left.shape, right.shape
    need(len(a) == len(b) == 2, f"its inputs have the shapes {list(a)} and {list(b)}")
    a = a[::-1] if node.whole("transA", 0) else a
    b = b[::-1] if node.whole("transB", 0) else b
    need(a[1] == b[0], f"{a[1]} columns meet {b[0]} rows")
    shape = (a[0], b[1])
    bias = node.optional(2)
    need(bias is None or broadcast([shape, bias.shape]) == shape, "its bias does not fit its result")
    return gives(shape, a[0] * a[1] * b[1], left.type)


def _einsum(node: ShapeNode) -> Cost:
    """Two tensors, each letter once in each, and the letters of the result stated."""
    equation = node.word("equation", "").replace(" ", "")
    need(len(node.inputs) == 2, f"it has {len(node.inputs)} inputs, two are allowed")
    read, arrow, result = equation.partition("->")
    terms = read.split(",")
    plain = all(term.isascii() and (term.isalpha() or not term) and len(set(term)) == len(term) for term in (*terms, result))
    need(bool(arrow) and len(terms) == 2 and plain, f"its equation is `{equation[:60]}`; write it as products of matrices")
    sizes: dict[str, int] = {}
    for letters, tensor in zip(terms, node.tensors(REALS), strict=True):
        need(len(letters) == len(tensor.shape), f"its equation is `{equation[:60]}` for an input of {len(tensor.shape)} axes")
        for letter, size in zip(letters, tensor.shape, strict=True):
            need(sizes.setdefault(letter, size) == size, f"its axis `{letter}` has two sizes")
    need(set(result) <= sizes.keys(), f"its equation is `{equation[:60]}`")
    return gives([sizes[letter] for letter in result], math.prod(sizes.values()), node.tensor(0).type)


RULES: Mapping[str, Rule] = {"Einsum": _einsum, "Gemm": _gemm, "MatMul": _matmul}
