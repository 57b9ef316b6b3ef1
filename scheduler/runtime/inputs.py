"""Inputs and outputs of callers: numpy arrays, and tensors of other libraries through DLPack, without copies."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

import numpy as np

from predictors.errors import UsageError, first_line
from scheduler.bundle.manifest import Manifest
from scheduler.delegates.base import Array

#: Maximum absolute value of a priority.
MAX_PRIORITY = 100

#: One array, or arrays by name for a model with several inputs or outputs.
Values = Array | Mapping[str, Array]


def as_arrays(x: Any, names: Sequence[str]) -> dict[str, Array]:
    """Return the inputs of a model by name, as numpy arrays that share the caller's memory.

    Args:
        x: One input in a form that `as_array` accepts, or a mapping from each input's name to its value.
    """
    if not isinstance(x, Mapping):
        if len(names) != 1:
            raise UsageError(f"the model has {len(names)} inputs, one array was given", f"pass a mapping with {', '.join(names)}")
        return {names[0]: as_array(x)}
    if missing := [name for name in names if name not in x]:
        raise UsageError(f"the input `{missing[0]}` is missing", f"the model takes {', '.join(names)}")
    if unknown := [name for name in x if name not in names]:
        raise UsageError(f"the model has no input `{unknown[0]}`", f"it takes {', '.join(names)}")
    return {name: as_array(x[name]) for name in names}


def unwrap_single(arrays: Mapping[str, Array]) -> Values:
    """Return a single array itself, and several arrays as a dictionary by name."""
    return next(iter(arrays.values())) if len(arrays) == 1 else dict(arrays)


def as_array(x: Any) -> Array:
    """Return an input as a numpy array that shares the input's memory."""
    if isinstance(x, np.ndarray):
        return x
    kind = type(x).__name__
    if not hasattr(x, "__dlpack__"):
        raise UsageError(f"the input is a {kind}, the bundle takes a numpy array or a tensor that speaks DLPack")
    try:
        return np.from_dlpack(x)
    # Each library raises a different exception.
    except Exception as error:
        reason = first_line(error)
        raise UsageError(
            f"the input, a {kind}, cannot be read as a numpy array: {reason}",
            "pass a tensor on the CPU that needs no gradient, as x.detach().cpu()",
        ) from error


def check_input(x: Array, like: Array, name: str | None = None) -> None:
    """Refuse an input that does not fit the array it will be copied to, or is not finite.

    Args:
        like: Array with the required shape and type.
        name: Name of the input for messages, if the model has several.
    """
    subject = "the input" if name is None else f"the input `{name}`"
    if x.shape != like.shape:
        swapped = x.ndim == like.ndim == 4 and (x.shape[0], x.shape[3], x.shape[1], x.shape[2]) == like.shape
        hint = "it looks like NHWC: the bundle takes NCHW, as x.transpose(0, 3, 1, 2)" if swapped else None
        raise UsageError(f"{subject} has shape {list(x.shape)}, the bundle takes {list(like.shape)}", hint)
    if x.dtype != like.dtype:
        raise UsageError(f"{subject} has type {x.dtype}, the bundle takes {like.dtype}", f"convert it with x.astype('{like.dtype}')")
    # A sum finds NaN and infinity in one pass; if the sum overflowed, each element is checked.
    with np.errstate(all="ignore"):
        suspicious = x.dtype.kind == "f" and not isfinite(float(np.sum(x)))
    if suspicious and not np.isfinite(x).all():
        raise UsageError(f"{subject} contains NaN or infinity")


def check_inputs(arrays: Mapping[str, Array], like: Mapping[str, Array]) -> None:
    """Refuse inputs, by name, that do not fit the arrays they will be copied to."""
    for name, x in arrays.items():
        check_input(x, like[name], name if len(arrays) > 1 else None)


def zeros(manifest: Manifest) -> Values:
    """Return an input of zeros for a session of the bundle."""
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    return unwrap_single({name: np.zeros(tensors[name].shape, np.dtype(tensors[name].dtype)) for name in manifest.inputs})


def check_priority(priority: int) -> int:
    """Return `priority` after checking its range."""
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise UsageError(f"{priority} is no priority", f"it is from {-MAX_PRIORITY} to {MAX_PRIORITY}, the highest goes first")
    return priority


def check_deadline(deadline_ms: float | None) -> float | None:
    """Return a deadline in ms after checking that it is positive and finite; None means no deadline."""
    if deadline_ms is not None and not (isfinite(deadline_ms) and deadline_ms > 0):
        raise UsageError(f"a deadline of {deadline_ms:g} ms is not positive and finite", "give the milliseconds that an inference may take")
    return deadline_ms


def deadline_at(now_s: float, deadline_ms: float | None) -> float:
    """Return the time by which a request must be done, s; infinite without a deadline.

    Args:
        deadline_ms: Time that the request may take, ms; None for any time.
    """
    return inf if check_deadline(deadline_ms) is None else now_s + (deadline_ms or 0.0) / 1e3
