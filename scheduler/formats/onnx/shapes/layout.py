"""Operators that keep all elements and give them another shape or order."""

import math
from collections.abc import Mapping

from scheduler.formats.onnx.shapes.node import MAX_RANK, Cost, Rule, ShapeNode, distinct, gives, moved, need


def _flatten(node: ShapeNode) -> Cost:
    x, rank = node.tensor(0), len(node.shape(0))
    axis = node.whole("axis", 1)
    need(-rank <= axis <= rank, f"its axis is {axis}")
    # The axis may lie behind the last one.
    first = axis + rank if axis < 0 else axis
    return moved(x, (math.prod(x.shape[:first]), math.prod(x.shape[first:])))


def _reshape(node: ShapeNode) -> Cost:
    """ONNX Reshape: 0 keeps a size unless `allowzero`, -1 is worked out."""
    x, sizes = node.tensor(0), node.numbers(1)
    problem = f"it makes {sizes} of {list(x.shape)}"
    need(all(n >= -1 for n in sizes) and sizes.count(-1) <= 1, problem)
    if not node.whole("allowzero", 0):
        need(all(n or i < len(x.shape) for i, n in enumerate(sizes)), problem)
        sizes = [n or x.shape[i] for i, n in enumerate(sizes)]
    known = math.prod(n for n in sizes if n != -1)
    if -1 in sizes:
        need(known > 0 and x.size % known == 0, problem)
        sizes = [x.size // known if n == -1 else n for n in sizes]
    need(math.prod(sizes) == x.size, problem)
    return moved(x, sizes)


def _transpose(node: ShapeNode) -> Cost:
    x, rank = node.tensor(0), len(node.shape(0))
    order = node.ints("perm", range(rank - 1, -1, -1), 0)
    need(sorted(order) == list(range(rank)), f"its order of axes is {list(order)}")
    return gives((x.shape[i] for i in order), x.size, x.type)


def _squeeze(node: ShapeNode) -> Cost:
    x, axes = node.tensor(0), node.listed("axes", 1)
    dropped = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else distinct(axes, len(x.shape))
    need(all(x.shape[i] == 1 for i in dropped), f"it drops axes {dropped} of {list(x.shape)}")
    return moved(x, [n for i, n in enumerate(x.shape) if i not in dropped])


def _unsqueeze(node: ShapeNode) -> Cost:
    x, axes = node.tensor(0), node.listed("axes", 1)
    need(axes is not None and len(axes) <= MAX_RANK, "it does not say which axes it adds")
    shape = list(x.shape)
    for axis in sorted(distinct(axes or [], len(shape) + len(axes or []))):
        shape.insert(axis, 1)
    return moved(x, shape)


def _depth_to_space(node: ShapeNode) -> Cost:
    x, block = node.tensor(0), node.whole("blocksize", 0)
    need(len(x.shape) == 4 and block > 0 and x.shape[1] % block**2 == 0, f"it spreads {list(x.shape)} over blocks of {block}")
    n, channels, height, width = x.shape
    return gives((n, channels // block**2, height * block, width * block), x.size, x.type)


def _space_to_depth(node: ShapeNode) -> Cost:
    x, block = node.tensor(0), node.whole("blocksize", 0)
    need(len(x.shape) == 4 and block > 0 and not any(n % block for n in x.shape[2:]), f"it gathers {list(x.shape)} from blocks of {block}")
    n, channels, height, width = x.shape
    return gives((n, channels * block**2, height // block, width // block), x.size, x.type)


RULES: Mapping[str, Rule] = {
    "DepthToSpace": _depth_to_space,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "SpaceToDepth": _space_to_depth,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
