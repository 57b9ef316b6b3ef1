"""Images in another size, and images that another tensor samples."""

import math
from collections.abc import Mapping

import numpy as np

from scheduler.formats.onnx.shapes.node import REALS, Cost, Rule, ShapeNode, gives, need, there

#: Elements of the input that each mode reads for an element along one axis.
_TAPS = {"nearest": 1, "linear": 2, "cubic": 4, "bilinear": 2, "bicubic": 4}

#: An axis grows by at most this.
MAX_SCALE = 64


def _resize(node: ShapeNode) -> Cost:
    """ONNX Resize by scales (input 2) or to sizes (input 3), for all axes."""
    x, mode = node.tensor(0, REALS), node.word("mode", "nearest")
    need(mode in _TAPS and "axes" not in node.attrs, f"it resizes in the mode `{mode[:20]}` along some axes")
    need(node.word("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize", "it crops")
    need(node.word("keep_aspect_ratio_policy", "stretch") == "stretch", "it keeps the ratio of its sides")
    sizes = node.optional(3)
    shape = _by_scales(node, x.shape) if sizes is None or not sizes.size else node.numbers(3)
    need(len(shape) == len(x.shape), f"it makes {shape} of {list(x.shape)}")
    need(all(0 < new <= MAX_SCALE * old for new, old in zip(shape, x.shape, strict=True)), f"it makes {shape} of {list(x.shape)}")
    axes = sum(new != old for new, old in zip(shape, x.shape, strict=True))
    # Without a smaller side to be exact for, filters that widen as they shrink read each element once.
    shrunk = x.size if node.whole("antialias", 0) else 0
    return gives(shape, math.prod(shape) * _TAPS[mode] ** axes + shrunk * _TAPS[mode], x.type)


def _by_scales(node: ShapeNode, shape: tuple[int, ...]) -> list[int]:
    scales = there(node.tensor(2).values, "its scales are no constant")
    need(len(scales) == len(shape), "it has no scale for each axis")
    need(all(0 < s <= MAX_SCALE for s in scales), f"its scales are {list(scales)}")
    # In the precision in which scales are stored, as runtimes do: 0.7 of 10 is 7.
    return [int(np.float32(size) * np.float32(scale)) for size, scale in zip(shape, scales, strict=True)]


def _grid_sample(node: ShapeNode) -> Cost:
    x, grid = node.tensor(0, REALS), node.tensor(1, REALS)
    axes, mode = len(x.shape) - 2, node.word("mode", "linear")
    fits = 2 <= axes <= 3 and len(grid.shape) == len(x.shape) and grid.shape[0] == x.shape[0] and grid.shape[-1] == axes
    need(fits and mode in _TAPS, f"its grid has the shape {list(grid.shape)} for {list(x.shape)}")
    shape = (*x.shape[:2], *grid.shape[1:-1])
    return gives(shape, math.prod(shape) * _TAPS[mode] ** axes, x.type)


RULES: Mapping[str, Rule] = {"GridSample": _grid_sample, "Resize": _resize}
