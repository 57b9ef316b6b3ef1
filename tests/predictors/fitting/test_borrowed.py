"""Kernels of transformers in fits to convolutional networks."""

import msgspec
import numpy as np
import pytest

from predictors.devices import load_device
from predictors.fits.fit import Correction, Fit, HeldOut, Interval, KernelGroup
from predictors.fitting.fit import BORROWED_FITS, add_borrowed
from predictors.fitting.design import Networks
from predictors.measurements.networks import load_measurements
from predictors.models.fitted import FittedModel

HELD = HeldOut(0, 0, 0, 0.0, 0.0, 0.0, 0.0)


def fit_of(backend="tflite_cpu", core_set="1large", precision="fp32"):
    groups = {name: KernelGroup({"launch": 0.001}) for name in ("conv1x1:", "linear:", "linear:fully_connected", "elementwise", "copy")}
    return Fit("cpu", core_set, precision, backend, "r", groups, Correction(), Interval(0.9, 0.9, 1.1, "m"), HELD, "s")


@pytest.mark.slow
def test_transformers_take_their_measured_times_and_convolutions_keep_theirs():
    before = fit_of()
    after = add_borrowed(before, "pixel4")
    assert set(after.groups) == set(before.groups) | set(BORROWED_FITS["tflite_cpu"].groups)
    assert {name for name in before.groups if after.groups[name] != before.groups[name]} == {"linear:"}
    assert "transformers" in after.source
    measured = load_measurements("transformers")
    networks = Networks(measured.graphs, measured.families, "tflite_cpu")
    times = {r.network: r.ms for r in measured.latencies if (r.device, r.core_set, r.precision) == ("pixel4", "1large", "fp32")}
    model = FittedModel(after, load_device("pixel4").processor("cpu[1large]"))
    # What these phones took for plain transformers, nearly all of whose kernels are borrowed.
    plain = [name for name in times if measured.families[name] != "mit"]
    ratios = [sum(t.ms for t in model.times(networks.costs[name])) / times[name] for name in plain]
    assert np.median(np.abs(np.array(ratios) - 1)) < 0.2


@pytest.mark.slow
def test_same_chip_in_another_phone_is_borrowed_from():
    assert "device onefusion" in add_borrowed(fit_of(), "mi8se").source


@pytest.mark.parametrize(
    ("fit", "device"),
    [(fit_of("ncnn"), "pixel4"), (fit_of(), "toaster"), (fit_of(core_set="9large"), "pixel4"), (fit_of(precision="fp16"), "pixel4")],
)
def test_fit_without_a_table_to_borrow_from_stays_as_it_is(fit, device):
    assert msgspec.json.encode(add_borrowed(fit, device)) == msgspec.json.encode(fit)
