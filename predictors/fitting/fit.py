"""All fits of one device: every measured processor, core set and precision, evaluated on families left out.

A fit is made from times of kernels, with a correction from whole networks, or from the times of whole networks
alone (`predictors.fitting.networks`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import floor
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.devices import ITEM_BYTES, DeviceProfile, Processor, list_devices
from predictors.errors import StretchError, UnknownNameError
from predictors.faults import nearest
from predictors.fits import Correction, Fit, HeldOut, Interval, KernelGroup, Trees
from predictors.fitting.networks import (
    COVERAGE,
    Design,
    Formula,
    Networks,
    Place,
    TimedCoreSet,
    Vector,
    design,
    family_coverage,
    family_interval,
    fit_core_sets,
    fit_pooled,
    load_formula,
    processor_grain,
    rounded,
    solve,
)
from predictors.fusion import KernelCost
from predictors.host import HOST
from predictors.measurements.networks import Measurements, load_measurements
from predictors.measurements.tables import Latency
from predictors.models.fitted import FittedModel, Grain, TreeModel, columns, features, group_members, terms

# Fits to the times of single kernels; the additional time of an inference comes from whole networks.

#: Minimum number of measured kernels for trees.
MIN_KERNELS = 100

#: Maximum correction by trees, as a logarithm.
BOUND = 1.5

ITERATIONS, LEAVES, RATE, MIN_LEAF = 200, 8, 0.08, 5

FEATURES = (
    *("in_channels", "out_channels", "groups", "taps", "pixels", "stride", "macs", "reads", "writes", "weights", "serial"),
    *("slices", "slice_outputs", "slice_share", "slice_edge", "edge_2", "edge_4", "traffic"),
)


def grow(costs: Sequence[KernelCost], targets: NDArray[np.float64], weights: NDArray[np.float64]) -> Trees:
    """Return trees grown on the residuals of a group's terms (Friedman 2001; histograms as in LightGBM, Ke et al. 2017)."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    table = columns(costs)
    rows = np.stack([np.asarray(features.get(name)(table), dtype=np.float64) for name in FEATURES], axis=1)
    model = HistGradientBoostingRegressor(
        max_iter=ITERATIONS,
        max_leaf_nodes=LEAVES,
        learning_rate=RATE,
        min_samples_leaf=MIN_LEAF,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    )
    # Rounding keeps a last digit that differs between processors from changing a split.
    model.fit(np.round(rows, 9), np.round(targets, 9), sample_weight=np.round(weights, 9))
    return _flatten([trees[0].nodes for trees in model._predictors], float(model._baseline_prediction.ravel()[0]))


def _flatten(predictors: Sequence[NDArray[np.void]], base: float) -> Trees:
    """Return the trees of scikit-learn as flat lists."""
    roots: list[int] = []
    rows: list[tuple[int, float, int, int, float]] = []
    for nodes in predictors:
        start = len(rows)
        roots.append(start)
        for number, node in enumerate(nodes, start):
            if node["is_leaf"]:
                rows.append((0, 0.0, number, number, round(float(node["value"]), 5)))
            else:
                bound = _rounded_threshold(float(node["num_threshold"]))
                rows.append((int(node["feature_idx"]), bound, start + int(node["left"]), start + int(node["right"]), 0.0))
    feature, threshold, left, right, value = zip(*rows, strict=True)
    return Trees(FEATURES, tuple(roots), feature, threshold, left, right, value, round(base, 6), BOUND)


def _rounded_threshold(threshold: float) -> float:
    """Return a threshold between two values of a feature, with few digits: whole numbers are separated halfway."""
    return floor(threshold) + 0.5 if threshold >= 64 else round(threshold, 6)


#: Minimum number of kernels for the terms of a group.
MIN_GROUP = 5

#: Minimum time of a kernel in ms, so that its logarithm exists.
MIN_MS = 1e-4


@dataclass(frozen=True)
class TimedKernel:
    """A measured kernel."""

    network: str  # Name of the kernel's network.
    cost: KernelCost  # Facts that its time depends on.
    ms: float  # Measured time of the kernel.


def fit_kernels(rows: Sequence[TimedKernel], formula: Formula, grain: Grain) -> dict[str, KernelGroup]:
    """Return a formula for each group and, with enough kernels, trees."""
    members = group_members([row.cost for row in rows], tuple(formula.kernels))
    groups = {
        name: _group([rows[i] for i in members[name]], names, grain)
        for name, names in formula.kernels.items()
        if len(members.get(name, ())) >= MIN_GROUP
    }
    for kind, reference_group in formula.like.items():
        if reference_group in groups:
            groups[kind] = _unmeasured(groups[reference_group])
    return groups


def _unmeasured(group: KernelGroup) -> KernelGroup:
    """Return the memory terms of a measured group, for kernels that are in no table.

    Trees are left out because they depend on the group's shapes, and the launch term because whole networks show that kernels without
    products, which tables omit, hardly cost a launch (`correction` finds their actual cost).
    """
    return KernelGroup({name: size for name, size in group.terms.items() if terms.get(name).part == "memory"})


def _group(rows: Sequence[TimedKernel], names: Sequence[str], grain: Grain) -> KernelGroup:
    costs = [row.cost for row in rows]
    times = np.array([row.ms for row in rows])
    table = columns(costs)
    units = np.stack([np.broadcast_to(np.asarray(terms.get(name).units(table, grain), dtype=float), len(rows)) for name in names], axis=1)
    sizes = [rounded(float(size)) for size in solve(units, times)]
    summed = np.maximum(units @ np.array(sizes), MIN_MS)
    trees = None
    if len(rows) >= MIN_KERNELS:
        # Long kernels count more, because a network's time is their sum.
        weights = np.sqrt(times / times.mean())
        trees = grow(costs, np.log(times / summed), weights)
    return KernelGroup({name: size for name, size in zip(names, sizes, strict=True) if size > 0}, trees, len(rows))


def time_kernels(groups: dict[str, KernelGroup], costs: Sequence[KernelCost], grain: Grain) -> Vector:
    """Return the times of kernels by groups, ms; NaN for kernels without a group."""
    times = np.full(len(costs), np.nan)
    for name, indices in group_members(costs, groups).items():
        if name is None:
            continue
        table, group = columns([costs[i] for i in indices]), groups[name]
        ms = sum(size * np.asarray(terms.get(term).units(table, grain), dtype=float) for term, size in group.terms.items())
        times[indices] = ms * np.exp(TreeModel(group.trees)(table)) if group.trees is not None else ms
    return times


def correction(sums: Vector, kernels: Vector, weights: Vector, elements: Vector, times: Vector) -> Correction:
    """Return the correction from sums of kernels to whole networks, fitted on the relative error; see `Correction`.

    Args:
        elements: Elements of inputs and outputs; if all networks have the same number, their time is part of the constant.
    """
    moved = elements if np.ptp(elements) else np.zeros(len(sums))
    sizes = solve(np.stack([sums, kernels, weights, moved, np.ones(len(sums))], axis=1), times)
    scale, per_kernel, per_weight, per_io_element, fixed = (rounded(float(size)) for size in sizes)
    return Correction(scale, per_kernel, fixed, per_weight, per_io_element)


# Pooled fits: all times of one kind of processor together.


POOLED_METHOD = (
    "Student's t for the logarithm of measured ÷ predicted of networks left out with their families, on all devices of the table at this "
    "precision; as many degrees of freedom as networks less one, since the errors of one network on several devices are nearly the same"
)

#: Minimum number of networks of a core set in a pool: other core sets inform about networks, but not about this core set.
MIN_POOLED = 8


def _times_by(rows: Iterable[Latency], networks: Iterable[str], key: Callable[[Latency], tuple[str, ...]]) -> dict[Any, Vector]:
    """Return the times of all networks by key, with keys in order and networks in the given order; NaN where not measured."""
    position = {name: i for i, name in enumerate(networks)}
    times: dict[tuple[str, ...], Vector] = defaultdict(lambda: np.full(len(position), np.nan))
    for row in rows:
        times[key(row)][position[row.network]] = row.ms
    return dict(sorted(times.items()))


@dataclass(frozen=True)
class Pool:
    """All times of one kind of processor, on every device and at every precision for which the formula has units."""

    networks: Networks  # Networks as kernels of the backend.
    formula: Formula  # Formula with units.
    rows: Sequence[Latency]  # Measured times; for several runtimes the fastest is predicted.
    folds: Mapping[str, int]  # Fold of each network.
    slices: tuple[int, int]  # Numbers of output and input channels computed at a time.

    @cached_property
    def designs(self) -> dict[str, Design]:
        """Units of the networks by precision."""
        return {
            precision: design(self.networks, self.formula, Grain(*self.slices, ITEM_BYTES[precision]), precision)
            for precision in sorted({row.precision for row in self.rows} & set(self.formula.units))
        }

    @cached_property
    def timed(self) -> dict[str, list[TimedCoreSet]]:
        """Times by precision, core set and runtime, for core sets with enough networks over all runtimes."""
        core_sets: dict[str, list[TimedCoreSet]] = {}
        for precision in self.designs:
            rows = [row for row in self.rows if row.precision == precision]
            names: dict[tuple[str, str], set[str]] = defaultdict(set)
            for row in rows:
                names[row.device, row.core_set].add(row.network)
            times = _times_by(rows, self.networks.costs, lambda row: (row.device, row.core_set, row.runtime))
            core_sets[precision] = [
                TimedCoreSet(device, name, values, runtime)
                for (device, name, runtime), values in times.items()
                if len(names[device, name]) >= MIN_POOLED
            ]
        return core_sets

    @cached_property
    def sets(self) -> dict[str, list[TimedCoreSet]]:
        """Times by precision and core set, with the fastest runtime for each network."""
        core_sets: dict[str, list[TimedCoreSet]] = {}
        for precision, rows in self.timed.items():
            fastest: dict[tuple[str, str], Vector] = {}
            for core_set in rows:
                fastest[core_set.key] = np.fmin(fastest.get(core_set.key, core_set.times), core_set.times)
            core_sets[precision] = [TimedCoreSet(*key, times) for key, times in fastest.items()]
        return core_sets

    def sizes(self, without_fold: int | None = None) -> dict[Place, Vector]:
        """Return the sizes of the parameters, from all networks or from the networks outside one fold."""
        training = np.array([self.folds[name] != without_fold for name in self.networks.costs])
        return fit_pooled(self.designs, self.formula, self.timed, training)

    @cached_property
    def left_out(self) -> dict[int, dict[Place, Vector]]:
        """Sizes of the parameters without each fold."""
        return {fold: self.sizes(fold) for fold in sorted(set(self.folds.values()))}

    @cached_property
    def ratios(self) -> dict[Place, dict[str, float]]:
        """Measured ÷ predicted of networks left out, by place and network."""
        by_place: dict[Place, dict[str, float]] = defaultdict(dict)
        for precision, core_sets in self.sets.items():
            for core_set in core_sets:
                for i, name in enumerate(self.networks.costs):
                    if np.isfinite(core_set.times[i]):
                        sizes = self.left_out[self.folds[name]][precision, *core_set.key]
                        by_place[precision, *core_set.key][name] = float(core_set.times[i] / (self.designs[precision].units[i] @ sizes))
        return dict(by_place)

    def interval_ends(self, precision: str, without_family: str | None = None) -> tuple[float, float]:
        """Return the interval at a precision, from networks left out on all devices, as factors on a prediction."""
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
        """Return the interval at a precision; it does not use quantiles, because ten networks on one device are too few."""
        low, high = self.interval_ends(precision)
        return Interval(COVERAGE, float(f"{low:.4g}"), float(f"{high:.4g}"), POOLED_METHOD)

    def coverage(self, places: Sequence[Place]) -> float:
        """Return the coverage of the interval under leave-one-family-out, at the given places."""
        families, covered = self.networks.families, []
        bounds: dict[tuple[str, str], tuple[float, float]] = {}
        for place in places:
            for name, ratio in self.ratios[place].items():
                key = (place[0], families[name])
                if key not in bounds:
                    bounds[key] = self.interval_ends(*key)
                covered.append(bounds[key][0] <= ratio <= bounds[key][1])
        return float(np.mean(covered))


# Folds of families.


FOLDS = 5

#: Maximum number of families that are left out one by one: without two of seven families, a fit knows too little about the others.
FEW_FAMILIES = 8


def family_folds(families: Mapping[str, str], kinds: Mapping[str, Set[str]], folds: int | None = None) -> dict[str, int]:
    """Return the fold of each network; a family is in one fold, and with few families each has its own fold.

    The largest families come first, each in the fold with the fewest networks. If only
    two families have a kind of kernel, they are in different folds, so that every
    fold is predicted by a fit that has seen the kind.
    """
    sizes = Counter(families.values())
    folds = folds or (len(sizes) if len(sizes) <= FEW_FAMILIES else FOLDS)
    kinds_of_family = {
        family: frozenset().union(*(kinds[name] for name, fold_of_family in families.items() if fold_of_family == family))
        for family in sizes
    }
    family_counts = Counter(kind for kinds in kinds_of_family.values() for kind in kinds)
    rare = {family: {kind for kind in kinds if family_counts[kind] == 2} for family, kinds in kinds_of_family.items()}
    load = [0] * min(folds, len(sizes))
    kinds_in_fold: list[set[str]] = [set() for _ in load]
    of: dict[str, int] = {}
    for family in sorted(sizes, key=lambda name: (-sizes[name], name)):
        allowed_folds = [i for i in range(len(load)) if not rare[family] & kinds_in_fold[i]] or list(range(len(load)))
        fold = min(allowed_folds, key=lambda i: (load[i], i))
        of[family] = fold
        load[fold] += sizes[family]
        kinds_in_fold[fold] |= rare[family]
    return {name: of[family] for name, family in families.items()}


# Borrowed fits: kernel groups that a table of measurements lacks, taken from a fit to another table of the same cores.
#
# The tables of convolutional networks contain no attention, token normalisation or GELU.
# Another table has transformers on the same phones. Groups that both tables contain keep the fit of the first.


class BorrowedFit(NamedTuple):
    """A table of measurements whose kernel groups complete fits to other tables."""

    measurements: str  # Name of the table, which ships with nn-stretch.
    backend: str  # Fusion rules of the table's fit.
    slices: tuple[int, int]  # Numbers of output and input channels computed at a time.
    groups: dict[str, str]  # Kernel groups of the table, by their name in the completed fit.
    devices: dict[str, str]  # Names in this table of devices with the same chip, by their name in the other table.


#: Tables by the fusion rules of the fits that they complete.
BORROWED_FITS = {
    "tflite_cpu": BorrowedFit(
        "transformers",
        "tflite_cpu_transformers",
        (8, 4),
        # A linear layer over one position is a classifier, which convolutional networks contain.
        {"linear:": "linear"}
        | {name: name for name in ("matmul", "elementwise:softmax", "elementwise:layer_norm", "elementwise:gelu", "copy:permute")},
        {"mi8se": "onefusion"},
    )
}


def add_borrowed(fit: Fit, measured_on: str) -> Fit:
    """Return the fit with added kernel groups from another table of the same device, cores and precision, if there is one."""
    borrowed = BORROWED_FITS.get(fit.backend)
    if borrowed is None:
        return fit
    device, table = borrowed.devices.get(measured_on, measured_on), load_measurements(borrowed.measurements)
    place = (fit.precision, device, fit.core_set)
    # the table is checked first, because fitting all of it takes much longer
    if place not in {(row.precision, row.device, row.core_set) for row in table.latencies}:
        return fit
    pool, sizes = _pool_of(borrowed.measurements)
    if place not in sizes:
        return fit
    fitted, _ = pool.designs[fit.precision].stored(sizes[place])
    groups: dict[str, KernelGroup] = fit.groups | {name: fitted[source] for name, source in borrowed.groups.items() if source in fitted}
    source = f"{fit.source}; kernels of transformers: {table.source.title}, device {device}"
    return msgspec.structs.replace(fit, groups=groups, source=source)


@cache
def _pool_of(name: str) -> tuple[Pool, dict[Place, Vector]]:
    """Return the pooled fit to all networks of a table, and its parameters by place."""
    borrowed = next(entry for entry in BORROWED_FITS.values() if entry.measurements == name)
    measured = load_measurements(name)
    networks = Networks(measured.graphs, measured.families, borrowed.backend)
    pool = Pool(
        networks, load_formula(borrowed.backend), measured.latencies, family_folds(measured.families, networks.kinds), borrowed.slices
    )
    return pool, {place: np.asarray(sizes) for place, sizes in pool.sizes().items()}


#: Minimum number of networks and families for an evaluation on another family.
MIN_NETWORKS, MIN_FAMILIES = 12, 3

#: Interval and accuracy of a fit before its evaluation.
_NOT_EVALUATED = Interval(COVERAGE, 1.0, 1.0, "none"), HeldOut(0, 0, 0, 0.0, 0.0, 0.0, 0.0)

Predictions = dict[str, float]


@dataclass(frozen=True)
class EvaluatedFit:
    """A fit with its evaluation: predictions by fits made in the same way without the network's family."""

    fit: Fit  # The fit.
    measured: Predictions  # Measured time of each network, ms.
    predicted: Predictions  # Predicted time of each network, left out with its family, ms.


@dataclass(frozen=True)
class _Task:
    """The core sets of one processor at one precision."""

    measurements: Measurements  # All measurements, relatives included.
    device: DeviceProfile  # Profile of the fits.
    measured_on: str  # Device of the rows for the fits.
    family: str  # Family of the processor.
    precision: str  # Precision of the rows.
    networks: Networks  # Networks as kernels of the processor's backend.
    formula: Formula  # Formula of the backend.
    folds: Mapping[str, int]  # Fold of each network.

    def rows(self, device: str | None = None) -> Iterator[Latency]:
        """Yield the rows of this processor and precision, of all devices or of one."""
        for row in self.measurements.latencies:
            if (row.processor, row.precision) == (self.family, self.precision) and device in (None, row.device):
                yield row

    @property
    def core_sets(self) -> Mapping[str, object]:
        """Core sets of the processor in the profile."""
        return self.device.processors[self.family].core_sets

    def processor(self, core_set: str) -> Processor:
        """Return the processor of the profile with one core set."""
        return self.device.processor(f"{self.family}[{core_set}]")

    def grain(self, core_set: str) -> Grain:
        """Return the slices that the processor computes in with one core set."""
        return processor_grain(self.processor(core_set), self.precision)

    @cached_property
    def pool(self) -> Pool:
        """All devices and precisions of the processor, for a formula with pooled fits."""
        grain = self.grain(next(row.core_set for row in self.rows(self.measured_on) if row.core_set in self.core_sets))
        rows = [row for row in self.measurements.latencies if row.processor == self.family]
        return Pool(self.networks, self.formula, rows, self.folds, (grain.width_slice, grain.reduce_slice))

    def make(self, core_set: str, groups: dict[str, KernelGroup], correction: Correction) -> Fit:
        """Return a fit that has not been evaluated."""
        runtimes = sorted({row.runtime for row in self.rows(self.measured_on)})
        source = self.measurements.source
        link = f"; {source.url} at {source.commit}" if source.url else ""
        return Fit(
            self.family,
            core_set,
            self.precision,
            self.networks.backend,
            ", ".join(runtimes),
            groups,
            correction,
            *_NOT_EVALUATED,
            f"{source.title}, device {self.measured_on}{link}",
            self.measured_on if self.measured_on != self.device.id and self.measured_on in list_devices() else None,
        )


class TooFewMeasurementsError(StretchError):
    """One processor has too few measurements at one precision for a fit."""


def fit_device(
    measurements: Measurements,
    device: DeviceProfile,
    measured_on: str | None = None,
    step: Callable[[], object] = lambda: None,
    report: Callable[[str], object] = lambda message: None,
) -> list[EvaluatedFit]:
    """Return the fits of everything that was measured on a device and is in its profile.

    Args:
        measured_on: Device in the tables; the profile's id if None. Another
            device with the same chip may replace it.
        report: Called with the reason for each processor and precision that is left out, if others have enough measurements for a fit.
    """
    measured_on = measured_on or device.id
    measured_rows = [row for row in measurements.latencies if row.device == measured_on]
    if not measured_rows:
        raise UnknownNameError.among("device in these measurements", measured_on, sorted({row.device for row in measurements.latencies}))
    targets = sorted(
        {
            (row.processor, row.precision)
            for row in measured_rows
            if row.processor in device.processors and row.core_set in device.processors[row.processor].core_sets
        }
    )
    if not targets:
        names = sorted({f"{row.processor}[{row.core_set}]" for row in measured_rows})
        raise StretchError(
            f"the profile `{device.id}` has none of the core sets that were measured: {', '.join(names)}",
            nearest(names[0], device.variants),
        )
    networks_by_backend: dict[str, Networks] = {}
    evaluated_fits: list[EvaluatedFit] = []
    omitted: list[TooFewMeasurementsError] = []
    for family, precision in targets:
        backend = device.processors[family].backend
        try:
            formula = load_formula(backend)
        except StretchError as error:
            omitted.append(TooFewMeasurementsError(f"{family} in {precision}: {error.message}", error.hint))
            continue
        if formula.units and precision not in formula.units:
            continue
        if backend not in networks_by_backend:
            networks_by_backend[backend] = Networks(measurements.graphs, measurements.families, backend)
        networks = networks_by_backend[backend]
        folds = family_folds(measurements.families, networks.kinds)
        task = _Task(measurements, device, measured_on, family, precision, networks, formula, folds)
        try:
            evaluated_fits += [replace(judged, fit=add_borrowed(judged.fit, measured_on)) for judged in _fit(task)]
        except TooFewMeasurementsError as error:
            omitted.append(error)
        step()
    if omitted and not evaluated_fits:
        raise omitted[0]
    for reason in omitted:
        report(reason.message)
    return evaluated_fits


def _fit(task: _Task) -> list[EvaluatedFit]:
    """Return the fits of all core sets of one processor at one precision."""
    times: dict[str, Predictions] = defaultdict(dict)
    for row in task.rows(task.measured_on):
        if row.core_set in task.core_sets:
            # the fastest of several runtimes
            times[row.core_set][row.network] = min(times[row.core_set].get(row.network, row.ms), row.ms)
    for core_set, core_set_times in times.items():
        _check(task, core_set, core_set_times)
    make = _from_pool if task.formula.units else _from_kernels if _has_kernel_times(task) else _from_networks
    fits, folds = make(task, None, times), sorted(set(task.folds.values()))
    left_out: dict[str, Predictions] = {core_set: {} for core_set in times}
    for fold in folds:
        for core_set, fit in make(task, fold, times).items():
            model = FittedModel(fit, task.processor(core_set))
            names = [name for name in times[core_set] if task.folds[name] == fold]
            left_out[core_set] |= {name: predict(model, task.networks, name) for name in names}
    return [_evaluate(task, fit, times[core_set], left_out[core_set], len(folds)) for core_set, fit in fits.items()]


def _has_kernel_times(task: _Task) -> bool:
    """Return whether to fit times of single kernels; times of whole networks alone need a formula with parameters."""
    key = (task.measured_on, task.family, task.precision)
    if task.formula.kernels and any((row.device, row.processor, row.precision) == key for row in task.measurements.kernels):
        return True
    if not task.formula.parameters:
        raise TooFewMeasurementsError(
            f"{task.family} in {task.precision} has times of whole networks alone, and fits for `{task.networks.backend}` need those of kernels",
            "measure with the times of operators",
        )
    return False


def predict(model: FittedModel, networks: Networks, name: str) -> float:
    """Return the time of a network from its kernels, ms, computed as in `predictors.predictor`."""
    return sum(time.ms for time in model.times(networks.costs[name])) + model.inference_ms(networks.io_elements(name))


def _check(task: _Task, core_set: str, times: Predictions) -> None:
    families = {task.networks.families[name] for name in times}
    minimum = MIN_POOLED if task.formula.units else MIN_NETWORKS
    if len(times) < minimum or len(families) < MIN_FAMILIES:
        raise TooFewMeasurementsError(
            f"{task.family}[{core_set}] in {task.precision} has times of {len(times)} networks of {len(families)} families, "
            f"too few for a fit",
            f"measure at least {minimum} networks of {MIN_FAMILIES} families",
        )


def _evaluate(task: _Task, fit: Fit, measured: Predictions, predicted: Predictions, folds: int) -> EvaluatedFit:
    """Return the fit with its interval and the errors of fits made in the same way."""
    families, ratios = task.networks.families, {name: measured[name] / ms for name, ms in predicted.items()}
    errors = np.array([abs(ms / measured[name] - 1) for name, ms in predicted.items()])
    if task.formula.units:
        interval, coverage = task.pool.interval(task.precision), task.pool.coverage([(task.precision, task.measured_on, fit.core_set)])
    else:
        interval, coverage = family_interval(ratios, families), family_coverage(ratios, families)
    shares = (float(np.mean(errors <= 0.1)), float(np.mean(errors <= 0.2)), float(np.mean(errors)), coverage)
    held_out = HeldOut(len(ratios), len({families[name] for name in ratios}), folds, *map(rounded, shares))
    return EvaluatedFit(msgspec.structs.replace(fit, interval=interval, held_out=held_out), dict(measured), dict(predicted))


def _from_pool(task: _Task, without_fold: int | None, times: Mapping[str, Predictions]) -> dict[str, Fit]:
    """Return fits that share parameters with all devices and precisions."""
    pool = task.pool
    sizes = pool.sizes() if without_fold is None else pool.left_out[without_fold]
    matrix = pool.designs[task.precision]
    return {core_set: task.make(core_set, *matrix.stored(sizes[task.precision, task.measured_on, core_set])) for core_set in times}


def _from_networks(task: _Task, without_fold: int | None, times: Mapping[str, Predictions]) -> dict[str, Fit]:
    """Return fits to whole networks; the fits of other devices share their prior."""
    matrix = design(task.networks, task.formula, task.grain(next(iter(times))), task.precision)
    runtimes = {row.runtime for row in task.rows(task.measured_on)}
    rows = (row for row in task.rows() if row.runtime in runtimes)
    timed = _times_by(rows, matrix.names, lambda row: (row.device, row.core_set))
    sets = [TimedCoreSet(device, name, values) for (device, name), values in timed.items() if np.isfinite(values).sum() >= MIN_NETWORKS]
    training = np.array([task.folds[name] != without_fold for name in matrix.names])
    sizes = fit_core_sets(matrix, task.formula, task.precision, sets, training)
    return {core_set: task.make(core_set, *matrix.stored(sizes[task.measured_on, core_set])) for core_set in times}


def _from_kernels(task: _Task, without_fold: int | None, times: Mapping[str, Predictions]) -> dict[str, Fit]:
    """Return fits to single kernels, corrected from their sums to whole networks."""
    fits = {}
    for core_set, measured in times.items():
        key = (task.measured_on, task.family, core_set, task.precision)
        rows = [
            TimedKernel(row.network, row.cost, row.ms)
            for row in task.measurements.kernels
            if (row.device, row.processor, row.core_set, row.precision) == key and task.folds[row.network] != without_fold
        ]
        groups = fit_kernels(rows, task.formula, task.grain(core_set))
        training = {name: ms for name, ms in measured.items() if task.folds[name] != without_fold}
        fits[core_set] = task.make(core_set, groups, correction(*_sums(task, groups, rows, training, core_set)))
    return fits


def _sums(
    task: _Task, groups: dict[str, KernelGroup], rows: Sequence[TimedKernel], measured: Predictions, core_set: str
) -> tuple[Vector, Vector, Vector, Vector, Vector]:
    """Return for each network the summed ms of its kernels, their number, their weights, the transferred elements, and its ms.

    Measured kernels count with their measured time, because trees predict the
    networks that they were grown from better than other networks.
    """
    measured_ms: dict[tuple[str, KernelCost], list[float]] = defaultdict(list)
    for row in rows:
        measured_ms[row.network, row.cost].append(row.ms)
    mean = {key: float(np.mean(values)) for key, values in measured_ms.items()}
    sums = []
    for name in measured:
        costs = task.networks.costs[name]
        estimated = np.nan_to_num(time_kernels(groups, costs, task.grain(core_set)))
        sums.append(sum(mean.get((name, cost), float(ms)) for cost, ms in zip(costs, estimated, strict=True)))
    counts = [float(len(task.networks.costs[name])) for name in measured]
    weights = [float(sum(cost.weights for cost in task.networks.costs[name])) for name in measured]
    elements = [0.0 if task.family == HOST else float(task.networks.io_elements(name)) for name in measured]
    return np.array(sums), np.array(counts), np.array(weights), np.array(elements), np.array(list(measured.values()))
