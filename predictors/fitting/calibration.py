"""Calibration of a processor by the times of a few whole networks, as `benchmark_model`, `benchncnn` or `benchmark_app` print them.

Kernel times come from the profile that is calibrated: its fit, its prior, or its roofline. A handful of networks
decides four numbers of a processor: how much longer dense, depthwise and other kernels take, and what each kernel takes
besides. The numbers are the most probable ones (maximum a posteriori) under log-normal priors around the
profile's own, and their covariance (Laplace's approximation) gives the interval, which narrows with what was measured.
Each network is left out in turn; where the others predict it worse than the covariance says, the interval
is widened by as much.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, prod, sqrt
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from predictors.devices import DeviceProfile
from predictors.errors import StretchError, UsageError
from predictors.fits.fit import Interval
from predictors.fits.prior import Calibration, LeftOut, MeasuredNetwork, Prior, Relative
from predictors.fitting.regression import rounded
from predictors.graph import OpGraph
from predictors.measurements.tables import read_table
from predictors.models.related import family_of
from predictors.predictor import LatencyPredictor
from predictors.rewrites import exact, laid_out

Floats = NDArray[np.float64]

COVERAGE = 0.9

#: Standard deviations of logarithms: of a time that is stated without one, of networks around the four numbers, of the factor on all
#: kernels, of the ratio of depthwise to dense, of others to dense, of what a kernel takes besides, and of what a pipeline takes besides.
MEASURED, NETWORKS, SCALE, DEPTHWISE, OTHER, LAUNCH, PIPELINE = 0.06, 0.08, 1.0, 1.2, 0.4, 1.5, 1.0

#: What a pipeline takes beside its network for an image of 224×224 pixels, ms, before anything is known of it; other images in proportion.
PIPELINE_MS, IMAGE = 3.0, 3 * 224 * 224

#: Two times of one network are a contradiction beyond this ratio, and a time this far from what the other rows say has another unit.
CONTRADICTION, OTHER_UNIT = 1.3, 30.0

#: Multiply-accumulates that a table states may differ from the network's by this share.
MACS = 0.1

#: Fewest pipelines that tell what they take beside their networks.
MIN_PIPELINES = 3

METHOD = (
    "covariance of four log-normal parameters given the measured networks (Laplace's approximation), Student's t, widened to the errors "
    "of networks left out"
)

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class NetworkTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of a table of networks: one network on one processor."""

    model: _Text  # What `stretch predict` takes: a name of `stretch list models`, or a file.
    processor: _Text  # Such as ``gpu`` or ``cpu[1large3med]``.
    ms: Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # Its time.
    precision: str = ""  # Such as ``int8``; the processor's default if empty.
    input: str = ""  # Such as ``3x224x224`` or ``224``; the model's usual one if empty.
    network: str = ""  # What it is called in messages; the model if empty.
    macs: Annotated[float, msgspec.Meta(gt=0)] | None = None  # Its multiply-accumulates, 10⁹, to see that it is the network measured.
    #: Standard deviation of its logarithm, such as 0.25 for a time of a sibling with the same chip or of another runtime.
    spread: Annotated[float, msgspec.Meta(gt=0, le=3)] | None = None
    pipeline: bool = False  # Whether the time is of a whole pipeline, with a constant beside the network that all of them share.

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.network or self.model


@dataclass(frozen=True)
class Calibrated:
    """What came of the rows of one processor at one precision."""

    prior: Prior  # With the calibration.
    next_network: str  # Network of `candidates` whose time would narrow the interval most.
    next_width: float  # Upper end of the interval ÷ prediction after it.
    pipeline: tuple[float, float]  # Logarithm of what a pipeline takes beside its network, ms: mean and standard deviation.


def read_networks(path: Path) -> list[NetworkTime]:
    """A table of networks, checked: CSV whose columns are the fields of `NetworkTime`, in any order.

    Raises:
        StretchError: If a row has no time or no number where one belongs, or two rows contradict each other; the line is named.
    """
    rows = read_table(path, NetworkTime)
    for i, row in enumerate(rows):
        for other in rows[:i]:
            same = (row.model, row.input, row.processor, row.precision) == (other.model, other.input, other.processor, other.precision)
            if same and not 1 / CONTRADICTION < row.ms / other.ms < CONTRADICTION:
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
) -> tuple[list[Prior], dict[str, Calibrated]]:
    """Priors of every core set and precision of a profile, those of the rows calibrated.

    Args:
        base: The profile that is calibrated.
        reference: What `load_device` takes for it, which the priors refer to.
        rows: Of the table.
        graph_of: The network of a row.
        candidates: Networks by name that could be measured next; the interval is that of their average.
        source: Where the times come from.
        rewrites: Exact rewrites that the networks had on every processor, beside those of the profile.

    Returns:
        All priors, and by processor, core set and precision what is new.

    Raises:
        UsageError: If a row names a precision that its processor does not run, or a rewrite makes another network.
        StretchError: If a row's time has another unit, its network is not the one measured, or there are too few rows.
    """
    if others := [name for name in rewrites if name not in exact]:
        raise UsageError(f"the rewrite `{others[0]}` changes what a network computes", f"choose among {', '.join(sorted(exact))}")
    priors = {key: _taken_over(base, reference, *key) for key in (*base.fits, *base.priors)}
    groups: dict[tuple[str, str, str], list[NetworkTime]] = {}
    for row in rows:
        processor = base.processor(row.processor)
        groups.setdefault((processor.family, processor.core_set, processor.check_precision(row.precision or None)), []).append(row)
    news: dict[str, Calibrated] = {}
    # what pipelines take beside their networks does not depend on the precision: most pipelines first
    beside: dict[str, Calibrated] = {}
    for key, members in sorted(groups.items(), key=lambda item: -sum(row.pipeline for row in item[1])):
        family, core_set, precision = key
        neutral = Calibration(dict.fromkeys(("dense", "depthwise", "other"), 1.0), 0.0, (MeasuredNetwork("none", 1.0, 1.0, 1.0),), source)
        start = priors.get(key) or Prior(family, core_set, precision, (), 1.0, Interval(COVERAGE, 1.0, 1.0, METHOD), _NOTHING, neutral)
        profile = replace(base, fits={}, priors={**priors, key: msgspec.structs.replace(start, calibration=neutral)})
        parts = _Parts(LatencyPredictor(profile), f"{family}[{core_set}]", precision, rewrites)
        calibrated = _calibrated(start, parts, members, graph_of, candidates, source, beside.get(family))
        news[f"{family}[{core_set}] {precision}"] = calibrated
        if any(row.pipeline for row in members):
            beside.setdefault(family, calibrated)
        priors[key] = calibrated.prior
    return list(priors.values()), news


_NOTHING = LeftOut(0, 0, 0.0, 0.0, 0.0)


def _taken_over(base: DeviceProfile, reference: str, family: str, core_set: str, precision: str) -> Prior:
    """What a profile knows of a processor, as a prior of another profile of the same device."""
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
    """What a network's time on a processor is made of, before it is calibrated.

    Args:
        rewrites: Of networks, beside the profile's.
    """

    def __init__(self, predictor: LatencyPredictor, processor: str, precision: str, rewrites: Sequence[str]) -> None:
        self.predictor, self.processor, self.precision = predictor, processor, precision
        self.profile = predictor.device.processor(processor).profile
        self.rewrites = (*self.profile.rewrites, *rewrites)

    def of(self, graph: OpGraph) -> Floats:
        """Ms of dense, depthwise and other kernels, number of kernels, ms that are not calibrated (kernels that the CPU computes), images."""
        estimate = self.predictor.predict(laid_out(graph, self.rewrites)[0], self.processor, self.precision)
        parts = dict.fromkeys(("dense", "depthwise", "other", "kernels", "elsewhere"), 0.0)
        parts["other"] = estimate.fixed_ms
        for kernel in estimate.kernels:
            parts["elsewhere" if kernel.kernel.elsewhere else family_of(kernel.kernel.cost)] += kernel.time.ms
            parts["kernels"] += not kernel.kernel.elsewhere
        return np.array([*parts.values(), sum(prod(op.shape) for op in graph.inputs) / IMAGE])


@dataclass(frozen=True)
class _Posterior:
    """Logarithms of: the factor on all kernels, depthwise and others relative to it, ms a kernel, ms a pipeline; with their covariance."""

    mean: Floats
    covariance: Floats

    def ms(self, parts: Floats, pipeline: bool) -> float:
        return _ms(self.mean, parts, pipeline)

    def variance(self, parts: Floats, pipeline: bool = False) -> float:
        """Of the logarithm of a predicted time."""
        slope = _slope(self.mean, parts, pipeline)
        return float(slope @ self.covariance @ slope)


def _shares(logs: Floats, parts: Floats, pipeline: bool) -> Floats:
    """Ms of each family of kernels, of what kernels take besides, and of what the pipeline takes besides."""
    factors = np.exp([logs[0], logs[0] + logs[1], logs[0] + logs[2], logs[3], logs[4]])
    return np.asarray(factors * np.append(parts[:4], pipeline * parts[5]))


def _ms(logs: Floats, parts: Floats, pipeline: bool) -> float:
    return float(_shares(logs, parts, pipeline).sum() + parts[4])


def _slope(logs: Floats, parts: Floats, pipeline: bool) -> Floats:
    """Derivative of the logarithm of a time by the parameters."""
    dense, depthwise, other, kernels, beside = _shares(logs, parts, pipeline)
    return np.array([dense + depthwise + other, depthwise, other, kernels, beside]) / _ms(logs, parts, pipeline)


def _posterior(rows: Sequence[NetworkTime], parts: Sequence[Floats], launch_ms: float, pipeline: tuple[float, float]) -> _Posterior:
    """The most probable parameters given the rows."""
    middle = np.array([0.0, 0.0, 0.0, log(launch_ms), pipeline[0]])
    spread = np.array([SCALE, DEPTHWISE, OTHER, LAUNCH, pipeline[1]])
    noise = [row.spread or MEASURED for row in rows]

    def residuals(logs: Floats) -> Floats:
        errors = [log(_ms(logs, p, row.pipeline) / row.ms) / s for row, p, s in zip(rows, parts, noise, strict=True)]
        return np.concatenate([errors, (logs - middle) / spread])

    def jacobian(logs: Floats) -> Floats:
        slopes = [_slope(logs, p, row.pipeline) / s for row, p, s in zip(rows, parts, noise, strict=True)]
        return np.vstack([*slopes, np.diag(1 / spread)])

    solution = optimize.least_squares(residuals, middle, jacobian, x_scale=spread)
    slopes = jacobian(solution.x)
    return _Posterior(solution.x, np.asarray(np.linalg.inv(slopes.T @ slopes), dtype=np.float64))


def _calibrated(
    start: Prior,
    parts_of: _Parts,
    rows: Sequence[NetworkTime],
    graph_of: Callable[[NetworkTime], OpGraph],
    candidates: Mapping[str, OpGraph],
    source: str,
    beside: Calibrated | None,
) -> Calibrated:
    """The calibration of one processor at one precision; `beside` is that of another precision, which knows what pipelines take."""
    where = f"{start.processor}[{start.core_set}] in {start.precision}"
    if beside is None and 0 < sum(row.pipeline for row in rows) < MIN_PIPELINES:
        raise StretchError(
            f"{sum(row.pipeline for row in rows)} pipelines on {where} do not tell what pipelines take beside their networks",
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
    _check_units(rows, parts, where)
    # a launch of the profile, unless its kernels are shorter than three of them
    launch_ms = min(parts_of.profile.launch_us.value / 1e3, 0.3 * median(p[:3].sum() / max(1.0, p[3]) for p in parts))
    launch_ms = max(launch_ms, 1e-6)
    before = beside.pipeline if beside else (log(PIPELINE_MS), PIPELINE)
    posterior = _posterior(rows, parts, launch_ms, before)
    left_out, squares = [], []
    for i, row in enumerate(rows):
        others = _posterior([*rows[:i], *rows[i + 1 :]], [*parts[:i], *parts[i + 1 :]], launch_ms, before)
        left_out.append(others.ms(parts[i], row.pipeline))
        expected = others.variance(parts[i], row.pipeline) + NETWORKS**2 + (row.spread or MEASURED) ** 2
        squares.append(log(row.ms / left_out[-1]) ** 2 / expected)
    wider = max(1.0, sqrt(sum(squares) / len(squares)))
    reference = [parts_of.of(graph) for graph in candidates.values()] or parts
    quantile = float(stats.t.ppf(0.5 + COVERAGE / 2, len(rows)))

    def width(covariance: Floats) -> float:
        """Half of the interval of the logarithm, of the average candidate."""
        variances = [_Posterior(posterior.mean, covariance).variance(p) for p in reference]
        return quantile * wider * sqrt(float(np.mean(variances)) + NETWORKS**2)

    widths = {}
    for name, p in zip(candidates, reference, strict=False):
        slope = _slope(posterior.mean, p, pipeline=False)
        gain = posterior.covariance @ slope
        widths[name] = width(posterior.covariance - np.outer(gain, gain) / (slope @ gain + MEASURED**2 + NETWORKS**2))
    best = min(widths, key=lambda name: widths[name]) if widths else ""
    off = np.array([ms / row.ms - 1 for row, ms in zip(rows, left_out, strict=True)])
    half = width(posterior.covariance)
    scale, depthwise, other, kernel, pipeline = posterior.mean
    calibration = Calibration(
        {"dense": rounded(exp(scale)), "depthwise": rounded(exp(scale + depthwise)), "other": rounded(exp(scale + other))},
        rounded(exp(kernel)),
        tuple(
            MeasuredNetwork(row.name, row.ms, rounded(posterior.ms(p, row.pipeline)), rounded(ms))
            for row, p, ms in zip(rows, parts, left_out, strict=True)
        ),
        source,
        rounded(exp(pipeline)) if any(row.pipeline for row in rows) else 0.0,
    )
    judged = LeftOut(
        len(rows),
        len(rows),
        rounded(float(np.mean(np.abs(off) <= 0.2))),
        rounded(float(np.mean(np.abs(off)))),
        rounded(float(np.mean([abs(log(row.ms / ms)) <= half for row, ms in zip(rows, left_out, strict=True)]))),
    )
    prior = msgspec.structs.replace(
        start,
        interval=Interval(COVERAGE, rounded(exp(-half)), rounded(exp(half)), METHOD),
        left_out=judged,
        calibration=calibration,
    )
    return Calibrated(prior, best, exp(widths[best]) if best else exp(half), (float(pipeline), sqrt(posterior.covariance[4, 4])))


def _check_units(rows: Sequence[NetworkTime], parts: Sequence[Floats], where: str) -> None:
    """Refuse a time that is far from what the profile, set right by the other rows, says."""
    ratios = [row.ms / float(p[:3].sum() + p[4]) for row, p in zip(rows, parts, strict=True)]
    middle = median(ratios) if len(rows) > 2 else 1.0
    worst = max(range(len(rows)), key=lambda i: abs(log(ratios[i] / middle)))
    if abs(log(ratios[worst] / middle)) > log(OTHER_UNIT):
        times = ratios[worst] / middle
        raise StretchError(
            f"{rows[worst].name} on {where} is {rows[worst].ms:g} ms in the table, "
            f"{max(times, 1 / times):.0f} times {'more' if times > 1 else 'less'} than {'the other rows suggest' if len(rows) > 2 else 'predicted'}",
            "the column `ms` has milliseconds",
        )
