"""Kernels that a table of a device lacks, from the fit to another table of the same cores.

The phones' tables of convolutional networks have no attention, no normalisation
of tokens and no GELU; the same phones ran transformers in another table. What
convolutional networks are made of stays as their own table says.
"""

from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np

from predictors.fits.fit import Fit, KernelGroup
from predictors.fitting.design import Networks
from predictors.fitting.folds import family_folds
from predictors.fitting.formula import load_formula
from predictors.fitting.nnls import Vector
from predictors.fitting.pooled import Place
from predictors.fitting.together import Pool
from predictors.measurements.networks import load_measurements


class Loan(NamedTuple):
    """What one table lends to fits to another."""

    measurements: str  # That have the kernels; they ship with nn-stretch.
    backend: str  # Fusion rules by which they are fitted.
    slices: tuple[int, int]  # Output and input channels that are computed at a time.
    groups: dict[str, str]  # Groups that are lent, by their name in the fit that borrows.
    devices: dict[str, str]  # Devices of the borrower by another name in these measurements: the same chip in another phone.


#: By the borrower's fusion rules.
LOANS = {
    "tflite_cpu": Loan(
        "transformers",
        "tflite_cpu_transformers",
        (8, 4),
        # A product of one position is a classifier's, which convolutional networks have.
        {"linear:": "linear"}
        | {name: name for name in ("matmul", "elementwise:softmax", "elementwise:layer_norm", "elementwise:gelu", "copy:permute")},
        {"mi8se": "onefusion"},
    )
}


def lend(fit: Fit, measured_on: str) -> Fit:
    """A fit with the kernels that another table of the same device, cores and precision knows; itself where there is none."""
    loan = LOANS.get(fit.backend)
    if loan is None:
        return fit
    device = loan.devices.get(measured_on, measured_on)
    pool, sizes = _lender(loan.measurements)
    place = (fit.precision, device, fit.core_set)
    if place not in sizes:
        return fit
    known, _ = pool.groups(place, sizes[place])
    groups: dict[str, KernelGroup] = fit.groups | {name: known[own] for name, own in loan.groups.items() if own in known}
    source = load_measurements(loan.measurements).source
    return msgspec.structs.replace(fit, groups=groups, source=f"{fit.source}; kernels of transformers: {source.title}, device {device}")


@cache
def _lender(name: str) -> tuple[Pool, dict[Place, Vector]]:
    """The pool of a lender and its sizes from all of its networks."""
    loan = next(each for each in LOANS.values() if each.measurements == name)
    measured = load_measurements(name)
    networks = Networks(measured.graphs, measured.families, loan.backend)
    pool = Pool(networks, load_formula(loan.backend), measured.latencies, family_folds(measured.families, networks.kinds), loan.slices)
    return pool, {place: np.asarray(some) for place, some in pool.sizes().items()}
