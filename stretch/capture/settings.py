"""Settings of torch's layers as attributes of operators, the same for modules and functions."""

from typing import Any

import torch

from predictors.shapes import Attr


class Refusal(Exception):
    """Why a node cannot be captured, as the end of the sentence about it."""


def pair(value: Any) -> tuple[int, int]:
    """`value` for height and width."""
    a, b = (value, value) if isinstance(value, int) else (value if len(value) == 2 else (value[0], value[0]))
    return (int(a), int(b))


def window_padding(value: Any) -> tuple[int, int, int, int]:
    """Symmetric torch padding as (top, left, bottom, right)."""
    h, w = pair(value)
    return (h, w, h, w)


def adaptive_pool(how: str, shape: tuple[int, ...], size: Any) -> tuple[str, dict[str, Attr]]:
    """Adaptive pooling as plain pooling, where the windows are equal.

    Raises:
        Refusal: If the output size does not divide the input size.
    """
    wanted = (size, size) if isinstance(size, int) or size is None else tuple(size)
    h, w = (n if want is None else int(want) for n, want in zip(shape[2:], wanted, strict=True))
    if (h, w) == (1, 1):
        return f"global_{how}_pool", {"keepdims": True}
    if shape[2] % h or shape[3] % w:
        raise Refusal(f"adaptive pooling of {shape[2]}×{shape[3]} to {h}×{w} has unequal windows")
    kernel = (shape[2] // h, shape[3] // w)
    if kernel == (1, 1):
        return "identity", {}
    attrs: dict[str, Attr] = {"kernel": kernel, "stride": kernel, "padding": (0, 0, 0, 0), "ceil_mode": False}
    return f"{how}_pool", attrs | ({"count_include_pad": True} if how == "avg" else {"dilation": (1, 1)})


def max_pool(kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, return_indices: bool) -> dict[str, Attr]:
    """Attributes of a max-pooling from torch's own settings.

    Raises:
        Refusal: If it also returns indices.
    """
    if return_indices:
        raise Refusal("pooling that returns indices is not supported")
    return _window(kernel_size, stride, padding, ceil_mode) | {"dilation": pair(dilation)}


def avg_pool(kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool, divisor: int | None) -> dict[str, Attr]:
    """Attributes of an average-pooling from torch's own settings.

    Raises:
        Refusal: If it divides by something else than its window.
    """
    if divisor is not None:
        raise Refusal("average pooling with its own divisor is not supported")
    return _window(kernel_size, stride, padding, ceil_mode) | {"count_include_pad": bool(count_include_pad)}


def _window(kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> dict[str, Attr]:
    kernel = pair(kernel_size)
    # torch takes an absent or empty stride to mean the kernel's size
    return {
        "kernel": kernel,
        "stride": pair(stride) if stride else kernel,
        "padding": window_padding(padding),
        "ceil_mode": bool(ceil_mode),
    }


def softmax(kind: str, shape: tuple[int, ...], dim: int | None) -> tuple[str, dict[str, Attr]]:
    """A softmax over channels.

    Raises:
        Refusal: If it is over another dimension.
    """
    if (dim is None and len(shape) != 2) or (dim is not None and dim % len(shape) != 1):
        raise Refusal(f"a softmax over dimension {dim} is not supported, only over channels")
    return kind, {}


def layer_norm(
    shape: tuple[int, ...], normalised: Any, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[str, dict[str, Attr], dict[str, torch.Tensor]]:
    """Layer normalisation over channels: kind, attributes, weights.

    Raises:
        Refusal: If it is over more than channels, or has a weight without a bias.
    """
    if tuple(normalised) != (shape[1],):
        raise Refusal(f"layer normalisation over {tuple(normalised)} is not supported, only over channels")
    if weight is None and bias is not None:
        raise Refusal("layer normalisation with a bias alone is not supported")
    own = {} if weight is None else {"weight": weight, "bias": bias if bias is not None else torch.zeros_like(weight)}
    return "layer_norm", {"eps": float(eps), "affine": weight is not None}, own


def pointwise(out: int, bias: bool) -> dict[str, Attr]:
    """Attributes of a 1×1 convolution."""
    return {"out_channels": out, "kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1, "bias": bias}


def upsample(shape: tuple[int, ...], size: Any, scale: Any, mode: str) -> dict[str, Attr]:
    """Attributes of an enlargement by whole factors, nearest neighbour.

    Raises:
        Refusal: If it interpolates, or its factor is no whole number.
    """
    if mode != "nearest" or len(shape) != 4:
        raise Refusal(f"resizing with mode `{mode}` is not supported, only `nearest` by whole factors")
    if size is not None:
        factors = [wanted / has for wanted, has in zip(pair(size), shape[2:], strict=True)]
    else:
        factors = list(scale) if isinstance(scale, tuple | list) else [scale, scale]
    if any(factor != int(factor) or factor < 1 for factor in factors):
        raise Refusal(f"resizing by {factors[0]:g}×{factors[1]:g} is not supported, only by whole factors")
    return {"scale": (int(factors[0]), int(factors[1]))}
