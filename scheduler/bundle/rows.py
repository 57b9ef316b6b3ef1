"""Rows of tensors that subgraphs read only in part: a band and its halo."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError

Array = NDArray[Any]

#: First row and end of the rows.
Rows = tuple[int, int]

#: Axis of the rows by layout; tensors with other layouts are read in full.
ROW_AXIS = {"NCHW": 2, "NHWC": 1}


class Reader(Protocol):
    """A subgraph of a manifest or of a plan."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensors read."""

    @property
    def rows(self) -> Mapping[str, Rows]:
        """Rows read, for tensors that are not read in full."""


def cut(array: Array, rows: Rows | None, layout: str = "NCHW") -> Array:
    """Return a view of the rows `rows` of a tensor, or the tensor itself if `rows` is None."""
    if rows is None:
        return array
    return array[(slice(None),) * ROW_AXIS[layout] + (slice(*rows),)]


def cut_shape(shape: tuple[int, ...], rows: Rows | None, layout: str = "NCHW") -> tuple[int, ...]:
    """Return the shape of the result of `cut` for a tensor of this shape."""
    if rows is None:
        return shape
    axis = ROW_AXIS[layout]
    return (*shape[:axis], rows[1] - rows[0], *shape[axis + 1 :])


def rows_read_by(subgraph: Reader, tensors: Mapping[str, Array]) -> list[Array]:
    """Return the inputs of a subgraph in NCHW, in its order, each contiguous."""
    return [np.ascontiguousarray(cut(tensors[name], subgraph.rows.get(name))) for name in subgraph.inputs]


def rows_read_once(subgraph: Reader, tensors: Mapping[str, Array]) -> Array:
    """Return the input of a subgraph with one input, as `rows_read_by` does."""
    if len(subgraph.inputs) != 1:
        raise StretchError(
            f"a subgraph reads {len(subgraph.inputs)} tensors ({', '.join(subgraph.inputs)}), and only one is supported here",
            "place the segment without portions",
        )
    return rows_read_by(subgraph, tensors)[0]
