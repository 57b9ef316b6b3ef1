"""Fits in their file beside the profile."""

import pytest

from predictors.devices import PROFILE_FOLDER, load_device
from predictors.errors import StretchError
from predictors.fits import Correction, KernelGroup, fit_path, read_fits, write_fits
from predictors.predictor import LatencyPredictor
from tests.predictors.fits.examples import fit
from tests.predictors.networks import small_resnet


def test_fits_are_read_beside_their_profile_and_used(tmp_path):
    profile = tmp_path / "mi9.toml"
    profile.write_bytes((PROFILE_FOLDER / "mi9.toml").read_bytes())
    one = fit(
        {kind: KernelGroup({"launch": 1.0}) for kind in ("conv", "conv1x1", "elementwise", "reduce", "linear", "pool")},
        Correction(fixed_ms=0.5),
    )
    write_fits(fit_path(profile), "mi9", "stretch fit here", [one])
    assert read_fits(profile, "mi9") == {("cpu", "1large", "fp32"): one}
    graph, device = small_resnet(), load_device(profile)
    estimate = LatencyPredictor(device).predict(graph, "cpu[1large]", "fp32")
    assert estimate.ms == pytest.approx(len(estimate.kernels) + 0.5)
    assert (estimate.low_ms, estimate.high_ms) == (pytest.approx(0.8 * estimate.ms), pytest.approx(1.3 * estimate.ms))
    assert estimate.calibrated
    assert not LatencyPredictor(device).predict(graph, "cpu", "int8").calibrated


def test_fits_of_another_device_or_damaged_ones_are_refused(tmp_path):
    profile = tmp_path / "mi9.toml"
    write_fits(fit_path(profile), "pixel6", "stretch fit here", [])
    with pytest.raises(StretchError, match="fits of `pixel6`"):
        read_fits(profile, "mi9")
    fit_path(profile).write_text('{"device": "mi9", "command": "x", "fits": [], "more": 1}')
    with pytest.raises(StretchError, match="`more` is an unknown key"):
        read_fits(profile, "mi9")
    fit_path(profile).write_text("{")
    with pytest.raises(StretchError, match="is not a file of fits"):
        read_fits(profile, "mi9")
