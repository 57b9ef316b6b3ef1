"""Priors of unmeasured processors from all fitted relatives, with the spread of the relatives as interval.

The relatives of a processor are those of its family that were fitted at the same
precision in the same runtime with as many cores; a profile may name the backends of others, where none of
its own kind was ever fitted. Each is left out in turn: the others,
scaled by the ratio of peaks and bandwidths, predict the networks that were measured on
it. How far the middle of its networks lies off is one draw of how far a chip that nobody
measured lies off; a normal distribution over chips (Student's t, as they are few) with the scatter of
networks within a chip gives the interval.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
from scipy import stats

from predictors.devices import DeviceProfile, Processor
from predictors.errors import StretchError
from predictors.fits.fit import Fit, Interval
from predictors.fits.prior import LeftOut, Prior, Relative
from predictors.fitting.regression import rounded
from predictors.fusion import Fuser, KernelCost, load_rules
from predictors.measurements.networks import Measurements
from predictors.models.fitted import FittedModel
from predictors.models.related import Ratios
from predictors.models.roofline import Times

COVERAGE = 0.9

#: Minimum number of relatives for a spread.
MIN_RELATIVES = 3

METHOD = (
    "relatives left out one after the other: Student's t over the middle of each one's log ratios, with the scatter of networks "
    "within a relative added (the prediction interval of a one-way random-effects model)"
)


@dataclass(frozen=True)
class FittedProcessor:
    """A fitted processor with the networks that were measured on it."""

    name: Relative  # Where it is found.
    processor: Processor  # With its core set.
    measured: Mapping[str, float]  # ms of each network.
    times: Mapping[str, Times]  # Kernel times of each network by its fit.
    fixed_ms: float  # Time of an inference in addition to them.

    def predict_on(self, other: Processor, precision: str) -> dict[str, float]:
        """Return its fit's predictions for each network on another processor, ms."""
        ratios = Ratios.between(self.processor, other, precision)
        return {name: sum(ratios.of(times).ms.tolist()) + self.fixed_ms for name, times in self.times.items()}


def fit_priors(
    device: DeviceProfile,
    profiles: Iterable[DeviceProfile],
    measurements: Sequence[Measurements],
    step: Callable[[], object] = lambda: None,
) -> list[Prior]:
    """Priors of all core sets and precisions of a device that have no fit and enough relatives."""
    pool = _Pool([profile for profile in profiles if profile.id != device.id], measurements)
    own_pool = _Pool([device], measurements)
    priors = []
    for family, profile in device.processors.items():
        for core_set, cores in profile.core_sets.items():
            processor = device.processor(f"{family}[{core_set}]")
            for precision in cores.peak_gops:
                if precision in processor.fits:
                    continue
                prior = _prior_from_fewer_cores(own_pool, device, processor, precision)
                if prior is None and len(chips := pool.relatives(device, processor, precision)) >= MIN_RELATIVES:
                    prior = _prior(processor, precision, chips)
                if prior is not None:
                    priors.append(prior)
                    step()
    if not priors:
        raise StretchError(
            f"no processor of {device.id} has {MIN_RELATIVES} fitted relatives",
            "relatives are of the same family, runtime, precision and number of cores",
        )
    return priors


def log_ratios(chips: Sequence[FittedProcessor], precision: str) -> list[dict[str, float]]:
    """For each chip the logarithm of measured ÷ predicted of its networks, predicted from the other chips."""
    ratios = []
    for chip in chips:
        predictions = [relative.predict_on(chip.processor, precision) for relative in chips if relative is not chip]
        ratios.append({name: log(ms / _mean([prediction[name] for prediction in predictions])) for name, ms in chip.measured.items()})
    return ratios


def spread(ratios: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Middle and half-width of the interval of a chip's log ratios, from those of other chips."""
    middles = np.array([np.median(list(ratio.values())) for ratio in ratios])
    within = np.mean([np.var(np.array(list(ratio.values())) - middle) for ratio, middle in zip(ratios, middles, strict=True)])
    between = np.var(middles, ddof=1) * (1 + 1 / len(middles))
    width = stats.t.ppf(0.5 + COVERAGE / 2, len(middles) - 1) * sqrt(between + within)
    return float(np.mean(middles)), float(width)


def _prior(processor: Processor, precision: str, chips: Sequence[FittedProcessor]) -> Prior:
    ratios = log_ratios(chips, precision)
    middle, width = spread(ratios)
    errors, covered = [], []
    for i in range(len(chips)):
        others = [*chips[:i], *chips[i + 1 :]]
        # Without this chip: the others around each other, and then on it.
        center, half_width = spread(log_ratios(others, precision)) if len(others) > 1 else (0.0, float("inf"))
        errors += [exp(center - ratio) - 1 for ratio in ratios[i].values()]
        covered += [abs(ratio - center) <= half_width for ratio in ratios[i].values()]
    return Prior(
        processor.family,
        processor.core_set,
        precision,
        tuple(chip.name for chip in chips),
        rounded(exp(middle)),
        Interval(COVERAGE, rounded(exp(-width)), rounded(exp(width)), METHOD),
        LeftOut(
            len(chips),
            len(errors),
            rounded(float(np.mean(np.abs(errors) <= 0.2))),
            rounded(float(np.mean(np.abs(errors)))),
            rounded(float(np.mean(covered))),
        ),
    )


def _prior_from_fewer_cores(pool: "_Pool", device: DeviceProfile, processor: Processor, precision: str) -> Prior | None:
    """Return a prior from the fit of a subset of the same cores, the largest such set; None if none was fitted.

    So another core never makes a prediction slower. The error is known from pairs of sets that were both fitted.
    """

    def best(target: Processor) -> FittedProcessor | None:
        chips = [
            chip
            for chip in pool.own(device, precision)
            if chip.name.processor == target.family and _is_proper_subset(chip.name.core_set, target.core_set)
        ]
        return max(chips, key=lambda chip: _cores(chip.name.core_set) or 0, default=None)

    part = best(processor)
    if part is None:
        return None
    pairs = [(chip, inner) for chip in pool.own(device, precision) if chip.measured and (inner := best(chip.processor))]
    errors = []
    for chip, inner in pairs:
        predicted = inner.predict_on(chip.processor, precision)
        errors.append({name: log(ms / predicted[name]) for name, ms in chip.measured.items()})
    if len(errors) < MIN_RELATIVES:
        return None
    middle, width = spread(errors)
    ratios = Ratios.between(part.processor, processor, precision)
    scale = min(exp(middle), 1 / max(ratios.compute, ratios.memory))
    errors_off = np.array([exp(log(scale) - error) - 1 for ratio in errors for error in ratio.values()])
    covered = [abs(error - middle) <= width for ratio in errors for error in ratio.values()]
    judged = LeftOut(
        len(errors),
        len(errors_off),
        rounded(float(np.mean(np.abs(errors_off) <= 0.2))),
        rounded(float(np.mean(np.abs(errors_off)))),
        rounded(float(np.mean(covered))),
    )
    interval = Interval(COVERAGE, rounded(exp(-width)), rounded(exp(width)), METHOD)
    return Prior(processor.family, processor.core_set, precision, (part.name,), rounded(scale), interval, judged)


def _is_proper_subset(part: str, whole: str) -> bool:
    """Whether a core set such as ``3med`` is a proper part of another such as ``1large3med``."""
    counts = [{kind: int(count) for count, kind in re.findall(r"(\d+)([A-Za-z]+)", name)} for name in (part, whole)]
    return part != whole and bool(counts[0]) and all(count <= counts[1].get(kind, 0) for kind, count in counts[0].items())


class _Pool:
    """Every fitted processor of some profiles, evaluated once."""

    def __init__(self, profiles: Sequence[DeviceProfile], measurements: Sequence[Measurements]) -> None:
        self._profiles, self._measurements = profiles, measurements
        self._chips: dict[Relative, FittedProcessor] = {}
        self._costs: dict[tuple[str, str], dict[str, list[KernelCost]]] = {}

    def relatives(self, device: DeviceProfile, processor: Processor, precision: str) -> list[FittedProcessor]:
        """Relatives of a processor of a device; of several profiles of one measured device the first alone."""
        chips: dict[tuple[str, str], FittedProcessor] = {}
        for profile in self._profiles:
            for relative in _fitted_processors(profile, precision):
                fit = relative.fits[precision]
                key = (fit.source, relative.core_set)
                if key not in chips and _is_relative(profile, relative, device, processor):
                    name = Relative(profile.id, relative.family, relative.core_set, precision)
                    chips[key] = self._chip(name, relative, fit)
        return [chip for chip in chips.values() if chip.measured]

    def own(self, device: DeviceProfile, precision: str) -> list[FittedProcessor]:
        """The fitted processors of one of the profiles."""
        fitted = _fitted_processors(device, precision)
        return [
            self._chip(Relative(device.id, processor.family, processor.core_set, precision), processor, processor.fits[precision])
            for processor in fitted
        ]

    def _chip(self, name: Relative, relative: Processor, fit: Fit) -> FittedProcessor:
        """A relative with what was measured on it, all networks as kernels of its own runtime."""
        if name not in self._chips:
            model = FittedModel(fit, relative)
            tables = [table for table in self._measurements if table.source.title in fit.source]
            networks = {network: costs for table in tables for network, costs in self._networks(relative.profile.backend, table).items()}
            times = {network: Times.of(model.times(costs)) for network, costs in networks.items()}
            self._chips[name] = FittedProcessor(name, relative, self._measured(name, fit), times, model.inference_ms())
        return self._chips[name]

    def _networks(self, backend: str, table: Measurements) -> dict[str, list[KernelCost]]:
        """The networks of a table as kernels of a backend."""
        key = (backend, table.source.title)
        if key not in self._costs:
            fuser = Fuser(load_rules(backend))
            self._costs[key] = {network: [kernel.cost for kernel in fuser.fuse(graph)] for network, graph in table.graphs.items()}
        return self._costs[key]

    def _measured(self, name: Relative, fit: Fit) -> dict[str, float]:
        """Time of each network, ms, on the device that the fit says it is from."""
        key = (name.processor, name.core_set, name.precision)
        return {
            row.network: row.ms
            for table in self._measurements
            for row in table.latencies
            if (row.processor, row.core_set, row.precision) == key and f"{table.source.title}, device {row.device};" in f"{fit.source};"
        }


def _fitted_processors(profile: DeviceProfile, precision: str) -> list[Processor]:
    """Processors of a profile that have a fit at a precision, with every core set."""
    processors = [
        profile.processor(f"{family}[{core_set}]") for family, processor in profile.processors.items() for core_set in processor.core_sets
    ]
    return [processor for processor in processors if precision in processor.fits]


def _is_relative(profile: DeviceProfile, relative: Processor, device: DeviceProfile, processor: Processor) -> bool:
    """Whether a processor of one profile is a relative of a processor of another device."""
    if relative.profile.backend in processor.profile.relatives:
        return True
    same_kind = relative.family == processor.family and _runtime(profile, relative) == _runtime(device, processor)
    return same_kind and _cores(relative.core_set) == _cores(processor.core_set)


def _runtime(device: DeviceProfile, processor: Processor) -> tuple[str, str | None]:
    """Runtime of a processor and the way to reach it, whichever implementations are chosen there."""
    rules, link = load_rules(processor.profile.backend), device.links.get(processor.family)
    return rules.base or rules.id, link.runtime if link else None


def _cores(core_set: str) -> int | None:
    """Return the number of cores in a core set's name, such as ``1large3med``; None if it has no number."""
    numbers = [int(sign) for sign in core_set if sign.isdigit()]
    return sum(numbers) if numbers else None


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
