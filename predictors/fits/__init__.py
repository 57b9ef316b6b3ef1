"""Fits: kernel models whose numbers come from measurements on a device, stored as data with its profile."""

from predictors.fits.fit import Correction, Fit, HeldOut, Interval, KernelGroup, Trees
from predictors.fits.prior import Calibration, LeftOut, MeasuredNetwork, Prior, Relative
from predictors.fits.store import FitFile, PriorFile, fit_path, prior_path, read_fits, read_priors, write_fits, write_priors

__all__ = [
    "Calibration",
    "Correction",
    "Fit",
    "FitFile",
    "HeldOut",
    "Interval",
    "KernelGroup",
    "LeftOut",
    "MeasuredNetwork",
    "Prior",
    "PriorFile",
    "Relative",
    "Trees",
    "fit_path",
    "prior_path",
    "read_fits",
    "read_priors",
    "write_fits",
    "write_priors",
]
