"""Pooled fits as the fits of one device, judged on families that no device's times had shown."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from predictors.devices import ITEM_BYTES
from predictors.fits.fit import Correction, Interval, KernelGroup
from predictors.fitting.design import Design, Formula, Networks, design
from predictors.fitting.pooled import Place, TimedCoreSet, fit_pooled
from predictors.fitting.regression import COVERAGE, Vector, rounded
from predictors.measurements.tables import Latency
from predictors.models.fitted import Grain

METHOD = (
    "Student's t for the logarithm of measured ÷ predicted of networks left out with their families, on all devices of the table at this "
    "precision; as many degrees of freedom as networks less one, since the errors of one network on several devices are nearly the same"
)

#: Minimum number of networks of a core set: other core sets inform about networks, not about this core set.
MIN_NETWORKS = 8


@dataclass(frozen=True)
class Pool:
    """All times of one kind of processor, on every device and at every precision that a formula has units for."""

    networks: Networks  # As kernels of the backend.
    formula: Formula  # With its units.
    rows: Sequence[Latency]  # Times; of several runtimes the fastest is predicted.
    folds: Mapping[str, int]  # Fold of each network.
    slices: tuple[int, int]  # Output and input channels that are computed at a time.

    @cached_property
    def designs(self) -> dict[str, Design]:
        """Units of the networks by precision."""
        return {
            precision: design(self.networks, self.formula, Grain(*self.slices, ITEM_BYTES[precision]), precision)
            for precision in sorted({row.precision for row in self.rows} & set(self.formula.units))
        }

    @cached_property
    def timed(self) -> dict[str, list[TimedCoreSet]]:
        """Times by precision, core set and runtime, of core sets whose runtimes together timed enough networks."""
        position = {name: i for i, name in enumerate(self.networks.costs)}
        core_sets: dict[str, list[TimedCoreSet]] = {}
        for precision in self.designs:
            times_by_key: dict[tuple[str, str, str], Vector] = defaultdict(lambda: np.full(len(position), np.nan))
            names: dict[tuple[str, str], set[str]] = defaultdict(set)
            for row in self.rows:
                if row.precision == precision:
                    times_by_key[row.device, row.core_set, row.runtime][position[row.network]] = row.ms
                    names[row.device, row.core_set].add(row.network)
            core_sets[precision] = [
                TimedCoreSet(device, name, times, runtime)
                for (device, name, runtime), times in sorted(times_by_key.items())
                if len(names[device, name]) >= MIN_NETWORKS
            ]
        return core_sets

    @cached_property
    def sets(self) -> dict[str, list[TimedCoreSet]]:
        """Times by precision and core set, with the runtime that is fastest for the network."""
        core_sets: dict[str, list[TimedCoreSet]] = {}
        for precision, rows in self.timed.items():
            fastest: dict[tuple[str, str], Vector] = {}
            for core_set in rows:
                fastest[core_set.key] = np.fmin(fastest.get(core_set.key, core_set.times), core_set.times)
            core_sets[precision] = [TimedCoreSet(*key, times) for key, times in fastest.items()]
        return core_sets

    def sizes(self, without_fold: int | None = None) -> dict[Place, Vector]:
        """Sizes of the parameters, from all networks or those outside of one fold."""
        training = np.array([self.folds[name] != without_fold for name in self.networks.costs])
        return fit_pooled(self.designs, self.formula, self.timed, training)

    @cached_property
    def left_out(self) -> dict[int, dict[Place, Vector]]:
        """Sizes without each fold."""
        return {fold: self.sizes(fold) for fold in sorted(set(self.folds.values()))}

    def groups(self, place: Place, sizes: Vector) -> tuple[dict[str, KernelGroup], Correction]:
        """Return sizes in the form that a fit stores."""
        matrix = self.designs[place[0]]
        stored = np.array([rounded(float(size)) for size in sizes])
        groups = {
            name: KernelGroup({term: rounded(ms) for term, ms in sizes.items()}) for name, sizes in matrix.group_terms(stored).items()
        }
        return groups, Correction(fixed_ms=rounded(matrix.fixed_ms(stored)))

    @cached_property
    def ratios(self) -> dict[Place, dict[str, float]]:
        """Measured ÷ predicted of networks left out, of each core set at each precision."""
        by_place: dict[Place, dict[str, float]] = defaultdict(dict)
        for precision, core_sets in self.sets.items():
            for core_set in core_sets:
                for i, name in enumerate(self.networks.costs):
                    if np.isfinite(core_set.times[i]):
                        sizes = self.left_out[self.folds[name]][precision, *core_set.key]
                        by_place[precision, *core_set.key][name] = float(core_set.times[i] / (self.designs[precision].units[i] @ sizes))
        return dict(by_place)

    def interval_ends(self, precision: str, without_family: str | None = None) -> tuple[float, float]:
        """Ends of the interval at a precision, from networks left out on all devices.

        Args:
            precision: Such as ``int8``.
        """
        from scipy.stats import t

        families = self.networks.families
        logs: dict[str, list[float]] = defaultdict(list)
        for place, ratios in self.ratios.items():
            for name, ratio in ratios.items():
                if place[0] == precision and families[name] != without_family:
                    logs[name].append(float(np.log(ratio)))
        all_logs = np.concatenate([np.array(network_logs) for network_logs in logs.values()])
        half_width = float(t.ppf((1 + COVERAGE) / 2, len(logs) - 1) * np.sqrt(np.mean(all_logs**2)))
        return float(np.exp(-half_width)), float(np.exp(half_width))

    def interval(self, precision: str) -> Interval:
        """The interval at a precision: ten networks on one device are too few for quantiles."""
        low, high = self.interval_ends(precision)
        return Interval(COVERAGE, float(f"{low:.4g}"), float(f"{high:.4g}"), METHOD)

    def coverage(self, places: Sequence[Place]) -> float:
        """Return the coverage of the interval under leave-one-family-out, on any device."""
        families, covered = self.networks.families, []
        bounds: dict[tuple[str, str], tuple[float, float]] = {}
        for place in places:
            for name, ratio in self.ratios[place].items():
                key = (place[0], families[name])
                if key not in bounds:
                    bounds[key] = self.interval_ends(*key)
                covered.append(bounds[key][0] <= ratio <= bounds[key][1])
        return float(np.mean(covered))
