"""Kernel times from a fit: non-negative terms, trees on what they leave, a floor that no processor goes below."""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, hypot, log
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.devices import ITEM_BYTES, Processor
from predictors.errors import StretchError
from predictors.fits.fit import Fit, KernelGroup
from predictors.fusion import KernelCost
from predictors.models.base import KernelTime, Times
from predictors.models.roofline import RooflinePredictor
from predictors.models.terms import Grain, Part, Term, terms
from predictors.models.trees import TreeModel

Floats = NDArray[np.float64]

#: Nine in ten networks take between 1/this and this times as long on another device with the same chip: 1.645 root mean squares of
#: the logarithms of 86 public ratios with ncnn (RK3588 boards and the Orange Pi 5 Plus, RK3399 boards and the Orange Pi 4 LTS).
SIBLING_SPREAD = 1.36

#: Kernels whose times are kept as rows.
_MOST_ROWS = 1 << 15

_PARTS: tuple[Part, ...] = ("launch", "compute", "memory")


def columns(costs: Sequence[KernelCost]) -> SimpleNamespace:
    """Costs as one array a field, by which terms and features are computed for all at once."""
    return SimpleNamespace(
        **{
            name: np.array(values, dtype=object if name in ("kind", "variant") else np.float64)
            for name, values in zip(KernelCost._fields, zip(*costs, strict=True), strict=True)
        }
    )


@lru_cache(maxsize=64)
def _table(costs: tuple[KernelCost, ...]) -> tuple[SimpleNamespace, dict[tuple[Term, Grain], Any]]:
    """Their columns, and the units of each term that they have, which relatives ask for one after the other."""
    return columns(costs), {}


def group_name(cost: KernelCost, groups: Sequence[str] | dict[str, KernelGroup]) -> str | None:
    """The group of a fit that times a kernel: of its kind and variant, else of its kind; None if there is neither."""
    fine = f"{cost.kind}:{cost.variant}"
    return fine if fine in groups else cost.kind if cost.kind in groups else None


class FittedModel:
    """Kernel times on one processor from a fit; kernels of kinds that were never measured come from the roofline."""

    def __init__(self, fit: Fit, processor: Processor) -> None:
        if fit.backend != processor.profile.backend:
            raise StretchError(
                f"the fit of {processor.name} was made for kernels of `{fit.backend}`, the profile says `{processor.profile.backend}`",
                "make the fit anew with `stretch profile --fit`",
            )
        self.fit, self.processor = fit, processor
        self.roofline = RooflinePredictor(processor, fit.precision)
        self.precision = self.roofline.precision
        self._grain = Grain(processor.width_slice, round(processor.profile.reduce_slice.value), ITEM_BYTES[self.precision])
        self._terms = {name: [(terms.get(term), ms) for term, ms in group.terms.items()] for name, group in fit.groups.items()}
        self._trees = {name: TreeModel(group.trees) for name, group in fit.groups.items() if group.trees is not None}
        self._times: dict[KernelCost, KernelTime] = {}
        self._rows: dict[KernelCost, tuple[float, ...]] = {}

    @property
    def fixed_ms(self) -> float:
        """What an inference takes beside its kernels, ms."""
        return self.fit.correction.fixed_ms

    def interval(self) -> tuple[float, float]:
        """Ends of the interval around a network's time, as factors on it; wider where another device was measured."""
        low, high = self.fit.interval.low, self.fit.interval.high
        if self.fit.sibling is None:
            return low, high
        # independent errors of log-normal factors
        return exp(-hypot(log(low), log(SIBLING_SPREAD))), exp(hypot(log(high), log(SIBLING_SPREAD)))

    def time(self, cost: KernelCost) -> KernelTime:
        """Time of one kernel."""
        return self.times([cost])[0]

    def times(self, costs: Sequence[KernelCost]) -> list[KernelTime]:
        """Time of each kernel; equal kernels are computed once, new ones together."""
        new = list(dict.fromkeys(cost for cost in costs if cost not in self._times))
        for name, at in self._grouped(new).items():
            some = [new[i] for i in at]
            timed = [self.roofline.time(cost) for cost in some] if name is None else self._fitted(name, some).kernels("fit")
            self._times.update(zip(some, timed, strict=True))
        return [self._times[cost] for cost in costs]

    def columns(self, costs: Sequence[KernelCost]) -> Times:
        """Times of kernels as arrays; equal kernels are computed once, also for different devices whose relative this is."""
        known = self._rows if len(self._rows) < _MOST_ROWS else {}
        new = list(dict.fromkeys(cost for cost in costs if cost not in known))
        for name, at in self._grouped(new).items():
            some = [new[i] for i in at]
            table = Times.of([self.roofline.time(cost) for cost in some]) if name is None else self._fitted(name, some)
            known.update(zip(some, zip(*(column.tolist() for column in table), strict=True), strict=True))
        self._rows = known
        return Times(*np.array([known[cost] for cost in costs]).reshape(-1, len(Times._fields)).T)

    def _grouped(self, costs: Sequence[KernelCost]) -> dict[str | None, list[int]]:
        """Numbers of the kernels by the group that times them."""
        groups: dict[str | None, list[int]] = {}
        for number, cost in enumerate(costs):
            groups.setdefault(group_name(cost, self.fit.groups), []).append(number)
        return groups

    def _fitted(self, group: str, costs: list[KernelCost]) -> Times:
        """Times of kernels of one group, what an inference adds to each included."""
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
        # The floor is arithmetic: what is missing to it is.
        raised = np.maximum(total, floor)
        compute = parts["compute"] * factor + (raised - total)
        weights = correction.per_weight_ms * np.asarray(table.weights)
        return Times(
            correction.scale * raised + correction.per_kernel_ms + weights,
            correction.scale * (parts["launch"] * factor) + correction.per_kernel_ms,
            correction.scale * compute,
            correction.scale * (parts["memory"] * factor) + weights,
        )
