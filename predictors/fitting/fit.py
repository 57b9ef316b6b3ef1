"""All fits of one device: every processor, core set and precision that was measured, judged on families left out."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np

from predictors.devices import DeviceProfile, Processor, list_devices
from predictors.errors import StretchError, UnknownNameError
from predictors.faults import nearest
from predictors.fits.fit import Correction, Fit, HeldOut, Interval, KernelGroup
from predictors.fitting.design import Formula, Networks, design, load_formula, processor_grain
from predictors.fitting.pooled import Place, TimedCoreSet, fit_core_sets
from predictors.fitting.regression import METHOD, Vector, family_coverage, family_interval, rounded
from predictors.fitting.single import TimedKernel, correction, fit_kernels, time_kernels
from predictors.fitting.together import MIN_NETWORKS as MIN_POOLED
from predictors.fitting.together import Pool
from predictors.fusion import KernelCost
from predictors.host import HOST
from predictors.measurements.networks import Measurements, load_measurements
from predictors.measurements.tables import Latency
from predictors.models.fitted import FittedModel

FOLDS = 5


#: Maximum number of families that are left out one by one: without two of seven, a fit knows too little about the others.
FEW_FAMILIES = 8


def family_folds(families: Mapping[str, str], kinds: Mapping[str, Set[str]], folds: int | None = None) -> dict[str, int]:
    """The fold of each network; every family is in one fold, of few families each in a fold of its own.

    Largest families first, each into the fold with the fewest networks. Where only
    two families have a kind of kernel, they are put into different folds, so that
    no fold is predicted without ever having seen the kind.
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

    measurements: str  # Name of the table; it ships with nn-stretch.
    backend: str  # Fusion rules of its fit.
    slices: tuple[int, int]  # Output and input channels that are computed at a time.
    groups: dict[str, str]  # Its kernel groups by the name that they get in the completed fit.
    devices: dict[str, str]  # Names in this table of devices with the same chip, by the name in the other table.


#: By the fusion rules of the fits that they complete.
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
    """The fit, completed by kernel groups of another table with the same device, cores and precision, if there is one."""
    borrowed = BORROWED_FITS.get(fit.backend)
    if borrowed is None:
        return fit
    device, table = borrowed.devices.get(measured_on, measured_on), load_measurements(borrowed.measurements)
    place = (fit.precision, device, fit.core_set)
    # looked up in the table first: fitting all of it takes much longer
    if place not in {(row.precision, row.device, row.core_set) for row in table.latencies}:
        return fit
    pool, sizes = _pool_of(borrowed.measurements)
    if place not in sizes:
        return fit
    fitted, _ = pool.groups(place, sizes[place])
    groups: dict[str, KernelGroup] = fit.groups | {name: fitted[source] for name, source in borrowed.groups.items() if source in fitted}
    source = f"{fit.source}; kernels of transformers: {table.source.title}, device {device}"
    return msgspec.structs.replace(fit, groups=groups, source=source)


@cache
def _pool_of(name: str) -> tuple[Pool, dict[Place, Vector]]:
    """The pooled fit of a table to all of its networks, and its parameters by place."""
    borrowed = next(entry for entry in BORROWED_FITS.values() if entry.measurements == name)
    measured = load_measurements(name)
    networks = Networks(measured.graphs, measured.families, borrowed.backend)
    pool = Pool(
        networks, load_formula(borrowed.backend), measured.latencies, family_folds(measured.families, networks.kinds), borrowed.slices
    )
    return pool, {place: np.asarray(sizes) for place, sizes in pool.sizes().items()}


#: Minimum number of networks and families for an evaluation on another family.
MIN_NETWORKS, MIN_FAMILIES = 12, 3

#: Evaluation of a fit that was not evaluated yet.
_NOT_EVALUATED = HeldOut(0, 0, 0, 0.0, 0.0, 0.0, 0.0)

Predictions = dict[str, float]


@dataclass(frozen=True)
class EvaluatedFit:
    """A fit with its evaluation: predictions by fits made in the same way without the network's family."""

    fit: Fit  # The fit.
    measured: Predictions  # ms of each network.
    predicted: Predictions  # ms of each, left out with its family.


@dataclass(frozen=True)
class _Task:
    """The core sets of one processor at one precision."""

    measurements: Measurements  # All of them, relatives included.
    device: DeviceProfile  # Profile that the fits are for.
    measured_on: str  # Device of the rows that they are made from.
    family: str  # Of the processor.
    precision: str  # Of the rows.
    networks: Networks  # As kernels of the processor's backend.
    formula: Formula  # Of that backend.
    folds: Mapping[str, int]  # Fold of each network.

    def rows(self, device: str | None = None) -> Iterator[Latency]:
        """Rows of this processor and precision, of all devices or one."""
        for row in self.measurements.latencies:
            if (row.processor, row.precision) == (self.family, self.precision) and device in (None, row.device):
                yield row

    def processor(self, core_set: str) -> Processor:
        """The processor of the profile with one core set."""
        return self.device.processor(f"{self.family}[{core_set}]")

    def make(self, core_set: str, groups: dict[str, KernelGroup], correction: Correction) -> Fit:
        """Return a fit that was not evaluated yet."""
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
            Interval(0.9, 1.0, 1.0, METHOD),
            _NOT_EVALUATED,
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
    """Fits of everything that was measured on a device and that its profile has.

    Args:
        measured_on: Device in the tables; the profile's own id if None. Another
            of the same chip may replace it.
        report: Called with the reason why a processor and precision is omitted, where others have enough measurements for a fit.
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
    """Fits of all core sets of one processor at one precision."""
    times: dict[str, Predictions] = defaultdict(dict)
    for row in task.rows(task.measured_on):
        if row.core_set in task.device.processors[task.family].core_sets:
            best_ms = times[row.core_set].get(row.network, row.ms)
            # of several runtimes the fastest
            times[row.core_set][row.network] = min(best_ms, row.ms)
    for core_set, core_set_times in times.items():
        _check(task, core_set, core_set_times)
    if task.formula.units:
        return _fit_together(task, times)
    has_kernel_times = bool(task.formula.kernels) and any(
        (row.device, row.processor, row.precision) == (task.measured_on, task.family, task.precision) for row in task.measurements.kernels
    )
    if not has_kernel_times and not task.formula.parameters:
        raise TooFewMeasurementsError(
            f"{task.family} in {task.precision} has times of whole networks alone, and fits for `{task.networks.backend}` need those of kernels",
            "measure with the times of operators",
        )
    make = _from_kernels if has_kernel_times else _from_networks
    fits = make(task, frozenset(task.networks.costs), times)
    folds = sorted(set(task.folds.values()))
    left_out: dict[str, Predictions] = {core_set: {} for core_set in times}
    for fold in folds:
        training = frozenset(name for name, network_fold in task.folds.items() if network_fold != fold)
        for core_set, fit in make(task, training, times).items():
            model = FittedModel(fit, task.processor(core_set))
            for name, of in task.folds.items():
                if of == fold and name in times[core_set]:
                    left_out[core_set][name] = predict(model, task.networks, name)
    return [_evaluate(task, fit, times[core_set], left_out[core_set], len(folds)) for core_set, fit in fits.items()]


def _fit_together(task: _Task, times: Mapping[str, Predictions]) -> list[EvaluatedFit]:
    """Fits of all core sets that share what they know with all devices and precisions."""
    processor = task.processor(next(iter(times)))
    rows = [row for row in task.measurements.latencies if row.processor == task.family]
    pool = Pool(task.networks, task.formula, rows, task.folds, (processor.width_slice, round(processor.profile.reduce_slice.value)))
    all_sizes = pool.sizes()
    evaluated_fits = []
    for core_set, measured in times.items():
        place = (task.precision, task.measured_on, core_set)
        predicted: Predictions = {}
        for fold, sizes in pool.left_out.items():
            model = FittedModel(task.make(core_set, *pool.groups(place, sizes[place])), task.processor(core_set))
            predicted |= {name: predict(model, task.networks, name) for name in measured if task.folds[name] == fold}
        evaluated = _evaluate(task, task.make(core_set, *pool.groups(place, all_sizes[place])), measured, predicted, len(pool.left_out))
        held_out = msgspec.structs.replace(evaluated.fit.held_out, coverage=rounded(pool.coverage([place])))
        fit = msgspec.structs.replace(evaluated.fit, interval=pool.interval(task.precision), held_out=held_out)
        evaluated_fits.append(EvaluatedFit(fit, evaluated.measured, evaluated.predicted))
    return evaluated_fits


def predict(model: FittedModel, networks: Networks, name: str) -> float:
    """Time of a network from its kernels, ms, as `predictors.predictor` computes it."""
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
    ratios = {name: measured[name] / ms for name, ms in predicted.items()}
    errors = np.array([abs(ms / measured[name] - 1) for name, ms in predicted.items()])
    held_out = HeldOut(
        len(ratios),
        len({task.networks.families[name] for name in ratios}),
        folds,
        rounded(float(np.mean(errors <= 0.1))),
        rounded(float(np.mean(errors <= 0.2))),
        rounded(float(np.mean(errors))),
        rounded(family_coverage(ratios, task.networks.families)),
    )
    evaluated = msgspec.structs.replace(fit, interval=family_interval(ratios, task.networks.families), held_out=held_out)
    return EvaluatedFit(evaluated, dict(measured), dict(predicted))


def _from_networks(task: _Task, training: frozenset[str], times: Mapping[str, Predictions]) -> dict[str, Fit]:
    """Fits to whole networks: those of the other devices share the prior."""
    grain = processor_grain(task.processor(next(iter(times))), task.precision)
    matrix = design(task.networks, task.formula, grain, task.precision)
    times_by_core_set: dict[tuple[str, str], Vector] = defaultdict(lambda: np.full(len(matrix.names), np.nan))
    position = {name: i for i, name in enumerate(matrix.names)}
    runtimes = {row.runtime for row in task.rows(task.measured_on)}
    for row in task.rows():
        if row.runtime in runtimes:
            times_by_core_set[row.device, row.core_set][position[row.network]] = row.ms
    sets = [TimedCoreSet(*key, values) for key, values in sorted(times_by_core_set.items()) if np.isfinite(values).sum() >= MIN_NETWORKS]
    sizes = fit_core_sets(matrix, task.formula, task.precision, sets, np.array([name in training for name in matrix.names]))
    fits = {}
    for core_set in times:
        core_set_sizes = np.array([rounded(float(size)) for size in sizes[task.measured_on, core_set]])
        groups = {
            name: KernelGroup({term: rounded(ms) for term, ms in sizes.items()})
            for name, sizes in matrix.group_terms(core_set_sizes).items()
        }
        fits[core_set] = task.make(core_set, groups, Correction(fixed_ms=rounded(matrix.fixed_ms(core_set_sizes))))
    return fits


def _from_kernels(task: _Task, training: frozenset[str], times: Mapping[str, Predictions]) -> dict[str, Fit]:
    """Fits to single kernels, then from their sums to whole networks."""
    fits = {}
    for core_set, measured in times.items():
        key = (task.measured_on, task.family, core_set, task.precision)
        rows = [
            TimedKernel(row.network, row.cost, row.ms)
            for row in task.measurements.kernels
            if (row.device, row.processor, row.core_set, row.precision) == key and row.network in training
        ]
        grain = processor_grain(task.processor(core_set), task.precision)
        groups = fit_kernels(rows, task.formula, grain)
        core_set_correction = correction(
            *_sums(task, groups, rows, {name: ms for name, ms in measured.items() if name in training}, core_set)
        )
        fits[core_set] = task.make(core_set, groups, core_set_correction)
    return fits


def _sums(
    task: _Task, groups: dict[str, KernelGroup], rows: Sequence[TimedKernel], measured: Predictions, core_set: str
) -> tuple[Vector, Vector, Vector, Vector, Vector]:
    """For each network the sum of its kernels, how many there are, their weight elements, the elements that cross to the processor, and its time.

    Kernels that were measured count with their own time: predictions of trees
    for the networks they were grown from are better than those for others.
    """
    grain = processor_grain(task.processor(core_set), task.precision)
    measured_ms: dict[tuple[str, KernelCost], list[float]] = defaultdict(list)
    for row in rows:
        measured_ms[row.network, row.cost].append(row.ms)
    mean = {key: float(np.mean(values)) for key, values in measured_ms.items()}
    sums = []
    for name in measured:
        costs = task.networks.costs[name]
        estimated = np.nan_to_num(time_kernels(groups, costs, grain))
        sums.append(sum(mean.get((name, cost), float(ms)) for cost, ms in zip(costs, estimated, strict=True)))
    counts = [float(len(task.networks.costs[name])) for name in measured]
    weights = [float(sum(cost.weights for cost in task.networks.costs[name])) for name in measured]
    elements = [0.0 if task.family == HOST else float(task.networks.io_elements(name)) for name in measured]
    return np.array(sums), np.array(counts), np.array(weights), np.array(elements), np.array(list(measured.values()))
