"""Fits to a few networks on many devices and at several precisions, all at once.

Where each device has ten times and nobody measured kernels, devices and
precisions must teach each other. Sizes of parameters are products: of what
formulas say before anything is measured, what all devices have in common, what
a precision changes, how fast a device is, and how the parts of its work (products,
vectors, memory, launches) differ from that. Where several runtimes timed the same
network, they differ in what an inference takes beside its kernels, so each has a
factor on that; a device is predicted with its fastest. Each factor has a log-normal
prior (partial pooling: Gelman and Hill 2007); the most likely factors are found by
L-BFGS (Liu and Nocedal 1989) under a loss that a few wrong times hardly move
(pseudo-Huber).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from predictors.fitting.design import Design
from predictors.fitting.formula import INFERENCE, Formula
from predictors.fitting.nnls import Vector
from predictors.fitting.whole import TimedCoreSet

#: Logarithms: how fast a core set may be, and one precision beside another.
SPEED, SPEED_AT = 3.0, 0.3

#: Logarithms: how runtimes differ in what an inference takes beside its kernels, and how devices differ in that.
RUNTIME, RUNTIME_ON = 1.0, 0.3

#: What a precision changes beside what formulas say, relative to how unsure those are.
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
    known = {core_set.key: core_set for some in sets.values() for core_set in some}
    keys = sorted(known)
    runtimes = sorted({timed.runtime for some in sets.values() for timed in some})
    model = _Model(formula, [designs[p] for p in precisions], precisions, [known[key] for key in keys], len(runtimes))
    optimum = model.fit(_data(designs, sets, (precisions, keys, runtimes), training))
    sizes: dict[Place, list[Vector]] = {}
    for p, precision in enumerate(precisions):
        for core_set in sets[precision]:
            some = model.sizes(optimum, p, keys.index(core_set.key), runtimes.index(core_set.runtime))
            sizes.setdefault((precision, *core_set.key), []).append(some)
    return {place: min(some, key=lambda size_vector: float(size_vector.sum())) for place, some in sizes.items()}


def _data(
    designs: Mapping[str, Design],
    sets: Mapping[str, Sequence[TimedCoreSet]],
    indices: tuple[list[str], list[tuple[str, str]], list[str]],
    training: Vector,
) -> _PooledTimes:
    """Times of all precisions, core sets and runtimes, which `indices` names in their order."""
    precisions, keys, runtimes = indices
    units, logs, weights, at = [], [], [], []
    for p, precision in enumerate(precisions):
        timed = {key: np.sum([np.isfinite(row.times) for row in sets[precision] if row.key == key], axis=0) for key in keys}
        for core_set in sets[precision]:
            use = training & np.isfinite(core_set.times)
            units.append(designs[precision].units[use])
            logs.append(np.log(core_set.times[use]))
            weights.append(1 / timed[core_set.key][use])
            at += [(p, keys.index(core_set.key), runtimes.index(core_set.runtime))] * int(use.sum())
    where = np.array(at, dtype=np.intp).reshape(-1, 3)
    return _PooledTimes(np.concatenate(units), np.concatenate(logs), where[:, 0], where[:, 1], where[:, 2], np.concatenate(weights))


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
        # One runtime has nothing to be compared with.
        r = runtimes if runtimes > 1 else 0
        self._beside = np.array([parameter.term == INFERENCE for parameter in parameters], dtype=float)
        #: Factors and the spread of each: common, of precisions, of speed, of speed at a precision, of parts, of parts at a precision,
        #: of runtimes at a precision, of runtimes on a device at a precision.
        self._shapes = [(k,), (p, k), (d,), (p, d), (d, q), (p, d, q), (p, r), (p, d, r)]
        wide = [np.array(kind) for kind in (SPEED, SPEED_AT, formula.apart, RUNTIME, RUNTIME_ON)]
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
        one = [np.array([index], dtype=np.intp) for index in (precision, core_set, runtime)]
        sizes: Vector = np.exp(self._logs(self._split(factors), *one)[0])
        return sizes

    def _logs(self, factors: Sequence[Vector], p: Index, d: Index, r: Index) -> Vector:
        """Logarithms of the sizes, places × parameters."""
        common, at, speed, speed_at, parts, parts_at, runtime, runtime_on = factors
        logs: Vector = self._base[p, d] + common + at[p] + (speed[d] + speed_at[p, d])[:, None] + (parts[d] + parts_at[p, d])[:, self._part]
        if runtime.size:
            logs = logs + (runtime[p, r] + runtime_on[p, d, r])[:, None] * self._beside
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
            np.add.at(gradient[6], (p, r), slope @ self._beside)
            np.add.at(gradient[7], (p, d, r), slope @ self._beside)
        loss = float(np.sum(data.weights * (root - 1)) + 0.5 * np.sum(self._weight * factors**2))
        return loss, np.concatenate([part.ravel() for part in gradient]) + self._weight * factors
