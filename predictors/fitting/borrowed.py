"""Borrowed fits: kernel groups that a table of measurements lacks, taken from a fit to another table of the same cores.

The tables of convolutional networks contain no attention, token normalisation or GELU.
Another table has transformers on the same phones. Groups that both tables contain keep the fit of the first.
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
    device = borrowed.devices.get(measured_on, measured_on)
    pool, sizes = _pool_of(borrowed.measurements)
    place = (fit.precision, device, fit.core_set)
    if place not in sizes:
        return fit
    fitted, _ = pool.groups(place, sizes[place])
    groups: dict[str, KernelGroup] = fit.groups | {name: fitted[source] for name, source in borrowed.groups.items() if source in fitted}
    table = load_measurements(borrowed.measurements).source
    return msgspec.structs.replace(fit, groups=groups, source=f"{fit.source}; kernels of transformers: {table.title}, device {device}")


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
