import msgspec
import pytest
from hypothesis import strategies as st

from predictors.devices import PROFILE_FOLDER, load_device
from predictors.errors import StretchError
from predictors.fits import Correction, Fit, FitFile, HeldOut, Interval, KernelGroup, Prior, Trees, fit_path, read_fits, write_fits
from predictors.fusion import KernelCost
from predictors.predictor import LatencyPredictor
from tests.predictors.networks import small_resnet

#: Kernel costs of any size.
kernel_costs = st.builds(
    KernelCost,
    st.sampled_from(["conv1x1", "conv", "depthwise", "elementwise"]),
    *(st.integers(1, 64), st.integers(1, 64), st.integers(1, 8), st.sampled_from([1, 9, 25]), st.integers(1, 5000)),
    *(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6)),
)


def fit(groups, correction=None, **changes):
    interval, held_out = Interval(0.9, 0.8, 1.3, "chosen for the test"), HeldOut(0, 0, 0, 0, 0, 0, 0)
    result = Fit(
        "cpu", "1large", "fp32", "tflite_cpu", "a runtime", groups, correction or Correction(), interval, held_out, "chosen for the test"
    )
    return msgspec.structs.replace(result, **changes)


TREES = {"features": ("taps",), "roots": (0,), "feature": (0, 0, 0), "threshold": (1.0, 0.0, 0.0), "left": (1, 1, 2), "right": (2, 1, 2)}
TREES |= {"value": (0.0, 0.5, -0.25), "base": 0.0, "bound": 1.0}


GOOD = {
    "processor": "gpu",
    "core_set": "all",
    "precision": "fp16",
    "relatives": [{"device": "s10", "processor": "gpu", "core_set": "all", "precision": "fp16"}],
    "scale": 1.0,
    "interval": {"coverage": 0.9, "low": 0.5, "high": 2.0, "method": "m"},
    "left_out": {"chips": 4, "networks": 80, "within_20": 0.5, "mape": 0.4, "coverage": 0.9},
}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (KernelGroup, {"terms": {"macs": -1.0}}),
        (KernelGroup, {"terms": {"macs": 1.0}, "more": 1}),
        (Correction, {"scale": 0.0}),
        (Interval, {"coverage": 0.9, "low": 1.1, "high": 1.2, "method": "m"}),
        (Interval, {"coverage": 1.0, "low": 0.9, "high": 1.2, "method": "m"}),
        (Trees, TREES | {"left": (0, 1, 2)}),  # a node that is its own child but no leaf: an endless walk
        (Trees, TREES | {"left": (7, 1, 2)}),
        (Trees, TREES | {"feature": (3, 0, 0)}),
        (Trees, TREES | {"value": (0.0,)}),
        (Prior, GOOD | {"relatives": []}),
        (Prior, GOOD | {"scale": 0.0}),
        (Prior, GOOD | {"more": 1}),
        (Prior, GOOD | {"left_out": {"chips": -1}}),
    ],
)
def test_impossible_numbers_of_a_fit_are_refused(kind, value):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, kind)


def test_fits_next_to_their_profile_are_read_and_used(tmp_path):
    profile = tmp_path / "mi9.toml"
    profile.write_bytes((PROFILE_FOLDER / "mi9.toml").read_bytes())
    kinds = ("conv", "conv1x1", "elementwise", "reduce", "linear", "pool")
    stored = fit({kind: KernelGroup({"launch": 1.0}) for kind in kinds}, Correction(fixed_ms=0.5))
    write_fits(fit_path(profile), FitFile("mi9", "stretch profile fit here", (stored,)))
    assert read_fits(fit_path(profile), "mi9") == {("cpu", "1large", "fp32"): stored}
    graph, device = small_resnet(), load_device(profile)
    estimate = LatencyPredictor(device).predict(graph, "cpu[1large]", "fp32")
    assert estimate.ms == pytest.approx(len(estimate.kernels) + 0.5)
    assert (estimate.low_ms, estimate.high_ms) == (pytest.approx(0.8 * estimate.ms), pytest.approx(1.3 * estimate.ms))
    assert estimate.calibrated
    assert not LatencyPredictor(device).predict(graph, "cpu", "int8").calibrated


def test_fits_of_another_device_or_damaged_ones_are_refused(tmp_path):
    profile = tmp_path / "mi9.toml"
    write_fits(fit_path(profile), FitFile("pixel6", "stretch profile fit here", ()))
    other, more = fit_path(profile).read_text(), '{"device": "mi9", "command": "x", "fits": [], "more": 1}'
    for text, message in ((other, "`pixel6`"), (more, "`more`"), ("{", "file of fits")):
        fit_path(profile).write_text(text)
        with pytest.raises(StretchError, match=message):
            read_fits(fit_path(profile), "mi9")
