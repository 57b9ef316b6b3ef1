"""Fits to a few networks on many devices and at several precisions, all at once."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from predictors.fitting.design import INFERENCE, Design, Formula, TermPrior
from predictors.fitting.regression import Vector, solve, solve_robustly

#: Relative uncertainty of: a time, the formula's priors, the prior that devices share, a size compared with its scaling.
NOISE, PRIOR_SPREAD, SHARED_SPREAD, THREADS_SPREAD = 0.05, 1.0, 0.3, 0.1

#: Minimum cost of a byte, in multiply-accumulates, and of a launch, in ms.
MIN_BYTE_MACS, MIN_LAUNCH_MS = 0.5, 5e-4

_CORES = re.compile(r"(\d+)([A-Za-z]+)")


@dataclass(frozen=True)
class TimedCoreSet:
    """One choice of cores of one device whose networks were timed."""

    device: str  # Its device.
    name: str  # Such as ``1large2med``.
    times: Vector  # ms of each network of a design, in its order; NaN where it was not measured.
    runtime: str = ""  # That timed them; empty where it does not matter.

    @property
    def key(self) -> tuple[str, str]:
        """Device and name."""
        return self.device, self.name

    @property
    def cores(self) -> int:
        """Return the number of cores; 1 where the name has none."""
        return sum(int(count) for count, _ in _CORES.findall(self.name)) or 1

    @property
    def single_core(self) -> str:
        """Name of the core set that has the first of these cores by itself."""
        counts = _CORES.findall(self.name)
        return f"1{counts[0][1]}" if counts else self.name


def fit_core_sets(
    matrix: Design, formula: Formula, precision: str, sets: Sequence[TimedCoreSet], training: Vector
) -> dict[tuple[str, str], Vector]:
    """Sizes of the parameters for every core set."""
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
    """Fit from the formula's priors alone, above zero so that logarithms exist."""
    units, times = _rows(matrix, core_set, training)
    prior = scaled_prior(units, times, matrix.priors(precision))
    return np.maximum(solve(units, times, prior, PRIOR_SPREAD, NOISE), 0.1 * prior)


def scaled_prior(units: Vector, times: Vector, priors: Sequence[TermPrior]) -> Vector:
    """Sizes in ms from priors in multiply-accumulates, bytes and launches: what one of each costs here."""
    parts = np.array([[prior.compute, prior.memory, prior.launch] for prior in priors])
    rows = (units @ parts) / times[:, None]
    scale = np.maximum(rows.mean(axis=0), np.finfo(float).tiny)
    # A launch takes 3 µs before any measurement.
    weak = np.array([[0.0, 0.0, 0.3 / 3e-3]])
    per_mac, per_byte, per_launch = (
        solve(np.vstack([rows / scale, weak / scale]), np.ones(len(times) + 1) * np.append(np.ones(len(times)), 0.3), None) / scale
    )
    per_byte, per_launch = max(per_byte, MIN_BYTE_MACS * per_mac), max(per_launch, MIN_LAUNCH_MS)
    sizes: Vector = parts @ np.array([per_mac, per_byte, per_launch])
    return sizes


def _fit_from_devices(matrix: Design, first: Mapping[tuple[str, str], Vector], core_set: TimedCoreSet, training: Vector) -> Vector:
    """Fit with the mean of all devices' sizes as prior, each relative to its device's speed."""
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
    """Fit from one core of the same device: a factor per scaling, then each size; none is divided by more than the number of cores."""
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


#: Logarithms: the speed of a core set, and of one precision relative to another.
SPEED, SPEED_AT_PRECISION = 3.0, 0.3

#: Logarithms: differences between runtimes, and between devices, in the time of an inference in addition to its kernels.
RUNTIME, RUNTIME_ON_DEVICE = 1.0, 0.3

#: Effect of a precision in addition to the formulas, relative to their uncertainty.
PRECISION = 0.4

Index = np.ndarray[tuple[int], np.dtype[np.intp]]

#: Precision, device, core set.
Place = tuple[str, str, str]


@dataclass(frozen=True)
class _PooledTimes:
    """Times as arrays, one element or row a time."""

    units: Vector  # Times × parameters.
    logs: Vector  # Of the times.
    precision: Index  # Index of each.
    core_set: Index  # Index of each.
    runtime: Index  # Index of each.
    weights: Vector  # Of each: runtimes that timed the same network share one.


def fit_pooled(
    designs: Mapping[str, Design], formula: Formula, sets: Mapping[str, Sequence[TimedCoreSet]], training: Vector
) -> dict[Place, Vector]:
    """Sizes of the parameters for every precision and core set."""
    precisions = sorted(designs)
    core_sets = {core_set.key: core_set for core_set_sizes in sets.values() for core_set in core_set_sizes}
    keys = sorted(core_sets)
    runtimes = sorted({timed.runtime for core_sets_at in sets.values() for timed in core_sets_at})
    model = _Model(formula, [designs[p] for p in precisions], precisions, [core_sets[key] for key in keys], len(runtimes))
    optimum = model.fit(_data(designs, sets, (precisions, keys, runtimes), training))
    sizes: dict[Place, list[Vector]] = {}
    for p, precision in enumerate(precisions):
        for core_set in sets[precision]:
            place_sizes = model.sizes(optimum, p, keys.index(core_set.key), runtimes.index(core_set.runtime))
            sizes.setdefault((precision, *core_set.key), []).append(place_sizes)
    return {place: min(candidates, key=lambda size_vector: float(size_vector.sum())) for place, candidates in sizes.items()}


def _data(
    designs: Mapping[str, Design],
    sets: Mapping[str, Sequence[TimedCoreSet]],
    indices: tuple[list[str], list[tuple[str, str]], list[str]],
    training: Vector,
) -> _PooledTimes:
    """Times of all precisions, core sets and runtimes, which `indices` names in their order."""
    precisions, keys, runtimes = indices
    units, logs, weights, indices_of_times = [], [], [], []
    for p, precision in enumerate(precisions):
        timed = {key: np.sum([np.isfinite(row.times) for row in sets[precision] if row.key == key], axis=0) for key in keys}
        for core_set in sets[precision]:
            use = training & np.isfinite(core_set.times)
            units.append(designs[precision].units[use])
            logs.append(np.log(core_set.times[use]))
            weights.append(1 / timed[core_set.key][use])
            indices_of_times += [(p, keys.index(core_set.key), runtimes.index(core_set.runtime))] * int(use.sum())
    index_table = np.array(indices_of_times, dtype=np.intp).reshape(-1, 3)
    return _PooledTimes(
        np.concatenate(units), np.concatenate(logs), index_table[:, 0], index_table[:, 1], index_table[:, 2], np.concatenate(weights)
    )


class _Model:
    """Factors of sizes, their priors, and the loss.

    Args:
        formula: With its `units`.
    """

    def __init__(
        self, formula: Formula, designs: Sequence[Design], precisions: Sequence[str], sets: Sequence[TimedCoreSet], runtimes: int = 1
    ) -> None:
        self._noise = formula.noise
        parameters = designs[0].parameters
        names = list(formula.threads)
        scalings = [formula.threads[parameter.shares[0]] for parameter in parameters]
        self._part = np.array([names.index(parameter.shares[0]) for parameter in parameters])
        prior = np.array(
            [
                [
                    (unit := formula.units[precision]).compute * size.compute + unit.memory * size.memory + unit.launch * size.launch
                    for size in design.priors(precision)
                ]
                for precision, design in zip(precisions, designs, strict=True)
            ]
        )
        threads = np.array(
            [[np.log(s.factor if core_set.cores > 1 else 1.0) - s.exponent * np.log(core_set.cores) for s in scalings] for core_set in sets]
        )
        #: Logarithm of each size before anything is measured: precisions × core sets × parameters.
        self._base = np.log(prior)[:, None, :] + threads[None]
        spread = np.array([parameter.spread for parameter in parameters])
        parts = np.array([formula.threads[name].spread for name in names])
        p, d, k, q = len(precisions), len(sets), len(parameters), len(names)
        # A single runtime cannot be compared with others.
        r = runtimes if runtimes > 1 else 0
        self._is_inference = np.array([parameter.term == INFERENCE for parameter in parameters], dtype=float)
        #: Factors and the spread of each: common, of precisions, of speed, of speed at a precision, of parts, of parts at a precision,
        #: of runtimes at a precision, of runtimes on a device at a precision.
        self._shapes = [(k,), (p, k), (d,), (p, d), (d, q), (p, d, q), (p, r), (p, d, r)]
        wide = [np.array(kind) for kind in (SPEED, SPEED_AT_PRECISION, formula.apart, RUNTIME, RUNTIME_ON_DEVICE)]
        spreads = [spread, PRECISION * spread, wide[0], wide[1], parts, *wide[2:]]
        self._weight = np.concatenate([np.broadcast_to(s**-2.0, shape).ravel() for s, shape in zip(spreads, self._shapes, strict=True)])
        self._ends = np.cumsum([0, *[int(np.prod(shape)) for shape in self._shapes]])

    def _split(self, factors: Vector) -> list[Vector]:
        return [
            factors[start:stop].reshape(shape) for start, stop, shape in zip(self._ends[:-1], self._ends[1:], self._shapes, strict=True)
        ]

    def fit(self, data: _PooledTimes) -> Vector:
        """The most likely factors, as logarithms."""
        from scipy.optimize import minimize

        optimum = minimize(
            self._loss,
            np.zeros(self._ends[-1]),
            args=(data,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 5000, "maxfun": 10000, "ftol": 1e-13, "gtol": 1e-6},
        )
        return np.asarray(optimum.x)

    def sizes(self, factors: Vector, precision: int, core_set: int, runtime: int = 0) -> Vector:
        """Sizes on one core set at one precision with one runtime."""
        indices = [np.array([index], dtype=np.intp) for index in (precision, core_set, runtime)]
        sizes: Vector = np.exp(self._logs(self._split(factors), *indices)[0])
        return sizes

    def _logs(self, factors: Sequence[Vector], p: Index, d: Index, r: Index) -> Vector:
        """Logarithms of the sizes, places × parameters."""
        common, of_precision, speed, speed_at, parts, parts_at, runtime, runtime_on = factors
        logs: Vector = (
            self._base[p, d] + common + of_precision[p] + (speed[d] + speed_at[p, d])[:, None] + (parts[d] + parts_at[p, d])[:, self._part]
        )
        if runtime.size:
            logs = logs + (runtime[p, r] + runtime_on[p, d, r])[:, None] * self._is_inference
        return logs

    def _loss(self, factors: Vector, data: _PooledTimes) -> tuple[float, Vector]:
        """Minus the logarithm of how likely factors are, and its gradient."""
        p, d, r = data.precision, data.core_set, data.runtime
        predicted = np.exp(self._logs(self._split(factors), p, d, r)) * data.units
        total = predicted.sum(axis=1)
        error = (np.log(total) - data.logs) / self._noise
        root = np.sqrt(1 + error**2)
        slope = predicted / total[:, None] * (data.weights * error / root / self._noise)[:, None]
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
        loss = float(np.sum(data.weights * (root - 1)) + 0.5 * np.sum(self._weight * factors**2))
        return loss, np.concatenate([part.ravel() for part in gradient]) + self._weight * factors
