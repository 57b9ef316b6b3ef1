"""Fits to a few networks on many devices and at several precisions, all at once.

Where each device has ten times and nobody measured kernels, devices and
precisions must teach each other. Sizes of parameters are products: of what
formulas say before anything is measured, what all devices have in common, what
a precision changes, how fast a device is, and how the parts of its work (products,
vectors, memory, launches) differ from that. Each factor has a log-normal prior
(partial pooling: Gelman and Hill 2007); the most likely factors are found by
L-BFGS (Liu and Nocedal 1989) under a loss that a few wrong times hardly move
(pseudo-Huber).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from predictors.fitting.design import Design
from predictors.fitting.formula import Formula
from predictors.fitting.nnls import Vector
from predictors.fitting.whole import CoreSet

#: Logarithms: how fast a core set may be, one precision beside another, and how differently it may do the parts of its work at it.
SPEED, SPEED_AT, PARTS_AT = 3.0, 0.3, 0.15

#: What a precision changes beside what formulas say, relative to how unsure those are.
PRECISION = 0.4

#: Precision, device, core set.
Place = tuple[str, str, str]


@dataclass(frozen=True)
class _Data:
    """Times as arrays, one element or row a time.

    Args:
        units: Times × parameters.
        logs: Of the times.
        precision: Index of each.
        core_set: Index of each.
    """

    units: Vector
    logs: Vector
    precision: np.ndarray[tuple[int], np.dtype[np.intp]]
    core_set: np.ndarray[tuple[int], np.dtype[np.intp]]


def fit_pooled(
    designs: Mapping[str, Design], formula: Formula, sets: Mapping[str, Sequence[CoreSet]], training: Vector
) -> dict[Place, Vector]:
    """Sizes of the parameters for every precision and core set.

    Args:
        designs: Units of the networks by precision; all have the same parameters.
        formula: That they are of, with its `units`.
        sets: Times by precision.
        training: Which networks may be looked at.
    """
    precisions = sorted(designs)
    keys = sorted({each.key for some in sets.values() for each in some})
    known = {each.key: each for some in sets.values() for each in some}
    model = _Model(formula, [designs[p] for p in precisions], precisions, [known[key] for key in keys])
    data = _data(designs, sets, precisions, keys, training)
    found = model.fit(data)
    return {
        (precision, *each.key): model.sizes(found, p, keys.index(each.key))
        for p, precision in enumerate(precisions)
        for each in sets[precision]
    }


def _data(
    designs: Mapping[str, Design],
    sets: Mapping[str, Sequence[CoreSet]],
    precisions: list[str],
    keys: list[tuple[str, str]],
    training: Vector,
) -> _Data:
    units, logs, at, where = [], [], [], []
    for p, precision in enumerate(precisions):
        for each in sets[precision]:
            use = training & np.isfinite(each.times)
            units.append(designs[precision].units[use])
            logs.append(np.log(each.times[use]))
            at += [p] * int(use.sum())
            where += [keys.index(each.key)] * int(use.sum())
    return _Data(np.concatenate(units), np.concatenate(logs), np.array(at, dtype=np.intp), np.array(where, dtype=np.intp))


class _Model:
    """Factors of sizes, their priors, and the loss.

    Args:
        formula: With its `units`.
        designs: One a precision.
        precisions: Their names.
        sets: Core sets, whatever their times.
    """

    def __init__(self, formula: Formula, designs: Sequence[Design], precisions: Sequence[str], sets: Sequence[CoreSet]) -> None:
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
            [[np.log(s.factor if each.cores > 1 else 1.0) - s.exponent * np.log(each.cores) for s in scalings] for each in sets]
        )
        #: Logarithm of each size before anything is measured: precisions × core sets × parameters.
        self._base = np.log(prior)[:, None, :] + threads[None]
        spread = np.array([parameter.spread for parameter in parameters])
        parts = np.array([formula.threads[name].spread for name in names])
        p, d, k, q = len(precisions), len(sets), len(parameters), len(names)
        #: Factors and the spread of each: common, of precisions, of speed, of speed at a precision, of parts, of parts at a precision.
        self._shapes = [(k,), (p, k), (d,), (p, d), (d, q), (p, d, q)]
        spreads = [spread, PRECISION * spread, np.array(SPEED), np.array(SPEED_AT), parts, np.array(PARTS_AT)]
        self._weight = np.concatenate([np.broadcast_to(s**-2.0, shape).ravel() for s, shape in zip(spreads, self._shapes, strict=True)])
        self._ends = np.cumsum([0, *[int(np.prod(shape)) for shape in self._shapes]])

    def _split(self, factors: Vector) -> list[Vector]:
        return [
            factors[start:stop].reshape(shape) for start, stop, shape in zip(self._ends[:-1], self._ends[1:], self._shapes, strict=True)
        ]

    def fit(self, data: _Data) -> Vector:
        """The most likely factors, as logarithms."""
        from scipy.optimize import minimize

        found = minimize(
            self._loss,
            np.zeros(self._ends[-1]),
            args=(data,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 5000, "maxfun": 10000, "ftol": 1e-13, "gtol": 1e-6},
        )
        return np.asarray(found.x)

    def sizes(self, factors: Vector, precision: int, core_set: int) -> Vector:
        """Sizes on one core set at one precision."""
        common, at, speed, speed_at, parts, parts_at = self._split(factors)
        own = parts[core_set] + parts_at[precision, core_set]
        logs = common + at[precision] + speed[core_set] + speed_at[precision, core_set] + own[self._part]
        sizes: Vector = np.exp(self._base[precision, core_set] + logs)
        return sizes

    def _loss(self, factors: Vector, data: _Data) -> tuple[float, Vector]:
        """Minus the logarithm of how likely factors are, and its gradient."""
        common, at, speed, speed_at, parts, parts_at = self._split(factors)
        p, d = data.precision, data.core_set
        logs = self._base[p, d] + common + at[p] + (speed[d] + speed_at[p, d])[:, None] + (parts[d] + parts_at[p, d])[:, self._part]
        each = np.exp(logs) * data.units
        total = each.sum(axis=1)
        error = (np.log(total) - data.logs) / self._noise
        root = np.sqrt(1 + error**2)
        slope = each / total[:, None] * (error / root / self._noise)[:, None]
        gradient = [np.zeros(shape) for shape in self._shapes]
        gradient[0] = slope.sum(axis=0)
        np.add.at(gradient[1], p, slope)
        np.add.at(gradient[2], d, slope.sum(axis=1))
        np.add.at(gradient[3], (p, d), slope.sum(axis=1))
        by_part = np.stack([slope[:, self._part == q].sum(axis=1) for q in range(parts.shape[1])], axis=1)
        np.add.at(gradient[4], d, by_part)
        np.add.at(gradient[5], (p, d), by_part)
        loss = float(np.sum(root - 1) + 0.5 * np.sum(self._weight * factors**2))
        return loss, np.concatenate([part.ravel() for part in gradient]) + self._weight * factors
