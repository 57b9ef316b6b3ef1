"""Interpretable terms of a kernel's time: each is a number of units, of which a fit knows the ms.

A term is plain arithmetic, so that it takes one `KernelCost` or, for many at
once, columns of the same names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from predictors.registry import Registry

#: Which part of a kernel's time a term belongs to.
Part = Literal["launch", "compute", "memory"]


@dataclass(frozen=True)
class Grain:
    """Units that a processor works in."""

    width_slice: int  # Output channels are computed in multiples of this many.
    reduce_slice: int  # Input channels are computed in multiples of this many.
    item_bytes: int  # Bytes of an element.


@dataclass(frozen=True)
class Term:
    """One term."""

    units: Callable[[Any, Grain], Any]  # How many units of it a kernel has, from its cost (numbers or arrays) and the processor's grain.
    part: Part  # What it is part of.


#: Terms by name; a fit names those it uses.
terms: Registry[Term] = Registry("term")


def up(n: Any, multiple: int) -> Any:
    """`n` rounded up to a multiple, elementwise."""
    return -(-n // multiple) * multiple


def outputs(cost: Any, grain: Grain) -> Any:
    """Elements computed, whole slices of output channels; the slice runs over the groups where each has one channel."""
    lone = (cost.in_channels == 1) & (cost.out_channels == 1)
    channels = lone * up(cost.groups, grain.width_slice) + (1 - lone) * up(cost.out_channels, grain.width_slice) * cost.groups
    return cost.pixels * channels


def serial(cost: Any, grain: Grain) -> Any:
    """Products that each output element sums, one after the other; whole slices of input channels."""
    lone = (cost.in_channels == 1) & (cost.out_channels == 1)
    return cost.taps * (lone * 1 + (1 - lone) * up(cost.in_channels, grain.reduce_slice))


terms.register("launch")(Term(lambda cost, grain: cost.pixels * 0 + 1, "launch"))
terms.register("macs")(Term(lambda cost, grain: outputs(cost, grain) * serial(cost, grain), "compute"))
terms.register("outputs")(Term(outputs, "compute"))
terms.register("serial")(Term(serial, "compute"))
terms.register("io_bytes")(Term(lambda cost, grain: (cost.reads + cost.writes) * grain.item_bytes, "memory"))
terms.register("weight_bytes")(Term(lambda cost, grain: cost.weights * grain.item_bytes, "memory"))
terms.register("read_bytes")(Term(lambda cost, grain: cost.reads * grain.item_bytes, "memory"))
terms.register("written_bytes")(Term(lambda cost, grain: cost.writes * grain.item_bytes, "memory"))


def products(cost: Any, grain: Grain) -> Any:
    """Multiply-accumulates as they are, nothing rounded up: what plain loops compute."""
    return cost.pixels * cost.out_channels * cost.groups * cost.in_channels * cost.taps


def _tile(grain: Grain) -> tuple[int, int]:
    """Output positions and channels of a register tile on 64-bit Arm: 6 × 8 in fp32, 4 × 16 in int8."""
    return (6, 8) if grain.item_bytes == 4 else (4, 16)


def tiled_outputs(cost: Any, grain: Grain) -> Any:
    """Output elements in whole register tiles; of one position there is a kernel of its own."""
    rows, columns = _tile(grain)
    one = cost.pixels == 1
    return (one * 1 + (1 - one) * up(cost.pixels, rows)) * up(cost.out_channels, columns) * cost.groups


def tiled_macs(cost: Any, grain: Grain) -> Any:
    """Multiply-accumulates in whole register tiles."""
    return tiled_outputs(cost, grain) * cost.in_channels * cost.taps


def deep_macs(cost: Any, grain: Grain) -> Any:
    """Multiply-accumulates in whole register tiles of which each takes sixteen products of a sum at a time."""
    return tiled_outputs(cost, grain) * up(cost.in_channels * cost.taps, 16)


def _is_copied(cost: Any) -> Any:
    """Whether the windows of a convolution are written out side by side before they are multiplied (im2col)."""
    return (cost.taps > 1) | (cost.stride > 1)


def patch_bytes(cost: Any, grain: Grain) -> Any:
    """Bytes of all windows, written out side by side."""
    return _is_copied(cost) * cost.pixels * cost.taps * cost.in_channels * grain.item_bytes


def patch_rows(cost: Any, grain: Grain) -> Any:
    """Rows of all windows, of which each is copied by itself."""
    return _is_copied(cost) * cost.pixels * np.sqrt(cost.taps)


def winograd_tiles(cost: Any) -> Any:
    """Tiles of 4 × 4 outputs of a square image."""
    return np.ceil(np.sqrt(cost.pixels) / 4) ** 2


def _upto(bound: int) -> Term:
    """Steps of the serial loop as long as outputs still fill idle units: the time does not grow with more of them at once."""
    return Term(lambda cost, grain: serial(cost, grain) * np.minimum(outputs(cost, grain), bound), "compute")


def _beyond(bound: int) -> Term:
    """Steps of the serial loop for outputs that wait for a unit."""
    return Term(lambda cost, grain: serial(cost, grain) * np.maximum(outputs(cost, grain) - bound, 0), "compute")


#: Bytes that a tensor processor keeps of a layer's data at hand: 8 MiB, as all Hexagons of phones have had since the V69.
_NEAR_BYTES = 8 * 2**20


def block_positions(cost: Any, grain: Grain) -> Any:
    """Output positions in whole blocks, of which a tensor processor keeps 2 KiB of 32 channels each: 8 × 8 of an image in int8.

    Items of two bytes, and what is no image, come in rows of as many as fill a block.
    """
    side = np.round(np.sqrt(cost.pixels))
    is_image = (side**2 == cost.pixels) & (grain.item_bytes == 1)
    return is_image * up(side, 8) ** 2 + (1 - is_image) * up(cost.pixels, 64 // grain.item_bytes)


def block_macs(cost: Any, grain: Grain) -> Any:
    """Multiply-accumulates in whole blocks of positions, slices of channels too."""
    return block_positions(cost, grain) * outputs(cost, grain) / cost.pixels * serial(cost, grain)


def packed_macs(cost: Any, grain: Grain) -> Any:
    """Multiply-accumulates of groups that are computed side by side as one block-diagonal product, whole slices of input channels."""
    return block_positions(cost, grain) * cost.out_channels * cost.groups * serial(cost, grain)


def spilled_bytes(cost: Any, grain: Grain) -> Any:
    """Bytes of activations that do not fit at hand and go through memory."""
    return np.maximum((cost.reads + cost.writes) * grain.item_bytes - _NEAR_BYTES, 0)


terms.register("block_macs")(Term(block_macs, "compute"))
terms.register("packed_macs")(Term(packed_macs, "compute"))
terms.register("spilled_bytes")(Term(spilled_bytes, "memory"))
terms.register("products")(Term(products, "compute"))
terms.register("tiled_outputs")(Term(tiled_outputs, "compute"))
terms.register("tiled_macs")(Term(tiled_macs, "compute"))
terms.register("deep_macs")(Term(deep_macs, "compute"))
terms.register("patch_bytes")(Term(patch_bytes, "memory"))
terms.register("patch_rows")(Term(patch_rows, "compute"))
terms.register("shallow_taps")(Term(lambda cost, grain: (cost.in_channels < 8) * cost.pixels * cost.taps, "compute"))
terms.register("window_outputs")(Term(lambda cost, grain: cost.pixels * cost.out_channels * cost.groups * cost.taps, "compute"))
terms.register("wide_macs")(Term(lambda cost, grain: (cost.taps > 9) * outputs(cost, grain) * serial(cost, grain), "compute"))
terms.register("macs_beyond_25_taps")(Term(lambda cost, grain: (cost.taps > 25) * outputs(cost, grain) * serial(cost, grain), "compute"))
terms.register("pooled")(Term(lambda cost, grain: cost.writes * cost.taps * cost.stride, "compute"))
terms.register("reduced")(Term(lambda cost, grain: cost.taps, "compute"))
terms.register("channels")(Term(lambda cost, grain: up(cost.groups, grain.width_slice), "compute"))
terms.register("winograd_macs")(
    Term(
        lambda cost, grain: 36 * winograd_tiles(cost) * up(cost.in_channels, grain.reduce_slice) * up(cost.out_channels, grain.width_slice),
        "compute",
    )
)
terms.register("winograd_transforms")(
    Term(lambda cost, grain: 36 * winograd_tiles(cost) * (cost.in_channels + cost.out_channels), "memory")
)
for _bound in (8_000, 16_000, 32_000, 48_000, 64_000, 128_000):
    terms.register(f"serial_upto_{_bound}")(_upto(_bound))
    terms.register(f"serial_beyond_{_bound}")(_beyond(_bound))
