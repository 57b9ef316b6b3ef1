"""Priors of processors without a fit: from all fitted relatives, calibrated by the times of a few whole networks.

The relatives of a processor are the processors of its family that were fitted at the same precision, in the same
runtime and with the same number of cores; a profile may name backends of other kinds if none of its own kind was
fitted. Each relative is left out in turn: the others, scaled by the ratios of peaks and
bandwidths, predict the networks measured on it. The error of its median network is one sample of
the error for an unmeasured chip; a normal distribution over chips (Student's t, because they are few),
with the scatter of networks within a chip, gives the interval.

A calibration uses times as printed by `benchmark_model`, `benchncnn` or `benchmark_app`. Kernel times come from the calibrated
profile: its fit, its prior or its roofline. A handful of networks determines a few numbers of a processor: how much longer
dense, depthwise, GELU and other kernels take, and the additional time of each kernel and each inference. The numbers are the
most probable ones (maximum a posteriori) under log-normal priors around the profile's own, and their covariance (Laplace's
approximation) gives the interval, which narrows with each measurement. Each network is left out in turn; if the others predict
it worse than the covariance says, the interval is widened accordingly. Other core sets of a processor start from the numbers
of the core set with the most networks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, prod, sqrt
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from predictors.devices import DeviceProfile, Processor
from predictors.errors import StretchError, UsageError
from predictors.fits import Calibration, Fit, Interval, LeftOut, MeasuredNetwork, Prior, Relative
from predictors.fitting.networks import COVERAGE, Networks, Vector, core_counts, rounded
from predictors.fusion import KernelCost, load_rules
from predictors.graph import OpGraph
from predictors.host import HOST
from predictors.measurements.networks import Measurements
from predictors.measurements.tables import read_table
from predictors.models.fitted import FittedModel
from predictors.models.related import FAMILIES, Ratios, family_of
from predictors.models.roofline import Times
from predictors.predictor import LatencyPredictor
from predictors.rewrites import apply_exact_rewrites, exact

#: Minimum number of relatives for a spread.
MIN_RELATIVES = 3

RELATIVES_METHOD = (
    "relatives left out one after the other: Student's t over the middle of each one's log ratios, with the scatter of networks "
    "within a relative added (the prediction interval of a one-way random-effects model)"
)


@dataclass(frozen=True)
class FittedProcessor:
    """A fitted processor, with the networks measured on it."""

    name: Relative  # Reference to the processor.
    processor: Processor  # The processor with its core set.
    measured: Mapping[str, float]  # Measured time of each network, ms.
    times: Mapping[str, Times]  # Kernel times of each network by the processor's fit.
    fixed_ms: float  # Time of an inference beyond its kernels.

    def predict_on(self, other: Processor, precision: str) -> dict[str, float]:
        """Return the predictions of this processor's fit for each network on another processor, ms."""
        ratios = Ratios.between(self.processor, other, precision)
        return {name: sum(ratios.of(times).ms.tolist()) + self.fixed_ms for name, times in self.times.items()}


def fit_priors(
    device: DeviceProfile,
    profiles: Iterable[DeviceProfile],
    measurements: Sequence[Measurements],
    step: Callable[[], object] = lambda: None,
) -> list[Prior]:
    """Return the priors of all core sets and precisions of a device without a fit and with enough relatives."""
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
    """Return for each chip the logarithms of measured ÷ predicted of its networks, predicted from the other chips."""
    ratios = []
    for chip in chips:
        predictions = [relative.predict_on(chip.processor, precision) for relative in chips if relative is not chip]
        mean = {name: sum(prediction[name] for prediction in predictions) / len(predictions) for name in chip.measured}
        ratios.append({name: log(ms / mean[name]) for name, ms in chip.measured.items()})
    return ratios


def spread(ratios: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Return the centre and half-width of the interval of a chip's log ratios, from the ratios of other chips."""
    middles = np.array([np.median(list(ratio.values())) for ratio in ratios])
    within = np.mean([np.var(np.array(list(ratio.values())) - middle) for ratio, middle in zip(ratios, middles, strict=True)])
    between = np.var(middles, ddof=1) * (1 + 1 / len(middles))
    width = stats.t.ppf(0.5 + COVERAGE / 2, len(middles) - 1) * sqrt(between + within)
    return float(np.mean(middles)), float(width)


def _interval(half_width: float, method: str) -> Interval:
    """Return an interval around a prediction from the half-width of its logarithm's interval."""
    return Interval(COVERAGE, rounded(exp(-half_width)), rounded(exp(half_width)), method)


def _left_out(chips: int, errors: Vector | list[float], covered: NDArray[np.bool_] | list[bool]) -> LeftOut:
    """Return the accuracy of predictions, from the relative error of each and whether its time was inside the interval."""
    sizes = np.abs(errors)
    shares = (float(np.mean(sizes <= 0.2)), float(np.mean(sizes)), float(np.mean(covered)))
    return LeftOut(chips, len(errors), *map(rounded, shares))


def _prior(processor: Processor, precision: str, chips: Sequence[FittedProcessor]) -> Prior:
    ratios = log_ratios(chips, precision)
    middle, width = spread(ratios)
    errors, covered = [], []
    for i in range(len(chips)):
        others = [*chips[:i], *chips[i + 1 :]]
        # Without this chip: the others predict each other, and then this chip.
        center, half_width = spread(log_ratios(others, precision)) if len(others) > 1 else (0.0, float("inf"))
        errors += [exp(center - ratio) - 1 for ratio in ratios[i].values()]
        covered += [abs(ratio - center) <= half_width for ratio in ratios[i].values()]
    return Prior(
        processor.family,
        processor.core_set,
        precision,
        tuple(chip.name for chip in chips),
        rounded(exp(middle)),
        _interval(width, RELATIVES_METHOD),
        _left_out(len(chips), errors, covered),
    )


def _prior_from_fewer_cores(pool: "_Pool", device: DeviceProfile, processor: Processor, precision: str) -> Prior | None:
    """Return a prior from the fit of the largest fitted subset of the same cores, or None without one.

    An additional core therefore never makes a prediction slower. The error comes from pairs of core sets that were both fitted.
    """

    def best(target: Processor) -> FittedProcessor | None:
        chips = [
            chip
            for chip in pool.own(device, precision)
            if chip.name.processor == target.family and _is_proper_subset(chip.name.core_set, target.core_set)
        ]
        return max(chips, key=lambda chip: sum(core_counts(chip.name.core_set).values()), default=None)

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
    errors_off = [exp(log(scale) - error) - 1 for ratio in errors for error in ratio.values()]
    covered = [abs(error - middle) <= width for ratio in errors for error in ratio.values()]
    evaluation, interval = _left_out(len(errors), errors_off, covered), _interval(width, RELATIVES_METHOD)
    return Prior(processor.family, processor.core_set, precision, (part.name,), rounded(scale), interval, evaluation)


def _is_proper_subset(part: str, whole: str) -> bool:
    """Return whether a core set such as ``3med`` is a proper subset of another such as ``1large3med``."""
    inner, outer = core_counts(part), core_counts(whole)
    return part != whole and bool(inner) and all(count <= outer.get(kind, 0) for kind, count in inner.items())


class _Pool:
    """Every fitted processor of several profiles, evaluated once."""

    def __init__(self, profiles: Sequence[DeviceProfile], measurements: Sequence[Measurements]) -> None:
        self._profiles, self._measurements = profiles, measurements
        self._chips: dict[Relative, FittedProcessor] = {}
        self._costs: dict[tuple[str, str], dict[str, list[KernelCost]]] = {}

    def relatives(self, device: DeviceProfile, processor: Processor, precision: str) -> list[FittedProcessor]:
        """Return the relatives of a device's processor; of several profiles of one measured device, only the first."""
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
        """Return the fitted processors of a device at a precision."""
        fitted = _fitted_processors(device, precision)
        return [
            self._chip(Relative(device.id, processor.family, processor.core_set, precision), processor, processor.fits[precision])
            for processor in fitted
        ]

    def _chip(self, name: Relative, relative: Processor, fit: Fit) -> FittedProcessor:
        """Return a relative with its measured networks, as kernels of its own runtime."""
        if name not in self._chips:
            model = FittedModel(fit, relative)
            tables = [table for table in self._measurements if table.source.title in fit.source]
            networks = {network: costs for table in tables for network, costs in self._networks(relative.profile.backend, table).items()}
            times = {network: Times.of(model.times(costs)) for network, costs in networks.items()}
            self._chips[name] = FittedProcessor(name, relative, self._measured(name, fit), times, model.inference_ms())
        return self._chips[name]

    def _networks(self, backend: str, table: Measurements) -> dict[str, list[KernelCost]]:
        """Return the networks of a table as kernels of a backend."""
        key = (backend, table.source.title)
        if key not in self._costs:
            self._costs[key] = Networks(table.graphs, table.families, backend).costs
        return self._costs[key]

    def _measured(self, name: Relative, fit: Fit) -> dict[str, float]:
        """Return the measured time of each network, ms, on the device named in the fit's source."""
        key = (name.processor, name.core_set, name.precision)
        return {
            row.network: row.ms
            for table in self._measurements
            for row in table.latencies
            if (row.processor, row.core_set, row.precision) == key and f"{table.source.title}, device {row.device};" in f"{fit.source};"
        }


def _fitted_processors(profile: DeviceProfile, precision: str) -> list[Processor]:
    """Return the processors of a profile with a fit at a precision, for every core set."""
    processors = [
        profile.processor(f"{family}[{core_set}]") for family, processor in profile.processors.items() for core_set in processor.core_sets
    ]
    return [processor for processor in processors if precision in processor.fits]


def _is_relative(profile: DeviceProfile, relative: Processor, device: DeviceProfile, processor: Processor) -> bool:
    """Return whether a processor of one profile is a relative of a processor of another device."""
    if relative.profile.backend in processor.profile.relatives:
        return True
    same_kind = relative.family == processor.family and _runtime(profile, relative) == _runtime(device, processor)
    return same_kind and sum(core_counts(relative.core_set).values()) == sum(core_counts(processor.core_set).values())


def _runtime(device: DeviceProfile, processor: Processor) -> tuple[str, str | None]:
    """Return the base of a processor's runtime and its interface, whichever implementations the runtime chooses."""
    rules, link = load_rules(processor.profile.backend), device.links.get(processor.family)
    return rules.base or rules.id, link.runtime if link else None


# Calibration by the times of whole networks.


#: Standard deviations of logarithms: of a time without a stated one, and of networks around their prediction.
MEASURED, NETWORKS = 0.06, 0.08

#: The numbers of a processor: factors on families of kernels, all but the first relative to the first, ms per kernel, ms per
#: inference, ms per pipeline, and the slowdown of a measured sibling; with the standard deviations of their logarithms before any
#: measurement, and from one core set to another.
SCALE, DEPTHWISE, OTHER, GELU, KERNEL, INFERENCE, PIPELINE, SIBLING = range(8)
SPREADS = (3.0, 1.2, 0.4, 2.0, 1.5, 1.2, 1.0, 0.0)
CORES = (0.3, 0.2, 0.2, 0.2, 0.5, 0.5, 0.0, 0.0)

#: Time of an inference on the CPU beyond its kernels, before any measurement, ms; on other processors it follows from the links.
INFERENCE_MS = 0.1

#: Time of a pipeline beyond its network for an image of 224×224 pixels, ms, before any measurement; proportional to the image size.
PIPELINE_MS, IMAGE = 3.0, 3 * 224 * 224

#: Ratio above which two times of one network contradict each other, and ratio to other rows above which a time has another unit.
CONTRADICTION, OTHER_UNIT = 1.3, 30.0

#: Maximum relative difference between a table's multiply-accumulates and the network's.
MACS = 0.1

#: Minimum number of pipelines to determine their additional time, if no network was timed alone.
MIN_PIPELINES = 3

#: Minimum number of networks for a choice between relatives and the processor's own roofline.
MIN_CHOICE = 8

CALIBRATION_METHOD = (
    "covariance of log-normal parameters given the measured networks (Laplace's approximation), Student's t, widened to the errors "
    "of networks left out"
)

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class NetworkTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of a table of networks: one network on one processor."""

    model: _Text  # A name of `stretch list models` or a file, as for `stretch predict`.
    processor: _Text  # Processor such as ``gpu`` or ``cpu[1large3med]``.
    ms: Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # Time of the network.
    precision: str = ""  # Precision such as ``int8``; the processor's default if empty.
    input: str = ""  # Input shape such as ``3x224x224`` or ``224``; the model's default if empty.
    network: str = ""  # Name in messages; the model if empty.
    macs: Annotated[float, msgspec.Meta(gt=0)] | None = None  # Multiply-accumulates, 10⁹, to check that the network is the measured one.
    #: Standard deviation of the time's logarithm, such as 0.25 for a sibling with the same chip or another runtime.
    spread: Annotated[float, msgspec.Meta(gt=0, le=3)] | None = None
    pipeline: bool = False  # Whether the time is of a whole pipeline; all pipelines share a constant in addition to the network's time.
    #: For times of a sibling: standard deviation of the logarithm of its times ÷ those of this device, the same for all such rows.
    sibling: Annotated[float, msgspec.Meta(gt=0, le=3)] | None = None
    source: str = ""  # Publisher of the time.

    @property
    def name(self) -> str:
        """Name of the network in messages."""
        return self.network or self.model


@dataclass(frozen=True)
class CalibrationResult:
    """The calibration of one processor at one precision."""

    prior: Prior  # Prior with the calibration.
    next_network: str  # Network of `candidates` whose time would narrow the interval most.
    next_width: float  # Upper end of the interval ÷ prediction with that time.
    posterior: "_Posterior"  # The numbers and their covariance.
    interval_factor: float  # Factor on the interval, by which errors of networks left out exceed the covariance's.


def read_networks(path: Path) -> list[NetworkTime]:
    """Read and check a table of networks: CSV whose columns are the fields of `NetworkTime`, in any order.

    Raises:
        StretchError: If a row lacks a time or has no number where one is needed, or two rows contradict each other; names the line.
    """
    rows = read_table(path, NetworkTime)
    for i, row in enumerate(rows):
        for other in rows[:i]:
            keys = [(r.model, r.input, r.processor, r.precision, r.pipeline) for r in (row, other)]
            if keys[0] == keys[1] and not 1 / CONTRADICTION < row.ms / other.ms < CONTRADICTION:
                raise StretchError(
                    f"{path}: {row.name} on {row.processor} takes {other.ms:g} ms in one row and {row.ms:g} ms in another",
                    "keep the one that was measured as the others were",
                )
    return rows


def calibrate(
    base: DeviceProfile,
    reference: str,
    rows: Sequence[NetworkTime],
    graph_of: Callable[[NetworkTime], OpGraph],
    candidates: Mapping[str, OpGraph],
    source: str,
    rewrites: Sequence[str] = (),
) -> tuple[list[Prior], dict[str, CalibrationResult]]:
    """Return the priors of every core set and precision of a profile, calibrated for those in the rows.

    Args:
        base: The profile to calibrate.
        reference: Name for `load_device` that the priors refer to; empty for priors of this profile, which keeps its fits.
        rows: Rows of the table.
        graph_of: Returns the network of a row.
        candidates: Networks by name that could be measured next; the rows' networks if empty. The interval is that of their average.
        source: Source of the times.
        rewrites: Exact rewrites of the networks on every processor, in addition to those of the profile.

    Returns:
        All priors, and the new ones by processor, core set and precision.

    Raises:
        UsageError: If a processor does not support a row's precision, or a rewrite is not exact.
        StretchError: If a row's time has another unit, its network is not the measured one, or there are too few rows.
    """
    if inexact := [name for name in rewrites if name not in exact]:
        raise UsageError(f"the rewrite `{inexact[0]}` changes what a network computes", f"choose among {', '.join(sorted(exact))}")
    keys = (*base.fits, *base.priors) if reference else tuple(base.priors)
    priors = {key: _prior_from(base, reference, *key) for key in keys}
    groups: dict[tuple[str, str], dict[str, list[NetworkTime]]] = {}
    for row in rows:
        processor = base.processor(row.processor)
        key = processor.family, processor.check_precision(row.precision or None)
        groups.setdefault(key, {}).setdefault(processor.core_set, []).append(row)
    candidates = candidates or {row.name: graph_of(row) for row in rows}
    results: dict[str, CalibrationResult] = {}
    for (family, precision), of_core_sets in groups.items():
        core_sets = [name for name, cores in base.processors[family].core_sets.items() if precision in cores.peak_gops]
        first = max(of_core_sets, key=lambda name: (sum(not row.pipeline for row in of_core_sets[name]), len(of_core_sets[name])))
        origins = ", ".join(dict.fromkeys(row.source for group_rows in of_core_sets.values() for row in group_rows if row.source))
        described_source = f"{source}: {origins}" if origins else source
        lead: CalibrationResult | None = None
        for core_set in (first, *(name for name in core_sets if name != first)):
            start = priors.get((family, core_set, precision)) or Prior(
                family,
                core_set,
                precision,
                (),
                1.0,
                Interval(COVERAGE, 1.0, 1.0, CALIBRATION_METHOD),
                _NOT_EVALUATED,
                _identity_calibration(described_source),
            )
            own_rows = of_core_sets.get(core_set, [])
            # the roofline is an alternative to the relatives; other core sets use the base of the first, from whose numbers they start
            roofline = msgspec.structs.replace(start, relatives=(), scale=1.0, calibration=_identity_calibration(described_source))
            bases = [start] if lead is None else [start if lead.prior.relatives and start.relatives else roofline]
            bases += [roofline] if lead is None and start.relatives and len(own_rows) >= MIN_CHOICE else []
            calibrated = []
            for candidate in bases:
                neutral = msgspec.structs.replace(candidate, calibration=_identity_calibration(described_source))
                profile = msgspec.structs.replace(base, fits={}, priors={**priors, (family, core_set, precision): neutral})
                parts = _Parts(LatencyPredictor(profile), f"{family}[{core_set}]", precision, rewrites)
                calibrated.append(_calibrated(candidate, parts, own_rows, graph_of, candidates, described_source, lead))
            best = min(calibrated, key=_mean_square_error)
            lead = lead or best
            if own_rows:
                results[f"{family}[{core_set}] {precision}"] = best
            priors[family, core_set, precision] = best.prior
    return list(priors.values()), results


def _identity_calibration(source: str) -> Calibration:
    """Return a calibration that changes nothing."""
    return Calibration(dict.fromkeys(FAMILIES, 1.0), 0.0, 0.0, (), source)


def _mean_square_error(calibrated: CalibrationResult) -> float:
    """Return the mean square logarithmic error of networks, each predicted by the others."""
    networks = calibrated.prior.calibration.networks if calibrated.prior.calibration else ()
    return float(np.mean([log(row.left_out_ms / row.measured_ms) ** 2 for row in networks])) if networks else 0.0


_NOT_EVALUATED = LeftOut(0, 0, 0.0, 0.0, 0.0)


def _prior_from(base: DeviceProfile, reference: str, family: str, core_set: str, precision: str) -> Prior:
    """Return a profile's fit or prior of a processor as a prior for another profile of the same device."""
    fit = base.fits.get((family, core_set, precision))
    if fit is None:
        return base.priors[family, core_set, precision]
    judged = fit.held_out
    return Prior(
        family,
        core_set,
        precision,
        (Relative(reference, family, core_set, precision),),
        1.0,
        fit.interval,
        LeftOut(1, judged.networks, judged.within_20, judged.mape, judged.coverage),
    )


class _Parts:
    """Components of a network's time on a processor, before calibration.

    Args:
        rewrites: Rewrites of networks, in addition to the profile's.
    """

    def __init__(self, predictor: LatencyPredictor, processor: str, precision: str, rewrites: Sequence[str]) -> None:
        self.predictor, self.processor, self.precision = predictor, processor, precision
        self.profile = predictor.device.processor(processor).profile
        self.rewrites = rewrites

    def of(self, graph: OpGraph) -> Vector:
        """Return ms by family of kernels, numbers of kernels, inferences and images, and uncalibrated ms (kernels that the CPU computes)."""
        estimate = self.predictor.predict(apply_exact_rewrites(graph, self.rewrites)[0], self.processor, self.precision)
        parts = dict.fromkeys((*FAMILIES, "kernels", "inferences", "images", "elsewhere"), 0.0)
        for kernel in estimate.kernels:
            if kernel.kernel.elsewhere:
                parts["elsewhere"] += kernel.time.ms
            else:
                parts[family_of(kernel.kernel.cost)] += kernel.time.ms - kernel.time.launch_ms
                parts["kernels"] += 1
        parts |= {"inferences": 1.0, "images": sum(prod(op.shape) for op in graph.inputs) / IMAGE}
        return np.array(list(parts.values()))

    def middle(self) -> Vector:
        """Return the logarithms of the numbers before any measurement."""
        launch_ms = self.profile.launch_us.value / 1e3
        links, place = self.predictor.links, self.processor
        moved_ms = links.ms(HOST, place, IMAGE, self.precision) + links.ms(place, HOST, 0, self.precision)
        logs = np.zeros(len(SPREADS))
        logs[[KERNEL, INFERENCE, PIPELINE]] = log(max(launch_ms, 1e-6)), log(moved_ms or INFERENCE_MS), log(PIPELINE_MS)
        return logs


@dataclass(frozen=True)
class _Posterior:
    """Logarithms of the numbers of a processor, with their covariance."""

    mean: Vector
    covariance: Vector

    def variance(self, parts: Vector, row: NetworkTime | None = None) -> float:
        """Return the variance of the logarithm of a predicted time."""
        slope = _slope(self.mean, parts, row)
        return float(slope @ self.covariance @ slope)


def _shares(logs: Vector, parts: Vector, row: NetworkTime | None) -> Vector:
    """Return the times of each family of kernels, then the additional times of kernels, inference and pipeline, ms."""
    relative = logs[[SCALE, DEPTHWISE, OTHER, GELU]] + np.array([0.0, *[logs[SCALE]] * 3])
    return np.asarray(
        np.exp([*relative, *logs[[KERNEL, INFERENCE, PIPELINE]]]) * np.append(parts[:6], parts[6] * (row is not None and row.pipeline))
    )


def _ms(logs: Vector, parts: Vector, row: NetworkTime | None) -> float:
    ms = float(_shares(logs, parts, row).sum() + parts[7])
    return ms * exp(logs[SIBLING]) if row is not None and row.sibling else ms


def _slope(logs: Vector, parts: Vector, row: NetworkTime | None) -> Vector:
    """Return the derivative of a time's logarithm with respect to the numbers."""
    shares = _shares(logs, parts, row)
    slopes: Vector = np.append(shares, 0.0) / (shares.sum() + parts[7])
    slopes[SCALE] = slopes[: GELU + 1].sum()
    slopes[SIBLING] = row is not None and row.sibling is not None
    return slopes


def _spread(row: NetworkTime) -> float:
    """Return the standard deviation of a row's logarithmic time around its prediction."""
    return sqrt((row.spread or MEASURED) ** 2 + NETWORKS**2)


def _posterior(rows: Sequence[NetworkTime], parts: Sequence[Vector], before: _Posterior) -> _Posterior:
    """Return the most probable numbers for the rows, with `before` as their prior."""
    free_numbers = np.diag(before.covariance) > 0
    whiten = np.linalg.inv(np.linalg.cholesky(before.covariance[np.ix_(free_numbers, free_numbers)]))

    def logs(free_logs: Vector) -> Vector:
        return np.asarray(
            np.where(free_numbers, 0.0, before.mean) + np.eye(len(free_numbers))[:, free_numbers] @ free_logs, dtype=np.float64
        )

    def residuals(free: Vector) -> Vector:
        errors = [log(_ms(logs(free), p, row) / row.ms) / _spread(row) for row, p in zip(rows, parts, strict=True)]
        return np.concatenate([errors, whiten @ (free - before.mean[free_numbers])])

    def jacobian(free: Vector) -> Vector:
        slopes = [_slope(logs(free), p, row)[free_numbers] / _spread(row) for row, p in zip(rows, parts, strict=True)]
        return np.vstack([*slopes, whiten])

    solution = optimize.least_squares(
        residuals, before.mean[free_numbers], jacobian, x_scale=np.sqrt(np.diag(before.covariance)[free_numbers])
    )
    slopes = jacobian(solution.x)
    covariance = np.zeros_like(before.covariance)
    covariance[np.ix_(free_numbers, free_numbers)] = np.linalg.inv(slopes.T @ slopes)
    return _Posterior(logs(solution.x), covariance)


def _calibrated(
    start: Prior,
    parts_of: _Parts,
    rows: Sequence[NetworkTime],
    graph_of: Callable[[NetworkTime], OpGraph],
    candidates: Mapping[str, OpGraph],
    source: str,
    lead: CalibrationResult | None,
) -> CalibrationResult:
    """Return the calibration of one core set at one precision, starting from `lead`, the result of the core set with the most networks."""
    description = f"{start.processor}[{start.core_set}] in {start.precision}"
    if lead is None and 0 < len(rows) == sum(row.pipeline for row in rows) < MIN_PIPELINES:
        raise StretchError(
            f"{len(rows)} pipelines on {description} do not show the time that pipelines take in addition to their networks",
            f"give {MIN_PIPELINES} of them, or times of networks alone",
        )
    graphs = [graph_of(row) for row in rows]
    for row, graph in zip(rows, graphs, strict=True):
        if row.macs is not None and abs(graph.macs / (row.macs * 1e9) - 1) > MACS:
            raise StretchError(
                f"{row.name} has {graph.macs / 1e9:.3g}·10⁹ multiply-accumulates, the table says {row.macs:.3g}·10⁹: it is not the network measured",
                "name the model and the input that were measured",
            )
    parts = [parts_of.of(graph) for graph in graphs]
    if rows:
        _check_units(rows, parts, description)
    reference = [parts_of.of(graph) for graph in candidates.values()]
    if lead is None:
        spreads = np.array(SPREADS)
        spreads[SIBLING] = max((row.sibling or 0.0 for row in rows), default=0.0)
        before = _Posterior(parts_of.middle(), np.diag(spreads**2))
    else:
        before = _Posterior(lead.posterior.mean, lead.posterior.covariance + np.diag(np.square(CORES)))
    posterior = _posterior(rows, parts, before)
    left_out, squares = [], []
    for i, row in enumerate(rows):
        without_row = _posterior([*rows[:i], *rows[i + 1 :]], [*parts[:i], *parts[i + 1 :]], before)
        left_out.append(_ms(without_row.mean, parts[i], row))
        squares.append(log(row.ms / left_out[-1]) ** 2 / (without_row.variance(parts[i], row) + _spread(row) ** 2))
    interval_factor = lead.interval_factor if lead and not rows else max(1.0, sqrt(sum(squares) / len(squares)))
    degrees_of_freedom = len(rows) + (len(lead.prior.calibration.networks) if lead and lead.prior.calibration else 0)
    quantile = float(stats.t.ppf(0.5 + COVERAGE / 2, degrees_of_freedom))

    def width(covariance: Vector) -> float:
        """Return the half-width of the interval of the logarithm, for the average candidate."""
        variances = [_Posterior(posterior.mean, covariance).variance(p) for p in reference]
        return quantile * interval_factor * sqrt(float(np.mean(variances)) + NETWORKS**2)

    widths = {}
    for name, p in zip(candidates, reference, strict=True):
        slope = _slope(posterior.mean, p, None)
        gain = posterior.covariance @ slope
        widths[name] = width(posterior.covariance - np.outer(gain, gain) / (slope @ gain + MEASURED**2 + NETWORKS**2))
    best = min(widths, key=lambda name: widths[name])
    half = width(posterior.covariance)
    scale, depthwise, other, gelu, kernel, inference, pipeline, _ = posterior.mean.tolist()
    # whether all networks timed alone were measured on another device
    similar = any(row.sibling for row in rows) and all(row.sibling or row.pipeline for row in rows)
    calibration = Calibration(
        dict(zip(FAMILIES, (rounded(exp(log)) for log in (scale, scale + depthwise, scale + other, scale + gelu)), strict=True)),
        rounded(exp(kernel)),
        rounded(exp(inference)),
        tuple(
            MeasuredNetwork(row.name, row.ms, rounded(_ms(posterior.mean, p, row)), rounded(ms))
            for row, p, ms in zip(rows, parts, left_out, strict=True)
        ),
        source,
        similar if rows or lead is None else bool(lead.prior.calibration and lead.prior.calibration.similar),
        rounded(exp(pipeline)) if any(row.pipeline for row in rows) else 0.0,
    )
    prior = msgspec.structs.replace(
        start,
        interval=_interval(half, CALIBRATION_METHOD),
        left_out=_evaluate(calibration.networks, half) if rows or lead is None else lead.prior.left_out,
        calibration=calibration,
    )
    return CalibrationResult(prior, best, exp(widths[best]), posterior, interval_factor)


def _evaluate(networks: Sequence[MeasuredNetwork], half: float) -> LeftOut:
    """Return the errors of networks, each predicted by the others."""
    off = np.array([row.left_out_ms / row.measured_ms for row in networks])
    return _left_out(len(networks), off - 1, np.abs(np.log(off)) <= half)


def _check_units(rows: Sequence[NetworkTime], parts: Sequence[Vector], description: str) -> None:
    """Refuse a time that is far from the profile's prediction, scaled by the other rows."""
    ratios = [row.ms / float(p[:4].sum() + p[7]) for row, p in zip(rows, parts, strict=True)]
    middle = median(ratios) if len(rows) > 2 else 1.0
    worst = max(range(len(rows)), key=lambda i: abs(log(ratios[i] / middle)))
    if abs(log(ratios[worst] / middle)) > log(OTHER_UNIT):
        times = ratios[worst] / middle
        raise StretchError(
            f"{rows[worst].name} on {description} is {rows[worst].ms:g} ms in the table, "
            f"{max(times, 1 / times):.0f} times {'more' if times > 1 else 'less'} than {'the other rows suggest' if len(rows) > 2 else 'predicted'}",
            "the column `ms` has milliseconds",
        )
