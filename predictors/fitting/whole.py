"""Fits to the times of whole networks, without measurements of kernels.

A few dozen networks cannot tell thirty parameters apart, above all not for a
family that none of them belongs to. Four things are known besides: about what a
unit of work costs (the formula's priors), that cores of other devices divide
their time alike (a prior shared by all of them, an empirical Bayes estimate after
Morris 1983), which work a runtime hands out to threads and which one core does
by itself (the formula's scalings; Amdahl 1967), and that n threads divide nothing
by more than n.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from predictors.fitting.design import Design
from predictors.fitting.formula import Formula, TermPrior
from predictors.fitting.nnls import Vector, solve, solve_robustly

#: Relative uncertainty of: a time, the formula's priors, the prior that devices share, a size beside its scaling.
NOISE, WIDE, SHARED, THREADS = 0.05, 1.0, 0.3, 0.1

#: A byte costs at least as much as this many multiply-accumulates, and a launch at least so many ms.
LEAST_BYTE, LEAST_LAUNCH_MS = 0.5, 5e-4

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
        """How many; 1 where the name does not tell."""
        return sum(int(count) for count, _ in _CORES.findall(self.name)) or 1

    @property
    def alone(self) -> str:
        """Name of the core set that has the first of these cores by itself."""
        counts = _CORES.findall(self.name)
        return f"1{counts[0][1]}" if counts else self.name


def fit_core_sets(
    matrix: Design, formula: Formula, precision: str, sets: Sequence[TimedCoreSet], training: Vector
) -> dict[tuple[str, str], Vector]:
    """Sizes of the parameters for every core set."""
    known = {cores.key for cores in sets}
    # What has no single core to be compared with counts as one itself.
    single = [cores for cores in sets if cores.cores == 1 or (cores.device, cores.alone) not in known]
    first = {cores.key: _first(matrix, precision, cores, training) for cores in single}
    fitted = {cores.key: _shared(matrix, first, cores, training) for cores in single}
    for core_set in sets:
        if core_set.key not in fitted:
            fitted[core_set.key] = _threads(matrix, formula, fitted[core_set.device, core_set.alone], core_set, training)
    return fitted


def _rows(matrix: Design, core_set: TimedCoreSet, training: Vector) -> tuple[Vector, Vector]:
    use = training & np.isfinite(core_set.times)
    return matrix.units[use], core_set.times[use]


def _first(matrix: Design, precision: str, core_set: TimedCoreSet, training: Vector) -> Vector:
    """From the formula's priors alone, kept from zero so that logarithms exist."""
    units, times = _rows(matrix, core_set, training)
    prior = scaled_prior(units, times, matrix.priors(precision))
    return np.maximum(solve(units, times, prior, WIDE, NOISE), 0.1 * prior)


def scaled_prior(units: Vector, times: Vector, priors: Sequence[TermPrior]) -> Vector:
    """Sizes in ms from priors in multiply-accumulates, bytes and launches: what one of each costs here."""
    parts = np.array([[prior.compute, prior.memory, prior.launch] for prior in priors])
    rows = (units @ parts) / times[:, None]
    scale = np.maximum(rows.mean(axis=0), np.finfo(float).tiny)
    # A launch of 3 µs unless the times say otherwise.
    weak = np.array([[0.0, 0.0, 0.3 / 3e-3]])
    per_mac, per_byte, per_launch = (
        solve(np.vstack([rows / scale, weak / scale]), np.ones(len(times) + 1) * np.append(np.ones(len(times)), 0.3), None) / scale
    )
    per_byte, per_launch = max(per_byte, LEAST_BYTE * per_mac), max(per_launch, LEAST_LAUNCH_MS)
    sizes: Vector = parts @ np.array([per_mac, per_byte, per_launch])
    return sizes


def _shared(matrix: Design, first: Mapping[tuple[str, str], Vector], core_set: TimedCoreSet, training: Vector) -> Vector:
    """Towards what all devices have in common: the mean of their sizes, each relative to how fast the device is."""
    logs = {key: np.log(sizes) for key, sizes in first.items()}
    mean = matrix.units[training].mean(axis=0)
    weight = mean * np.mean([sizes / (mean @ sizes) for sizes in first.values()], axis=0)
    weight /= weight.sum()
    speed = {key: float(log @ weight) for key, log in logs.items()}
    prior = np.exp(np.mean([log - speed[key] for key, log in logs.items()], axis=0) + speed[core_set.key])
    units, times = _rows(matrix, core_set, training)
    prior *= np.exp(np.mean(np.log(times / (units @ prior))))
    return solve(units, times, prior, SHARED, NOISE)


def _threads(matrix: Design, formula: Formula, alone: Vector, core_set: TimedCoreSet, training: Vector) -> Vector:
    """From one core of the same device: a factor for each scaling, then each size by itself, none divided by more than there are cores."""
    units, times = _rows(matrix, core_set, training)
    alone = np.maximum(alone, alone.max() * 1e-15)
    names = list(formula.threads)
    shares = np.array([[name in parameter.shares for parameter in matrix.parameters] for name in names], dtype=float)
    scalings = [formula.threads[name] for name in names]
    expected = np.array([scaling.factor / core_set.cores**scaling.exponent for scaling in scalings])
    spread = np.array([scaling.spread for scaling in scalings])
    divided = np.full(len(names), 1 / core_set.cores)
    factors = solve_robustly(units @ (shares * alone).T, times, expected, spread, NOISE, divided)
    prior = np.maximum((factors @ shares) * alone, 0.03 * alone)
    return solve_robustly(units, times, prior, THREADS, NOISE, alone / core_set.cores)
