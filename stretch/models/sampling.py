"""Images in another size where torch has no function that samples them so: sums of rows and columns, or places chosen."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx

from predictors.errors import StretchError
from stretch.models.builder import Builder, shape_of

#: Largest side of what is sampled by a matrix.
MAX_SIDE = 1 << 12


def between(at: np.ndarray, old: int) -> np.ndarray:
    """How much of each old pixel is in a new one that lies among them; rows are new."""
    if max(len(at), old) > MAX_SIDE:
        raise StretchError(f"it resizes {old} to {len(at)} pixels with coordinates that torch has not")
    at = np.clip(at, 0, old - 1)
    low = np.floor(at).astype(int)
    values = np.zeros((len(at), old), np.float32)
    np.add.at(values, (np.arange(len(at)), low), 1 - (at - low))
    np.add.at(values, (np.arange(len(at)), np.minimum(low + 1, old - 1)), at - low)
    return values


def blended(builder: Builder, x: fx.Node, places: list[np.ndarray], name: str) -> fx.Node:
    """An image N×C×H×W whose new rows and columns lie at these places among the old ones."""
    down, across = (between(at, old) for at, old in zip(places, shape_of(x)[2:], strict=True))
    rows = builder.call(torch.matmul, builder.stored(down, f"{name}_rows"), x)
    return builder.call(torch.matmul, rows, builder.stored(across.T.copy(), f"{name}_columns"))


def chosen(builder: Builder, x: fx.Node, places: list[np.ndarray], name: str) -> fx.Node:
    """An image of these rows and columns of an image: where torch chooses them too, which rounds i · old / new down, by its function."""
    sizes = [(len(at), old) for at, old in zip(places, shape_of(x)[2:], strict=True)]
    if all((at == np.arange(new) * old // new).all() for at, (new, old) in zip(places, sizes, strict=True)):
        return builder.call(F.interpolate, x, size=[new for new, _ in sizes])
    for axis, (at, (new, old)) in enumerate(zip(places, sizes, strict=True), 2):
        if new != old or (at != np.arange(old)).any():
            x = builder.call(torch.index_select, x, axis, builder.stored(at.astype(np.int64), f"{name}_{axis}"))
    return x
