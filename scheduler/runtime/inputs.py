"""What callers may give as input: numpy arrays, and tensors of other libraries through DLPack, never copied on the way."""

import math
from typing import Any

import numpy as np

from predictors.errors import UsageError
from scheduler.delegates.base import Array


def as_array(x: Any) -> Array:
    """An input as a numpy array that shares its memory.

    Args:
        x: A numpy array, or anything on the CPU that speaks DLPack, such as a torch tensor.

    Raises:
        UsageError: If it is neither, lies on another device or is part of an autograd graph.
    """
    if isinstance(x, np.ndarray):
        return x
    kind = type(x).__name__
    if not hasattr(x, "__dlpack__"):
        raise UsageError(f"the input is a {kind}, the bundle takes a numpy array or a tensor that speaks DLPack")
    try:
        return np.from_dlpack(x)
    # Each library refuses in its own way.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"the input, a {kind}, cannot be read as a numpy array: {reason}",
            "pass a tensor on the CPU that needs no gradient, as x.detach().cpu()",
        ) from error


def check_input(x: Array, like: Array) -> None:
    """Check an input against the array it will be copied to.

    Raises:
        UsageError: If it has another shape or type, or is not finite.
    """
    if x.shape != like.shape:
        swapped = x.ndim == like.ndim == 4 and (x.shape[0], x.shape[3], x.shape[1], x.shape[2]) == like.shape
        hint = "it looks like NHWC: the bundle takes NCHW, as x.transpose(0, 3, 1, 2)" if swapped else None
        raise UsageError(f"the input has shape {list(x.shape)}, the bundle takes {list(like.shape)}", hint)
    if x.dtype != like.dtype:
        raise UsageError(f"the input has type {x.dtype}, the bundle takes {like.dtype}", f"convert it with x.astype('{like.dtype}')")
    # One pass that catches NaN and infinity; a sum that only overflowed is looked at again.
    with np.errstate(all="ignore"):
        suspicious = x.dtype.kind == "f" and not math.isfinite(float(np.sum(x)))
    if suspicious and not np.isfinite(x).all():
        raise UsageError("the input contains NaN or infinity")
