"""Priors from relatives: on chips whose truth is known."""

import dataclasses
from math import exp, log

import msgspec
import pytest

from predictors.devices import DeviceProfile, load_device
from predictors.errors import StretchError
from predictors.fits import KernelGroup
from predictors.fitting.relatives import fit_priors, log_ratios
from predictors.measurements.networks import Measurements, Source
from predictors.measurements.tables import Latency
from predictors.predictor import LatencyPredictor
from tests.predictors.fits.examples import fit
from tests.predictors.networks import small_resnet

KINDS = ("conv", "conv1x1", "depthwise", "elementwise", "pool", "reduce", "linear", "copy")
NETWORKS = {f"net{i}": small_resnet(size=32 + 8 * i, blocks=(1 + i % 3, 2)) for i in range(6)}


def chip(name: str, peak: float, luck: float) -> tuple[DeviceProfile, list[Latency]]:
    """A phone of a stated peak whose one core is `luck` times slower than its relatives, and what was measured on it."""
    device = load_device("mi9")
    cores = device.processors["cpu"].core_sets["1large"]
    peaks = {"fp32": msgspec.structs.replace(cores.peak_gops["fp32"], value=peak)}
    small = msgspec.structs.replace(cores, peak_gops=peaks)
    cpu = msgspec.structs.replace(
        device.processors["cpu"], core_sets={"1large": small}, default_core_set="1large", default_precision="fp32"
    )
    terms = {"macs": luck * 1e-5 / peak, "outputs": luck * 1e-5 / peak}
    made = fit({kind: KernelGroup(terms) for kind in KINDS}, source=f"tables, device {name}")
    profile = dataclasses.replace(device, id=name, processors={"cpu": cpu}, links={}, fits={("cpu", "1large", "fp32"): made}, priors={})
    predictor = LatencyPredictor(profile)
    rows = [Latency(name, network, "cpu", "1large", "fp32", "r", predictor.predict(graph, "cpu").ms) for network, graph in NETWORKS.items()]
    return profile, rows


def world(lucks):
    """Phones whose peaks differ, with what was measured on them, and one that nobody measured."""
    chips = [chip(f"phone{i}", 20.0 + 5 * i, luck) for i, luck in enumerate(lucks)]
    rows = [row for _, some in chips for row in some]
    tables = Measurements(Source("tables", "", "", "MIT", "n"), NETWORKS, dict.fromkeys(NETWORKS, "resnet"), rows)
    unknown, _ = chip("unknown", 40.0, 1.0)
    return dataclasses.replace(unknown, fits={}), [profile for profile, _ in chips], tables


@pytest.mark.slow
def test_chips_that_differ_by_their_peaks_alone_predict_each_other():
    device, profiles, tables = world([1.0] * 4)
    [prior] = fit_priors(device, profiles, [tables])
    assert [relative.device for relative in prior.relatives] == [f"phone{i}" for i in range(4)]
    assert prior.scale == pytest.approx(1.0, rel=1e-4)
    assert (prior.interval.low, prior.interval.high) == pytest.approx((1.0, 1.0), rel=1e-3)
    assert prior.left_out.mape == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_spread_of_the_relatives_is_the_interval():
    lucks = [0.8, 1.0, 1.25, 1.0, 0.9, 1.1]
    device, profiles, tables = world(lucks)
    [prior] = fit_priors(device, profiles, [tables])
    # Every chip lies within it, and it is not as wide as twice the widest difference.
    assert prior.interval.low < 0.8
    assert 1.25 < prior.interval.high < 2
    assert prior.left_out.chips == 6
    assert prior.left_out.networks == 6 * len(NETWORKS)
    assert prior.left_out.coverage > 0.8


def test_device_that_the_tables_hold_twice_counts_once():
    device, profiles, tables = world([1.0] * 4)
    twin = dataclasses.replace(profiles[0], id="twin")
    [prior] = fit_priors(device, [*profiles, twin], [tables])
    assert len(prior.relatives) == 4


def test_few_relatives_are_refused():
    device, profiles, tables = world([1.0] * 2)
    with pytest.raises(StretchError, match="has 3 fitted relatives"):
        fit_priors(device, profiles, [tables])


@pytest.mark.slow
def test_log_ratios_are_of_each_chip_against_the_others():
    from predictors.fitting.relatives import _Pool

    device, profiles, tables = world([1.0, 1.0, 1.0, 2.0])
    chips = _Pool(profiles, [tables]).relatives(device, device.processor("cpu"), "fp32")
    slow = log_ratios(chips, "fp32")[3]
    assert all(exp(each) == pytest.approx(2.0, rel=1e-6) for each in slow.values())
    assert log_ratios(chips, "fp32")[0]["net0"] == pytest.approx(log(3 / 4))
