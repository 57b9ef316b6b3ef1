"""Tensors that do not depend on the input, as they meet a feature map or the scores of attention."""

from collections.abc import Sequence
from math import prod

import torch

from stretch.capture.factors import Axes, Of


def spread(tensor: torch.Tensor, axes: Axes, over: Sequence[Of]) -> torch.Tensor | None:
    """A tensor that is broadcast to one of known axes, with an axis for each of what these run over.

    Returns:
        A tensor whose axes are of one element where it is the same for all; None if it differs in what is not listed.
    """
    sizes = (*[1] * (len(axes.axes) - tensor.dim()), *tensor.shape)
    parts, result = [], []
    for size, axis in zip(sizes, axes.axes, strict=True):
        for factor in axis:
            parts.append(1 if size == 1 else factor.size)
            result.append(factor)
    seen = tensor.reshape(parts)
    order = [at for of in over for at in sorted((i for i, f in enumerate(result) if f.of == of), key=lambda i: -result[i].step)]
    rest = [i for i in range(len(result)) if i not in order]
    if any(parts[i] != 1 for i in rest):
        return None
    seen = seen.permute(*order, *rest)
    at, shape = 0, []
    for of in over:
        mine = [result[i] for i in order if result[i].of == of]
        here = seen.shape[at : at + len(mine)]
        if any(size != 1 for size in here):
            seen = seen.expand(*seen.shape[:at], *[factor.size for factor in mine], *seen.shape[at + len(mine) :])
        shape.append(prod(seen.shape[at : at + len(mine)]))
        at += len(mine)
    return seen.reshape(shape)
