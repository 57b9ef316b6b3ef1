"""What rounds activations to int8, left out; where it also cuts off what lies below zero, it is a rectifier."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx

from predictors.errors import StretchError
from stretch.models.onnx.folding import times
from stretch.models.onnx.site import Site, rule
from stretch.models.onnx.steps import Rounded, Steps, reread
from stretch.models.windows import nonnegative

#: The widest range that a byte has for ReLU6, whose scale was rounded.
_SIX = 0.02


def stated(site: Site, scale: int, zero: int, kind: type[np.generic] = np.uint8) -> Steps:
    """The steps that inputs `scale` and `zero` of a node state; bytes are of `kind` where the zero point is left out."""
    found = site.optional(zero, "zero point")
    return Steps(site.known(scale, "scale"), np.zeros((), kind) if found is None else found)


def rounded(site: Site, x: fx.Node, steps: Steps) -> Rounded:
    """What a file rounds, or its positive part: quantisers leave out a rectifier whose range says the same."""
    limits, zero = np.iinfo(steps.zero.dtype), steps.zero
    if zero.size != 1 or zero.item() != limits.min or nonnegative(x, site.builder, given=True):
        return Rounded(x, steps)
    top = float(steps.scale.ravel()[0]) * (limits.max - limits.min)
    return Rounded(site.builder.call(F.relu6 if abs(top - 6) < _SIX else torch.relu, x), steps)


@rule("QuantizeLinear", rounding=True)
def _round(site: Site) -> Rounded:
    if site.steps_of(0) is not None:
        raise StretchError("it rounds what is rounded already")
    return rounded(site, site.x, stated(site, 1, 2))


@rule("DequantizeLinear", rounding=True)
def _real(site: Site) -> fx.Node:
    """What it reads: the scales of activations are calibrated anew. Whole numbers that a product gave are scaled."""
    own = site.steps_of(0)
    if own is None:
        steps = stated(site, 1, 2, np.int32)
        if steps.zero.any():
            raise StretchError("its zero point is not zero, for whole numbers that are no bytes")
        axis, scale = int(site.attrs.get("axis", 1)) % len(site.shape), steps.scale
        behind = len(site.shape) - 1 - axis
        return times(site, site.x, scale if scale.size == 1 else scale.reshape(-1, *(1,) * behind))
    return reread(site.builder, site.x, own, stated(site, 1, 2, own.zero.dtype.type))


@rule("DynamicQuantizeLinear", rounding=True)
def _round_by_range(site: Site) -> list[Rounded | np.ndarray]:
    """What it reads, in steps of 1: each product of it is multiplied by its scale."""
    steps = Steps(np.ones((), np.float32), np.zeros((), np.uint8))
    return [Rounded(site.x, steps), steps.scale, steps.zero]
