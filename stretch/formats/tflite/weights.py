"""Weights of convolutions and matrices as TFLite stores them, in reals or in int8 with a scale for each output channel."""

import numpy as np

from predictors.graph import Op
from stretch.formats.tflite.builder import TOP, Array, SubgraphBuilder, Value
from stretch.formats.tflite.source import RoundedWeights, SubgraphSource
from stretch.formats.tflite.writer import Quant


def growth(source: SubgraphSource, op: Op, x: Value, result: Quant | None) -> float:
    """How many times larger the integers of a convolution's or matrix's result are than the products they come from.

    It is below 1 but for a result that is nearly nothing everywhere, such as that of a dead activation.
    """
    assert x.quant is not None
    assert result is not None
    rounded = source.integers.get(op.name) or _symmetric(source.weights[op.name]["weight"])
    return float(rounded.scales.max()) * x.quant.scale / result.scale


def matrix(
    b: SubgraphBuilder,
    source: SubgraphSource,
    op: Op,
    x: Value,
    order: tuple[int, ...],
    channels: int,
    image: tuple[int, ...] | None = None,
) -> list[int]:
    """Tensor indices of the input, the weight in `order` and the bias.

    Args:
        order: Axes of the weight in TFLite's order.
        channels: Axis of the output channels after that.
        image: Height, width and channels of a flattened image that a matrix reads.
    """
    arrays = source.weights[op.name]
    weight = arrays["weight"]

    def arranged(value: Array) -> Array:
        if image is not None:
            h, w, c = image
            value = value.reshape(-1, c, h, w).transpose(0, 2, 3, 1).reshape(len(value), -1)
        return np.ascontiguousarray(value.transpose(order))

    bias = arrays.get("bias", np.zeros(len(weight), np.float32))
    if not b.rounded:
        return [b.real(x), b.weight(f"{op.name}.weight", arranged(weight)), b.piece.constant(f"{op.name}.bias", bias.astype(np.float32))]
    assert x.quant is not None
    rounded = source.integers.get(op.name) or _symmetric(weight)
    scales = np.broadcast_to(rounded.scales, (len(weight),)).astype(np.float64)
    weights = b.piece.constant(f"{op.name}.weight", arranged(rounded.values), scales.tolist(), channels)
    # A bias is added to products of integers, so it has their scale.
    unit = scales * x.quant.scale
    limit = np.iinfo(np.int32)
    whole = np.clip(np.rint(bias.astype(np.float64) / unit), limit.min, limit.max).astype(np.int32)
    return [b.integer(x), weights, b.piece.constant(f"{op.name}.bias", whole, unit.tolist())]


def _symmetric(weight: Array) -> RoundedWeights:
    """A weight that was not rounded yet, with a scale for each output channel."""
    flat = weight.reshape(len(weight), -1).astype(np.float64)
    scales = np.maximum(np.abs(flat).max(axis=1), 1e-9) / TOP
    return RoundedWeights(np.rint(flat / scales[:, None]).astype(np.int8).reshape(weight.shape), scales)
