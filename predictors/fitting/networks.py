"""Fits to the times of whole networks: units of each formula in each network, non-negative least squares, and priors shared by devices."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil, floor
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.devices import ITEM_BYTES, Processor
from predictors.errors import StretchError
from predictors.files import read_toml
from predictors.fits import Correction, Interval, KernelGroup
from predictors.fusion import Fuser, KernelCost, load_rules
from predictors.graph import OpGraph
from predictors.models.fitted import Grain, columns, group_members, terms
from predictors.predictor import io_elements

Vector = NDArray[np.float64]

FORMULA_FOLDER = Path(__file__).parent / "formulas"

#: Term of the whole inference: a parameter without a kernel.
INFERENCE = "inference"

_Size = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class TermPrior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of one unit of a term before any measurement."""

    compute: _Size = 0.0  # Cost in multiply-accumulates.
    memory: _Size = 0.0  # Cost in bytes from memory.
    launch: _Size = 0.0  # Cost in launches of operators.


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fitted number: ms per unit of a term, in all groups of kernels that share it."""

    term: str  # Name of a term (`predictors.models.fitted`), or `INFERENCE`.
    groups: tuple[str, ...]  # ``kind`` (with all its variants) or ``kind:variant``.
    shares: tuple[str, ...]  # Scalings that relate its size with several threads to the size with one.
    prior: dict[str, TermPrior]  # Size before any measurement, by precision.
    spread: Annotated[float, msgspec.Meta(gt=0, le=5)] = 0.5  # Uncertainty of the prior, as a logarithm; for pooled fits.

    def applies_to(self, group: str) -> bool:
        """Return whether the parameter contributes to the times of a group."""
        return group in self.groups or group.partition(":")[0] in self.groups


class Scaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Effect of several threads on parameters before any measurement: ``factor / threads ** exponent``."""

    exponent: Annotated[float, msgspec.Meta(ge=0, le=1)]  # 1 if the work is divided, 0 if it is not.
    factor: Annotated[float, msgspec.Meta(gt=0, le=10)]  # Additional factor.
    #: Relative uncertainty; for pooled fits, the difference between devices in this part of their work, as a logarithm.
    spread: Annotated[float, msgspec.Meta(gt=0, le=5)] = 0.2


class Formula(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Formula for the times of the kernels of one backend."""

    source: str  # Source of the formula.
    parameters: tuple[Parameter, ...] = ()  # Parameters of fits to whole networks.
    threads: dict[str, Scaling] = {}  # Scalings by name.
    kernels: dict[str, tuple[str, ...]] = {}  # Terms of each group, for fits to single kernels.
    like: dict[str, str] = {}  # Kinds that tables of kernels lack, each with the group whose times it has.
    #: Cost of a multiply-accumulate, a byte and a launch by precision, ms, on a device of usual speed. If units are given, fits to
    #: whole networks are pooled over devices and precisions (`fit_pooled`); a parameter's first scaling is then the part of
    #: the work that the parameter belongs to.
    units: dict[str, TermPrior] = {}
    #: Error of a time that the formula cannot explain, as a logarithm; for pooled fits.
    noise: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.15
    #: Difference between precisions in the parts of a device's work, as a logarithm; for pooled fits.
    apart: Annotated[float, msgspec.Meta(gt=0, le=5)] = 0.15


@cache
def load_formula(backend: str) -> Formula:
    """Return the formula of a backend, or of its base."""
    path = FORMULA_FOLDER / f"{backend}.toml"
    if not path.exists():
        base = load_rules(backend).base
        if base is None:
            names = ", ".join(sorted(file.stem for file in FORMULA_FOLDER.glob("*.toml")))
            raise StretchError(
                f"kernels of `{backend}` cannot be fitted: predictors/fitting/formulas has none for it", f"there are: {names}"
            )
        return load_formula(base)
    try:
        formula = msgspec.convert(read_toml(path, "formula"), Formula)
    except msgspec.ValidationError as error:
        raise StretchError(f"{path.name} is not a formula: {error}") from error
    term_names = [parameter.term for parameter in formula.parameters if parameter.term != INFERENCE]
    for name in [*term_names, *(term for group_terms in formula.kernels.values() for term in group_terms)]:
        terms.get(name)
    for parameter in formula.parameters:
        if missing := [share for share in parameter.shares if share not in formula.threads]:
            raise StretchError(f"{path.name}: the parameter `{parameter.term}` has the scaling `{missing[0]}`, which [threads] lacks")
    return formula


def processor_grain(processor: Processor, precision: str) -> Grain:
    """Return the slices that a processor computes in at a precision."""
    return Grain(processor.width_slice, round(processor.profile.reduce_slice.value), ITEM_BYTES[precision])


@dataclass
class Networks:
    """Networks as kernels of one backend."""

    graphs: Mapping[str, OpGraph]  # Networks by name.
    families: Mapping[str, str]  # Family of each network.
    backend: str  # Name of the fusion rules.

    @cached_property
    def costs(self) -> dict[str, list[KernelCost]]:
        """Kernels of each network."""
        fuser = Fuser(load_rules(self.backend))
        return {name: [kernel.cost for kernel in fuser.fuse(graph)] for name, graph in self.graphs.items()}

    def io_elements(self, name: str) -> int:
        """Return the number of elements of all inputs and outputs of a network."""
        return sum(map(sum, io_elements(self.graphs[name])))

    @property
    def kinds(self) -> dict[str, frozenset[str]]:
        """Kinds of kernels of each network."""
        return {name: frozenset(cost.kind for cost in costs) for name, costs in self.costs.items()}


@dataclass(frozen=True)
class Design:
    """Number of units of each parameter in each network."""

    names: tuple[str, ...]  # Networks, one per row.
    parameters: tuple[Parameter, ...]  # Parameters, one per column.
    groups: tuple[str, ...]  # Groups of kernels that the parameters apply to.
    units: Vector  # Networks × parameters.

    def priors(self, precision: str) -> list[TermPrior]:
        """Return the prior of each parameter, before any measurement."""
        return [parameter.prior.get(precision, TermPrior()) for parameter in self.parameters]

    def stored(self, sizes: Vector) -> tuple[dict[str, KernelGroup], Correction]:
        """Return sizes in the form of a fit: ms per unit of each term by group, and the correction with the time of an inference."""
        groups: dict[str, dict[str, float]] = {group: {} for group in self.groups}
        fixed_ms = 0.0
        for parameter, size in zip(self.parameters, (rounded(float(size)) for size in sizes), strict=True):
            fixed_ms += size if parameter.term == INFERENCE else 0.0
            for group, group_terms in groups.items():
                if parameter.term != INFERENCE and parameter.applies_to(group) and size > 0:
                    group_terms[parameter.term] = group_terms.get(parameter.term, 0.0) + size
        rounded_groups = {name: KernelGroup({term: rounded(ms) for term, ms in group.items()}) for name, group in groups.items()}
        return rounded_groups, Correction(fixed_ms=rounded(fixed_ms))


def design(networks: Networks, formula: Formula, grain: Grain, precision: str) -> Design:
    """Return the design matrix of all parameters with a prior at a precision.

    Args:
        precision: Precision such as ``fp32``.
    """
    parameters = tuple(parameter for parameter in formula.parameters if precision in parameter.prior)
    groups = tuple(dict.fromkeys(group for parameter in parameters for group in parameter.groups))
    units = np.zeros((len(networks.costs), len(parameters)))
    for row, costs in enumerate(networks.costs.values()):
        members = group_members(costs, groups)
        tables = {group: columns([costs[i] for i in indices]) for group, indices in members.items() if group is not None}
        for column, parameter in enumerate(parameters):
            if parameter.term == INFERENCE:
                units[row, column] = 1.0
            else:
                units[row, column] = sum(
                    float(np.sum(terms.get(parameter.term).units(table, grain)))
                    for group, table in tables.items()
                    if parameter.applies_to(group)
                )
    return Design(tuple(networks.costs), parameters, groups, units)


# Non-negative least squares, and intervals of their predictions.


#: Digits of a stored number: more than any table has, and few enough that two machines round equally.
DIGITS = 6


def solve(
    matrix: Vector,
    times: Vector,
    prior: Vector | None = None,
    spread: float | Vector = 1.0,
    noise: float = 0.05,
    least: Vector | None = None,
    weights: Vector | None = None,
) -> Vector:
    """Return the sizes c ≥ least that minimise Σ(weight · (matrix·c ÷ times − 1))² + noise² · Σ((c − prior) ÷ (spread · prior))².

    These are the most likely sizes if times have a relative error of `noise` and each
    size one of `spread` around its prior: ridge regression towards the prior
    (Hoerl and Kennard 1970), restricted to physically possible sizes.

    Args:
        prior: Size of each term before any measurement; None for plain least squares.
        least: Minimum of each size; zeros if None.
        weights: Weight of each time; ones if None.
    """
    from scipy.optimize import nnls

    weights = np.ones(len(times)) if weights is None else weights
    rows = matrix / times[:, None] * weights[:, None]
    targets = weights
    if prior is None:
        unit = np.sqrt((rows**2).mean(axis=0))
        unit = 1 / np.where(unit > 0, unit, 1.0)
    else:
        unit = prior
        rows = np.vstack([rows, np.diag(noise / (spread * np.maximum(prior, np.finfo(float).tiny)))])
        targets = np.append(weights, np.full(len(prior), noise) / spread)
    # Columns are scaled to one size: products are counted in 10⁹, launches in ones.
    low = np.zeros(rows.shape[1]) if least is None else least
    sizes, _ = nnls(rows * unit, targets - rows @ low, maxiter=100 * rows.shape[1])
    solution: Vector = low + sizes * unit
    return solution


def solve_robustly(
    matrix: Vector, times: Vector, prior: Vector, spread: float | Vector, noise: float = 0.05, least: Vector | None = None
) -> Vector:
    """Solve like `solve`, with lower weights for outliers: Cauchy weights, three rounds (Holland and Welsch 1977)."""
    weights = np.ones(len(times))
    sizes = prior
    for _ in range(3):
        sizes = solve(matrix, times, prior, spread, noise, least, weights)
        error = matrix @ sizes / times - 1
        scale = max(1.4826 * float(np.median(np.abs(error))), 0.02)
        weights = 1 / np.sqrt(1 + (error / (3 * scale)) ** 2)
    return sizes


def rounded(value: float) -> float:
    """Return a number rounded to the stored digits."""
    return float(f"{value:.{DIGITS - 1}e}")


COVERAGE = 0.9

#: Number of nominal coverages to try, from the target upwards.
_LEVELS = 8

METHOD = (
    "cross-conformal by family: quantiles of measured ÷ predicted over networks that were left out with their families "
    "(CV+ of Barber, Candès, Ramdas and Tibshirani 2021), at the least level that covers the rest when one family more is left out"
)


def interval_ends(ratios: Sequence[float], coverage: float = COVERAGE) -> tuple[float, float]:
    """Return the factors on a prediction between which a new time is with probability `coverage`.

    Both ends are order statistics, with equal shares of the remaining ratios outside; of n ratios
    the k-th smallest is at k ÷ (n + 1). With too few ratios, the outermost ones are used.

    Args:
        ratios: Measured ÷ predicted of networks left out, at least one.
        coverage: Probability between 0 and 1.
    """
    ordered = sorted(ratios)
    n, beyond = len(ordered), (1 - coverage) / 2
    low = ordered[max(floor((n + 1) * beyond), 1) - 1]
    high = ordered[min(ceil((n + 1) * (1 - beyond)), n) - 1]
    return min(low, 1.0), max(high, 1.0)


def _left_out_coverage(
    ratios: Mapping[str, float], families: Mapping[str, str], ends: Callable[[Mapping[str, float]], tuple[float, float]]
) -> float:
    """Return the share of networks inside the interval from networks of other families."""
    covered = []
    for family in {families[name] for name in ratios}:
        others = {name: ratio for name, ratio in ratios.items() if families[name] != family}
        if others:
            low, high = ends(others)
            covered += [low <= ratio <= high for name, ratio in ratios.items() if families[name] == family]
    return float(np.mean(covered)) if covered else 0.0


def family_interval_ends(ratios: Mapping[str, float], families: Mapping[str, str]) -> tuple[float, float]:
    """Return the factors on a prediction between which a network of a new family is with probability `COVERAGE`.

    Networks of one family have similar errors, so quantiles over networks promise too
    much: the nominal coverage is raised until families left out are covered.
    """
    levels = [1 - (1 - COVERAGE) * (1 - step / _LEVELS) for step in range(_LEVELS)]

    def covers(level: float) -> bool:
        return _left_out_coverage(ratios, families, lambda others: interval_ends(list(others.values()), level)) >= COVERAGE

    return interval_ends(list(ratios.values()), next(filter(covers, levels), levels[-1]))


def family_interval(ratios: Mapping[str, float], families: Mapping[str, str]) -> Interval:
    """Return the interval of a fit from all ratios; see `family_interval_ends`."""
    low, high = family_interval_ends(ratios, families)
    return Interval(COVERAGE, float(f"{low:.4g}"), float(f"{high:.4g}"), METHOD)


def family_coverage(ratios: Mapping[str, float], families: Mapping[str, str]) -> float:
    """Return the coverage of the interval under leave-one-family-out, including the choice of its nominal coverage."""
    return _left_out_coverage(ratios, families, lambda others: family_interval_ends(others, families))


# Fits to the networks of many devices: one core set after the other at one precision, or all core sets and precisions at once.


#: Relative uncertainty of a time, of the formula's priors, of the prior shared by devices, and of a size compared with its scaling.
NOISE, PRIOR_SPREAD, SHARED_SPREAD, THREADS_SPREAD = 0.05, 1.0, 0.3, 0.1

#: Minimum cost of a byte, in multiply-accumulates, and of a launch, in ms.
MIN_BYTE_MACS, MIN_LAUNCH_MS = 0.5, 5e-4


def core_counts(core_set: str) -> dict[str, int]:
    """Return the number of cores of each kind from a core set's name, such as ``1large3med``; empty if the name has none."""
    return {kind: int(count) for count, kind in re.findall(r"(\d+)([A-Za-z]+)", core_set)}


@dataclass(frozen=True)
class TimedCoreSet:
    """One core set of one device with measured networks."""

    device: str  # Name of the device.
    name: str  # Name of the core set, such as ``1large2med``.
    times: Vector  # ms of each network in the order of a design; NaN if not measured.
    runtime: str = ""  # Runtime of the measurement; empty if it is irrelevant.

    @property
    def key(self) -> tuple[str, str]:
        """Device and name of the core set."""
        return self.device, self.name

    @property
    def cores(self) -> int:
        """Number of cores; 1 if the name has none."""
        return sum(core_counts(self.name).values()) or 1

    @property
    def single_core(self) -> str:
        """Name of the core set with only the first of these cores."""
        return next((f"1{kind}" for kind in core_counts(self.name)), self.name)


def fit_core_sets(
    matrix: Design, formula: Formula, precision: str, sets: Sequence[TimedCoreSet], training: Vector
) -> dict[tuple[str, str], Vector]:
    """Return the sizes of the parameters for every core set."""
    keys = {cores.key for cores in sets}
    # A core set without a measured single core counts as a single core.
    single = [cores for cores in sets if cores.cores == 1 or (cores.device, cores.single_core) not in keys]
    first = {cores.key: _fit_from_priors(matrix, precision, cores, training) for cores in single}
    fitted = {cores.key: _fit_from_devices(matrix, first, cores, training) for cores in single}
    for core_set in sets:
        if core_set.key not in fitted:
            fitted[core_set.key] = _fit_from_single_core(matrix, formula, fitted[core_set.device, core_set.single_core], core_set, training)
    return fitted


def _rows(matrix: Design, core_set: TimedCoreSet, training: Vector) -> tuple[Vector, Vector]:
    use = training & np.isfinite(core_set.times)
    return matrix.units[use], core_set.times[use]


def _fit_from_priors(matrix: Design, precision: str, core_set: TimedCoreSet, training: Vector) -> Vector:
    """Return a fit from the formula's priors alone, above zero so that logarithms exist."""
    units, times = _rows(matrix, core_set, training)
    prior = scaled_prior(units, times, matrix.priors(precision))
    return np.maximum(solve(units, times, prior, PRIOR_SPREAD, NOISE), 0.1 * prior)


def scaled_prior(units: Vector, times: Vector, priors: Sequence[TermPrior]) -> Vector:
    """Return priors in ms from priors in multiply-accumulates, bytes and launches, with the cost of each estimated from the times."""
    parts = np.array([[prior.compute, prior.memory, prior.launch] for prior in priors])
    rows = (units @ parts) / times[:, None]
    scale = np.maximum(rows.mean(axis=0), np.finfo(float).tiny)
    # A launch takes 3 µs before any measurement.
    launch_prior = np.array([[0.0, 0.0, 0.3 / 3e-3]])
    per_mac, per_byte, per_launch = (
        solve(np.vstack([rows / scale, launch_prior / scale]), np.ones(len(times) + 1) * np.append(np.ones(len(times)), 0.3), None) / scale
    )
    per_byte, per_launch = max(per_byte, MIN_BYTE_MACS * per_mac), max(per_launch, MIN_LAUNCH_MS)
    sizes: Vector = parts @ np.array([per_mac, per_byte, per_launch])
    return sizes


def _fit_from_devices(matrix: Design, first: Mapping[tuple[str, str], Vector], core_set: TimedCoreSet, training: Vector) -> Vector:
    """Return a fit whose prior is the mean of all devices' sizes, each relative to the device's speed."""
    logs = {key: np.log(sizes) for key, sizes in first.items()}
    mean = matrix.units[training].mean(axis=0)
    weight = mean * np.mean([sizes / (mean @ sizes) for sizes in first.values()], axis=0)
    weight /= weight.sum()
    speed = {key: float(log @ weight) for key, log in logs.items()}
    prior = np.exp(np.mean([log - speed[key] for key, log in logs.items()], axis=0) + speed[core_set.key])
    units, times = _rows(matrix, core_set, training)
    prior *= np.exp(np.mean(np.log(times / (units @ prior))))
    return solve(units, times, prior, SHARED_SPREAD, NOISE)


def _fit_from_single_core(matrix: Design, formula: Formula, single_core: Vector, core_set: TimedCoreSet, training: Vector) -> Vector:
    """Return a fit from one core of the device: a factor per scaling, then each size; none is divided by more than the core count."""
    units, times = _rows(matrix, core_set, training)
    single_core = np.maximum(single_core, single_core.max() * 1e-15)
    names = list(formula.threads)
    shares = np.array([[name in parameter.shares for parameter in matrix.parameters] for name in names], dtype=float)
    scalings = [formula.threads[name] for name in names]
    expected = np.array([scaling.factor / core_set.cores**scaling.exponent for scaling in scalings])
    spread = np.array([scaling.spread for scaling in scalings])
    divided = np.full(len(names), 1 / core_set.cores)
    factors = solve_robustly(units @ (shares * single_core).T, times, expected, spread, NOISE, divided)
    prior = np.maximum((factors @ shares) * single_core, 0.03 * single_core)
    return solve_robustly(units, times, prior, THREADS_SPREAD, NOISE, single_core / core_set.cores)


#: Prior spreads as logarithms: of the speed of a core set, and of one precision's speed relative to another's.
SPEED, SPEED_AT_PRECISION = 3.0, 0.3

#: Prior spreads as logarithms: of the time of an inference beyond its kernels between runtimes, and between devices.
RUNTIME, RUNTIME_ON_DEVICE = 1.0, 0.3

#: Effect of a precision beyond the formulas, relative to their uncertainty.
PRECISION = 0.4

Index = np.ndarray[tuple[int], np.dtype[np.intp]]

#: Precision, device, core set.
Place = tuple[str, str, str]


def fit_pooled(
    designs: Mapping[str, Design], formula: Formula, sets: Mapping[str, Sequence[TimedCoreSet]], training: Vector
) -> dict[Place, Vector]:
    """Return the sizes of the parameters for every precision and core set; for several runtimes, the sizes with the smallest sum."""
    model = _PooledModel(designs, formula, sets, training)
    optimum = model.fit()
    sizes: dict[Place, list[Vector]] = {}
    for precision, core_sets in sets.items():
        for core_set in core_sets:
            sizes.setdefault((precision, *core_set.key), []).append(model.sizes(optimum, precision, core_set))
    return {place: min(candidates, key=lambda size_vector: float(size_vector.sum())) for place, candidates in sizes.items()}


class _PooledModel:
    """Factors on sizes, their priors, and the loss of the measured times."""

    def __init__(
        self, designs: Mapping[str, Design], formula: Formula, sets: Mapping[str, Sequence[TimedCoreSet]], training: Vector
    ) -> None:
        self._noise = formula.noise
        self._precisions = sorted(designs)
        core_sets = {core_set.key: core_set for timed in sets.values() for core_set in timed}
        self._keys = sorted(core_sets)
        self._runtimes = sorted({core_set.runtime for timed in sets.values() for core_set in timed})
        parameters = designs[self._precisions[0]].parameters
        names = list(formula.threads)
        scalings = [formula.threads[parameter.shares[0]] for parameter in parameters]
        self._part = np.array([names.index(parameter.shares[0]) for parameter in parameters])
        prior = np.array(
            [
                [
                    (unit := formula.units[precision]).compute * size.compute + unit.memory * size.memory + unit.launch * size.launch
                    for size in designs[precision].priors(precision)
                ]
                for precision in self._precisions
            ]
        )
        cores = [core_sets[key].cores for key in self._keys]
        threads = np.array([[np.log(s.factor if count > 1 else 1.0) - s.exponent * np.log(count) for s in scalings] for count in cores])
        #: Logarithm of each size before any measurement: precisions × core sets × parameters.
        self._base = np.log(prior)[:, None, :] + threads[None]
        spread = np.array([parameter.spread for parameter in parameters])
        parts = np.array([formula.threads[name].spread for name in names])
        p, d, k, q = len(self._precisions), len(self._keys), len(parameters), len(names)
        # A single runtime cannot be compared with others.
        r = len(self._runtimes) if len(self._runtimes) > 1 else 0
        self._is_inference = np.array([parameter.term == INFERENCE for parameter in parameters], dtype=float)
        #: Shapes of the factors: common, of precisions, of speed, of speed at a precision, of parts, of parts at a precision,
        #: of runtimes at a precision, of runtimes on a device at a precision.
        self._shapes = [(k,), (p, k), (d,), (p, d), (d, q), (p, d, q), (p, r), (p, d, r)]
        wide = [np.array(kind) for kind in (SPEED, SPEED_AT_PRECISION, formula.apart, RUNTIME, RUNTIME_ON_DEVICE)]
        spreads = [spread, PRECISION * spread, wide[0], wide[1], parts, *wide[2:]]
        self._weight = np.concatenate([np.broadcast_to(s**-2.0, shape).ravel() for s, shape in zip(spreads, self._shapes, strict=True)])
        self._ends = np.cumsum([0, *[int(np.prod(shape)) for shape in self._shapes]])
        self._set_times(designs, sets, training)

    def _set_times(self, designs: Mapping[str, Design], sets: Mapping[str, Sequence[TimedCoreSet]], training: Vector) -> None:
        """Store the times as arrays with one element or row per time; runtimes that timed the same network share its weight."""
        units, logs, weights, indices = [], [], [], []
        for precision in self._precisions:
            timed = {key: np.sum([np.isfinite(row.times) for row in sets[precision] if row.key == key], axis=0) for key in self._keys}
            for core_set in sets[precision]:
                use = training & np.isfinite(core_set.times)
                units.append(designs[precision].units[use])
                logs.append(np.log(core_set.times[use]))
                weights.append(1 / timed[core_set.key][use])
                indices += [self._indices(precision, core_set)] * int(use.sum())
        self._units, self._logs, self._weights = np.concatenate(units), np.concatenate(logs), np.concatenate(weights)
        self._places = np.array(indices, dtype=np.intp).reshape(-1, 3).T

    def _indices(self, precision: str, core_set: TimedCoreSet) -> tuple[int, int, int]:
        """Return the indices of a precision, a core set and its runtime."""
        return self._precisions.index(precision), self._keys.index(core_set.key), self._runtimes.index(core_set.runtime)

    def _split(self, factors: Vector) -> list[Vector]:
        return [
            factors[start:stop].reshape(shape) for start, stop, shape in zip(self._ends[:-1], self._ends[1:], self._shapes, strict=True)
        ]

    def fit(self) -> Vector:
        """Return the most likely factors, as logarithms."""
        from scipy.optimize import minimize

        options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-13, "gtol": 1e-6}
        return np.asarray(minimize(self._loss, np.zeros(self._ends[-1]), jac=True, method="L-BFGS-B", options=options).x)

    def sizes(self, factors: Vector, precision: str, core_set: TimedCoreSet) -> Vector:
        """Return the sizes on one core set at one precision with one runtime."""
        indices = np.array(self._indices(precision, core_set), dtype=np.intp)[:, None]
        sizes: Vector = np.exp(self._log_sizes(self._split(factors), *indices)[0])
        return sizes

    def _log_sizes(self, factors: Sequence[Vector], p: Index, d: Index, r: Index) -> Vector:
        """Return the logarithms of the sizes, places × parameters."""
        common, of_precision, speed, speed_at, parts, parts_at, runtime, runtime_on = factors
        logs: Vector = (
            self._base[p, d] + common + of_precision[p] + (speed[d] + speed_at[p, d])[:, None] + (parts[d] + parts_at[p, d])[:, self._part]
        )
        if runtime.size:
            logs = logs + (runtime[p, r] + runtime_on[p, d, r])[:, None] * self._is_inference
        return logs

    def _loss(self, factors: Vector) -> tuple[float, Vector]:
        """Return the negative logarithm of the likelihood of the factors, and its gradient."""
        p, d, r = self._places
        predicted = np.exp(self._log_sizes(self._split(factors), p, d, r)) * self._units
        total = predicted.sum(axis=1)
        error = (np.log(total) - self._logs) / self._noise
        root = np.sqrt(1 + error**2)
        slope = predicted / total[:, None] * (self._weights * error / root / self._noise)[:, None]
        gradient = [np.zeros(shape) for shape in self._shapes]
        gradient[0] = slope.sum(axis=0)
        np.add.at(gradient[1], p, slope)
        np.add.at(gradient[2], d, slope.sum(axis=1))
        np.add.at(gradient[3], (p, d), slope.sum(axis=1))
        by_part = np.stack([slope[:, self._part == q].sum(axis=1) for q in range(gradient[4].shape[1])], axis=1)
        np.add.at(gradient[4], d, by_part)
        np.add.at(gradient[5], (p, d), by_part)
        if gradient[6].size:
            np.add.at(gradient[6], (p, r), slope @ self._is_inference)
            np.add.at(gradient[7], (p, d, r), slope @ self._is_inference)
        loss = float(np.sum(self._weights * (root - 1)) + 0.5 * np.sum(self._weight * factors**2))
        return loss, np.concatenate([part.ravel() for part in gradient]) + self._weight * factors
