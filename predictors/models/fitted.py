"""Kernel times from a fit: non-negative terms, trees on their residuals, and the arithmetic minimum as a floor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, hypot, log
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from predictors.devices import ITEM_BYTES, Processor
from predictors.errors import StretchError
from predictors.fits import Fit, KernelGroup, Trees
from predictors.fusion import KernelCost
from predictors.models.roofline import KernelTime, RooflinePredictor, Times
from predictors.registry import Registry

#: Part of a kernel's time to which a term belongs.
Part = Literal["launch", "compute", "memory"]


@dataclass(frozen=True)
class Grain:
    """Slices in which a processor computes."""

    width_slice: int  # Output channels are computed in multiples of this number.
    reduce_slice: int  # Input channels are computed in multiples of this number.
    item_bytes: int  # Bytes per element.


@dataclass(frozen=True)
class Term:
    """One term of a kernel's time."""

    units: Callable[[Any, Grain], Any]  # Number of units of a kernel, from its cost (numbers or arrays) and the processor's grain.
    part: Part  # Part of the time to which the term belongs.


#: Terms by name; a fit names the terms that it uses.
terms: Registry[Term] = Registry("term")


def up(n: Any, multiple: int) -> Any:
    """Return `n` rounded up to a multiple, elementwise."""
    return -(-n // multiple) * multiple


def outputs(cost: Any, grain: Grain) -> Any:
    """Return the computed elements, with whole slices of output channels, or of groups if each group has one channel."""
    single = (cost.in_channels == 1) & (cost.out_channels == 1)
    channels = single * up(cost.groups, grain.width_slice) + (1 - single) * up(cost.out_channels, grain.width_slice) * cost.groups
    return cost.pixels * channels


def serial(cost: Any, grain: Grain) -> Any:
    """Return the products that each output element sums one after the other, with whole slices of input channels."""
    single = (cost.in_channels == 1) & (cost.out_channels == 1)
    return cost.taps * (single * 1 + (1 - single) * up(cost.in_channels, grain.reduce_slice))


terms.register("launch")(Term(lambda cost, grain: cost.pixels * 0 + 1, "launch"))
terms.register("macs")(Term(lambda cost, grain: outputs(cost, grain) * serial(cost, grain), "compute"))
terms.register("outputs")(Term(outputs, "compute"))
terms.register("serial")(Term(serial, "compute"))
terms.register("io_bytes")(Term(lambda cost, grain: (cost.reads + cost.writes) * grain.item_bytes, "memory"))
terms.register("weight_bytes")(Term(lambda cost, grain: cost.weights * grain.item_bytes, "memory"))
terms.register("read_bytes")(Term(lambda cost, grain: cost.reads * grain.item_bytes, "memory"))
terms.register("written_bytes")(Term(lambda cost, grain: cost.writes * grain.item_bytes, "memory"))


def products(cost: Any, grain: Grain) -> Any:
    """Return the exact multiply-accumulates, as computed by plain loops."""
    return cost.pixels * cost.out_channels * cost.groups * cost.in_channels * cost.taps


def _tile(grain: Grain) -> tuple[int, int]:
    """Return the output positions and channels of a register tile on 64-bit Arm: 6 × 8 in fp32, 4 × 16 in int8."""
    return (6, 8) if grain.item_bytes == 4 else (4, 16)


def tiled_outputs(cost: Any, grain: Grain) -> Any:
    """Return the output elements in whole register tiles; a single position has a separate kernel."""
    rows, columns = _tile(grain)
    is_pixel = cost.pixels == 1
    return (is_pixel * 1 + (1 - is_pixel) * up(cost.pixels, rows)) * up(cost.out_channels, columns) * cost.groups


def tiled_macs(cost: Any, grain: Grain) -> Any:
    """Return the multiply-accumulates in whole register tiles."""
    return tiled_outputs(cost, grain) * cost.in_channels * cost.taps


def deep_macs(cost: Any, grain: Grain) -> Any:
    """Return the multiply-accumulates in whole register tiles, each of which takes sixteen products of a sum at a time."""
    return tiled_outputs(cost, grain) * up(cost.in_channels * cost.taps, 16)


def _is_copied(cost: Any) -> Any:
    """Return whether the windows of a convolution are copied side by side before the product (im2col)."""
    return (cost.taps > 1) | (cost.stride > 1)


def patch_bytes(cost: Any, grain: Grain) -> Any:
    """Return the bytes of all windows copied side by side."""
    return _is_copied(cost) * cost.pixels * cost.taps * cost.in_channels * grain.item_bytes


def patch_rows(cost: Any, grain: Grain) -> Any:
    """Return the rows of all windows, each of which is copied separately."""
    return _is_copied(cost) * cost.pixels * np.sqrt(cost.taps)


def winograd_tiles(cost: Any) -> Any:
    """Return the number of tiles of 4 × 4 outputs of a square image."""
    return np.ceil(np.sqrt(cost.pixels) / 4) ** 2


def _up_to(bound: int) -> Term:
    """Return the steps of the serial loop while outputs still fill idle units: more of them at once take no longer."""
    return Term(lambda cost, grain: serial(cost, grain) * np.minimum(outputs(cost, grain), bound), "compute")


def _beyond(bound: int) -> Term:
    """Return the steps of the serial loop for outputs that wait for a unit."""
    return Term(lambda cost, grain: serial(cost, grain) * np.maximum(outputs(cost, grain) - bound, 0), "compute")


#: Bytes of on-chip memory for a layer's data: 8 MiB, as in all Hexagons of phones since the V69.
_NEAR_BYTES = 8 * 2**20


def block_positions(cost: Any, grain: Grain) -> Any:
    """Return the output positions in whole blocks of a tensor processor, 2 KiB for each 32 channels: 8 × 8 of an image in int8.

    Two-byte elements, and tensors other than images, are stored in rows that fill a block.
    """
    side = np.round(np.sqrt(cost.pixels))
    is_image = (side**2 == cost.pixels) & (grain.item_bytes == 1)
    return is_image * up(side, 8) ** 2 + (1 - is_image) * up(cost.pixels, 64 // grain.item_bytes)


def block_macs(cost: Any, grain: Grain) -> Any:
    """Return the multiply-accumulates in whole blocks of positions and whole slices of channels."""
    return block_positions(cost, grain) * outputs(cost, grain) / cost.pixels * serial(cost, grain)


def packed_macs(cost: Any, grain: Grain) -> Any:
    """Return the multiply-accumulates of groups computed together as one block-diagonal product, with whole slices of input channels."""
    return block_positions(cost, grain) * cost.out_channels * cost.groups * serial(cost, grain)


def spilled_bytes(cost: Any, grain: Grain) -> Any:
    """Return the bytes of activations that exceed the on-chip memory."""
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
    terms.register(f"serial_upto_{_bound}")(_up_to(_bound))
    terms.register(f"serial_beyond_{_bound}")(_beyond(_bound))


#: Features of a kernel by name, from its cost (numbers or arrays).
features: Registry[Callable[[Any], Any]] = Registry("feature")

for _name in ("in_channels", "out_channels", "groups", "taps", "pixels", "reads", "writes", "weights", "stride"):
    features.register(_name)(attrgetter(_name))
features.register("macs")(lambda cost: cost.pixels * cost.out_channels * cost.groups * cost.in_channels * cost.taps)


def _slices(cost: Any) -> Any:
    """Return the number of slices of four output channels, a GPU's unit of work."""
    return -(-cost.out_channels * cost.groups // 4)


def _evenly(number: Any) -> Any:
    """Return the greatest power of two up to 16 that divides a number, as a measure of its fit to groups of threads."""
    return sum(1.0 * (number % power == 0) * power / 2 for power in (2, 4, 8, 16)) + 1


def _edge(tile: int) -> Callable[[Any], Any]:
    """Return the feature of a square image: positions in whole square tiles ÷ positions."""
    return lambda cost: (np.ceil(np.sqrt(cost.pixels) / tile) * tile) ** 2 / cost.pixels


features.register("serial")(lambda cost: -(-cost.in_channels // 4) * 4 * cost.taps)
features.register("slices")(_slices)
features.register("slice_outputs")(lambda cost: _slices(cost) * cost.pixels)
features.register("slice_share")(lambda cost: _evenly(_slices(cost)))
features.register("slice_edge")(lambda cost: -(-_slices(cost) // 4) * 4 / _slices(cost))
features.register("edge_2")(_edge(2))
features.register("edge_4")(_edge(4))
features.register("traffic")(lambda cost: cost.reads / cost.writes)


class TreeModel:
    """Trees ready for evaluation."""

    def __init__(self, trees: Trees) -> None:
        self._features = [features.get(name) for name in trees.features]
        self._roots = np.array(trees.roots, dtype=np.intp)
        self._feature = np.array(trees.feature, dtype=np.intp)
        self._threshold = np.array(trees.threshold)
        #: Two children per node, the right one first; a leaf is its own child.
        self._children = np.array([trees.right, trees.left], dtype=np.intp).T.ravel()
        self._depth = _depth(trees)
        self._value = np.array(trees.value)
        self._base, self._bound = trees.base, trees.bound

    def __call__(self, costs: Any) -> NDArray[np.float64]:
        """Return the predictions of the trees for each kernel."""
        table = np.stack([np.asarray(feature(costs), dtype=np.float64) for feature in self._features], axis=1)
        rows = np.arange(0, table.size, table.shape[1])[:, None]
        nodes = np.repeat(self._roots[None, :], len(table), axis=0)
        for _ in range(self._depth):
            left = table.take(rows + self._feature.take(nodes)) <= self._threshold.take(nodes)
            nodes = self._children.take(2 * nodes + left)
        correction: NDArray[np.float64] = np.clip(self._base + self._value[nodes].sum(axis=1), -self._bound, self._bound)
        return correction


def _depth(trees: Trees) -> int:
    """Return the number of steps from a root to the deepest leaf."""
    depth = [0] * len(trees.feature)
    # children come after their parents
    for node in range(len(depth) - 1, -1, -1):
        if trees.left[node] != node:
            depth[node] = 1 + max(depth[trees.left[node]], depth[trees.right[node]])
    return max((depth[root] for root in trees.roots), default=0)


Floats = NDArray[np.float64]

#: 90 % of networks take between 1/this and this factor on another device with the same chip: 1.645 root mean squares of
#: the logarithms of 86 public ratios with ncnn (RK3588 boards and the Orange Pi 5 Plus, RK3399 boards and the Orange Pi 4 LTS).
SIBLING_SPREAD = 1.36

#: Maximum number of kernels whose rows are cached.
_MAX_ROWS = 1 << 15

_PARTS: tuple[Part, ...] = ("launch", "compute", "memory")


def columns(costs: Sequence[KernelCost]) -> SimpleNamespace:
    """Return the costs with one array per field, so that terms and features are computed for all kernels at once."""
    return SimpleNamespace(
        **{
            name: np.array(values, dtype=object if name in ("kind", "variant") else np.float64)
            for name, values in zip(KernelCost._fields, zip(*costs, strict=True), strict=True)
        }
    )


@lru_cache(maxsize=64)
def _table(costs: tuple[KernelCost, ...]) -> tuple[SimpleNamespace, dict[tuple[Term, Grain], Any]]:
    """Return the columns of kernels, and a cache of their units of each term, which relatives request one after the other."""
    return columns(costs), {}


def group_name(cost: KernelCost, groups: Sequence[str] | dict[str, KernelGroup]) -> str | None:
    """Return the group of a fit for a kernel: of its kind and variant, else of its kind; None if the fit has neither."""
    fine = f"{cost.kind}:{cost.variant}"
    return fine if fine in groups else cost.kind if cost.kind in groups else None


def group_members(costs: Sequence[KernelCost], groups: Sequence[str] | dict[str, KernelGroup]) -> dict[str | None, list[int]]:
    """Return the indices of the kernels by their group."""
    members: dict[str | None, list[int]] = {}
    for number, cost in enumerate(costs):
        members.setdefault(group_name(cost, groups), []).append(number)
    return members


class FittedModel:
    """Kernel times on one processor from a fit; kernels of unmeasured kinds are timed by the roofline."""

    def __init__(self, fit: Fit, processor: Processor) -> None:
        if fit.backend != processor.profile.backend:
            raise StretchError(
                f"the fit of {processor.name} was made for kernels of `{fit.backend}`, the profile says `{processor.profile.backend}`",
                "make the fit again with `stretch profile fit`",
            )
        self.fit, self.processor = fit, processor
        self.roofline = RooflinePredictor(processor, fit.precision)
        self.precision = self.roofline.precision
        self._grain = Grain(processor.width_slice, round(processor.profile.reduce_slice.value), ITEM_BYTES[self.precision])
        self._terms = {name: [(terms.get(term), ms) for term, ms in group.terms.items()] for name, group in fit.groups.items()}
        self._trees = {name: TreeModel(group.trees) for name, group in fit.groups.items() if group.trees is not None}
        self._times: dict[KernelCost, KernelTime] = {}
        self._rows: dict[KernelCost, tuple[float, ...]] = {}

    def inference_ms(self, elements: int = 0) -> float:
        """Return the time of an inference beyond its kernels, ms."""
        return self.fit.correction.fixed_ms + self.fit.correction.per_io_element_ms * elements

    def interval(self) -> tuple[float, float]:
        """Return the interval around a network's time, as factors on it; it is wider if another device was measured."""
        low, high = self.fit.interval.low, self.fit.interval.high
        if self.fit.sibling is None:
            return low, high
        # independent errors of log-normal factors
        return exp(-hypot(log(low), log(SIBLING_SPREAD))), exp(hypot(log(high), log(SIBLING_SPREAD)))

    def time(self, cost: KernelCost) -> KernelTime:
        """Return the time of one kernel."""
        return self.times([cost])[0]

    def times(self, costs: Sequence[KernelCost]) -> list[KernelTime]:
        """Return the time of each kernel; equal kernels are computed once, and new kernels together."""
        new = list(dict.fromkeys(cost for cost in costs if cost not in self._times))
        for name, indices in group_members(new, self.fit.groups).items():
            batch = [new[i] for i in indices]
            timed = [self.roofline.time(cost) for cost in batch] if name is None else self._fitted(name, batch).kernels("fit")
            self._times.update(zip(batch, timed, strict=True))
        return [self._times[cost] for cost in costs]

    def columns(self, costs: Sequence[KernelCost]) -> Times:
        """Return the times of kernels as arrays; equal kernels are computed once, also for several devices with this relative."""
        rows = self._rows if len(self._rows) < _MAX_ROWS else {}
        new = list(dict.fromkeys(cost for cost in costs if cost not in rows))
        for name, indices in group_members(new, self.fit.groups).items():
            batch = [new[i] for i in indices]
            table = Times.of([self.roofline.time(cost) for cost in batch]) if name is None else self._fitted(name, batch)
            rows.update(zip(batch, zip(*(column.tolist() for column in table), strict=True), strict=True))
        self._rows = rows
        return Times(*np.array([rows[cost] for cost in costs]).reshape(-1, len(Times._fields)).T)

    def _fitted(self, group: str, costs: list[KernelCost]) -> Times:
        """Return the times of kernels of one group, including the additional time of each kernel in an inference."""
        table, units = _table(tuple(costs))
        parts: dict[Part, Floats] = {part: np.zeros(len(costs)) for part in _PARTS}
        for term, ms in self._terms[group]:
            if (term, self._grain) not in units:
                units[term, self._grain] = term.units(table, self._grain)
            parts[term.part] += ms * units[term, self._grain]
        correction = self.fit.correction
        factor = np.exp(self._trees[group](table)) if group in self._trees else np.ones(len(costs))
        total = sum(parts.values()) * factor
        floor = np.array([self.roofline.floor_ms(cost) for cost in costs])
        # The floor is arithmetic, so the difference is added to the computing part.
        raised = np.maximum(total, floor)
        compute = parts["compute"] * factor + (raised - total)
        weights = correction.per_weight_ms * np.asarray(table.weights)
        return Times(
            correction.scale * raised + correction.per_kernel_ms + weights,
            correction.scale * (parts["launch"] * factor) + correction.per_kernel_ms,
            correction.scale * compute,
            correction.scale * (parts["memory"] * factor) + weights,
        )
