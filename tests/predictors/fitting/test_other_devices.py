"""Fits from the measurements of other devices, and fits of boards with ncnn."""

import re

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from predictors.devices import DeviceProfile, load_device
from predictors.errors import StretchError
from predictors.fits import KernelGroup
from predictors.fitting.fit import BORROWED_FITS, Pool, add_borrowed, family_folds
from predictors.fitting.networks import Networks, TimedCoreSet, design, fit_pooled, load_formula
from predictors.fitting.priors import fit_priors
from predictors.measurements.networks import Measurements, Source, load_measurements
from predictors.measurements.tables import Latency
from predictors.models.fitted import FittedModel, Grain
from predictors.predictor import LatencyPredictor
from tests.predictors.fits.test_fits import fit
from tests.predictors.networks import small_resnet


@pytest.fixture(scope="module")
def world():
    """Networks of the NPU tables, with times computed from known sizes for five devices; the last two have one precision only."""
    measured = load_measurements("npu")
    formula = load_formula("qnn_htp")
    networks = Networks(measured.graphs, measured.families, "qnn_htp")
    designs = {p: design(networks, formula, Grain(32, 32, size), p) for p, size in (("fp16", 2), ("int8", 1))}
    rng = np.random.default_rng(0)
    common = rng.normal(0, 0.3, len(designs["fp16"].parameters))
    sets, truth = {}, {}
    for precision, built in designs.items():
        unit = formula.units[precision]
        prior = [size.compute * unit.compute + size.memory * unit.memory + size.launch * unit.launch for size in built.priors(precision)]
        sets[precision] = []
        for number, speed in enumerate((0.5, 1.0, 2.0, 3.0, 6.0)[: 3 if precision == "fp16" else 5]):
            sizes = truth[precision, f"d{number}", "all"] = np.array(prior) * np.exp(common) * speed
            sets[precision].append(TimedCoreSet(f"d{number}", "all", built.units @ sizes))
    return designs, formula, sets, truth


def test_constant_of_an_inference_differs_by_runtime_and_the_fastest_runtime_is_predicted(world):
    designs, formula, sets, truth = world
    constants = np.array([parameter.term == "inference" for parameter in designs["int8"].parameters])
    # The slower runtime adds twice the constant of an inference, and is the only one on the third device.
    twice = {
        p: [
            TimedCoreSet(item.device, item.name, item.times + slower * (designs[p].units @ (truth[p, *item.key] * constants)), runtime)
            for item in core_sets
            for runtime, slower in (("fast", 0.0), ("slow", 2.0))
            if runtime == "slow" or item.device != "d2"
        ]
        for p, core_sets in sets.items()
    }
    training = np.ones(len(designs["fp16"].names), dtype=bool)
    training[::4] = False
    result = fit_pooled(designs, formula, twice, training)
    assert set(result) == set(truth)
    for place, sizes in result.items():
        units = designs[place[0]].units[~training]
        wanted = truth[place] * np.where(constants & (place[1] == "d2"), 3.0, 1.0)
        np.testing.assert_allclose(units @ sizes, units @ wanted, rtol=0.12)


NETWORKS = {f"net{i}": small_resnet(size=32 + 8 * i, blocks=(1 + i % 3, 2)) for i in range(6)}


def chip(name: str, peak: float, slowdown: float) -> tuple[DeviceProfile, list[Latency]]:
    """A phone with one core, its peak in GOPS and a `slowdown` against its relatives, and its measurements."""
    device = load_device("mi9")
    cores = device.processors["cpu"].core_sets["1large"]
    small = replace(cores, peak_gops={"fp32": replace(cores.peak_gops["fp32"], value=peak)})
    cpu = replace(device.processors["cpu"], core_sets={"1large": small}, default_core_set="1large", default_precision="fp32")
    terms = {"macs": slowdown * 1e-5 / peak, "outputs": slowdown * 1e-5 / peak}
    kinds = ("conv", "conv1x1", "depthwise", "elementwise", "pool", "reduce", "linear", "copy")
    fits = {("cpu", "1large", "fp32"): fit(dict.fromkeys(kinds, KernelGroup(terms)), source=f"tables, device {name}")}
    profile = replace(device, id=name, processors={"cpu": cpu}, links={}, fits=fits, priors={})
    predictor = LatencyPredictor(profile)
    rows = [Latency(name, network, "cpu", "1large", "fp32", "r", predictor.predict(graph, "cpu").ms) for network, graph in NETWORKS.items()]
    return profile, rows


def relatives_of_one_phone(slowdowns):
    """Phones with different peaks and their measurements, and one phone without measurements."""
    chips = [chip(f"phone{i}", 20.0 + 5 * i, slowdown) for i, slowdown in enumerate(slowdowns)]
    rows = [row for _, chip_rows in chips for row in chip_rows]
    tables = Measurements(Source("tables", "", "", "MIT", "n"), NETWORKS, dict.fromkeys(NETWORKS, "resnet"), rows)
    unknown, _ = chip("unknown", 40.0, 1.0)
    return replace(unknown, fits={}), [profile for profile, _ in chips], tables


@pytest.mark.slow
def test_interval_covers_the_spread_of_the_relatives():
    device, profiles, tables = relatives_of_one_phone([0.8, 1.0, 1.25, 1.0, 0.9, 1.1])
    [prior] = fit_priors(device, profiles, [tables])
    # Every chip is in the interval, whose upper end stays below 2.
    assert prior.interval.low < 0.8 < 1.25 < prior.interval.high < 2
    assert (prior.left_out.chips, prior.left_out.networks) == (6, 6 * len(NETWORKS))
    assert prior.left_out.coverage > 0.8


def test_device_with_two_profiles_counts_once_and_too_few_relatives_are_refused():
    device, profiles, tables = relatives_of_one_phone([1.0] * 4)
    [prior] = fit_priors(device, [*profiles, replace(profiles[0], id="twin")], [tables])
    assert len(prior.relatives) == 4
    device, profiles, tables = relatives_of_one_phone([1.0] * 2)
    with pytest.raises(StretchError, match="3 fitted relatives"):
        fit_priors(device, profiles, [tables])


@pytest.fixture(scope="module")
def pool():
    measured = load_measurements("npu")
    networks = Networks(measured.graphs, measured.families, "qnn_htp")
    folds = family_folds(measured.families, networks.kinds)
    rows = [row for row in measured.latencies if row.device in ("s24", "s25", "rb3gen2")]
    return Pool(networks, load_formula("qnn_htp"), rows, folds, (32, 32))


def test_minimum_time_of_several_runtimes_counts(pool):
    rows = [row.ms for row in pool.rows if (row.device, row.network, row.precision) == ("s24", "resnet50", "int8")]
    (s24,) = [item for item in pool.sets["int8"] if item.device == "s24"]
    assert (len(rows), s24.times[list(pool.networks.costs).index("resnet50")]) == (3, min(rows))


@pytest.mark.slow
def test_every_measured_network_is_left_out_once_with_its_family(pool):
    for precision, values in pool.sets.items():
        for item in values:
            assert len(pool.ratios[precision, *item.key]) == np.isfinite(item.times).sum()
    families = pool.networks.families
    assert len({(families[name], pool.folds[name]) for name in families}) == len(set(families.values()))
    # the interval of a precision holds about 90 % of the ratios of all devices
    for precision in pool.sets:
        interval = pool.interval(precision)
        ratios = [ratio for place, values in pool.ratios.items() if place[0] == precision for ratio in values.values()]
        assert np.mean([interval.low <= ratio <= interval.high for ratio in ratios]) >= 0.85
        assert 0.8 <= pool.coverage([place for place in pool.ratios if place[0] == precision]) <= 0.97


def fit_of(**changes):
    names = ("conv1x1:", "linear:", "linear:fully_connected", "elementwise", "copy")
    return fit({name: KernelGroup({"launch": 0.001}) for name in names}, **changes)


@pytest.mark.slow
def test_borrowed_kernels_give_the_measured_times_of_transformers_and_keep_convolutions():
    before = fit_of()
    after = add_borrowed(before, "pixel4")
    assert set(after.groups) == set(before.groups) | set(BORROWED_FITS["tflite_cpu"].groups)
    assert {name for name in before.groups if after.groups[name] != before.groups[name]} == {"linear:"}
    assert "transformers" in after.source
    # another phone with the same chip
    assert "device onefusion" in add_borrowed(before, "mi8se").source
    measured = load_measurements("transformers")
    networks = Networks(measured.graphs, measured.families, "tflite_cpu")
    times = {r.network: r.ms for r in measured.latencies if (r.device, r.core_set, r.precision) == ("pixel4", "1large", "fp32")}
    model = FittedModel(after, load_device("pixel4").processor("cpu[1large]"))
    # Measured times of plain transformers, whose kernels are nearly all borrowed.
    plain = [name for name in times if measured.families[name] != "mit"]
    ratios = [sum(t.ms for t in model.times(networks.costs[name])) / times[name] for name in plain]
    assert np.median(np.abs(np.array(ratios) - 1)) < 0.2


@pytest.mark.parametrize(
    ("changes", "device"),
    [({"backend": "ncnn"}, "pixel4"), ({}, "toaster"), ({"core_set": "9large"}, "pixel4"), ({"precision": "fp16"}, "pixel4")],
)
def test_fit_without_a_table_to_borrow_from_stays_unchanged(changes, device):
    kept = fit_of(**changes)
    assert msgspec.json.encode(add_borrowed(kept, device)) == msgspec.json.encode(kept)


@pytest.fixture(scope="module")
def boards():
    return load_measurements("boards")


@pytest.mark.parametrize("device", ["rk3588", "rk3399", "a311d", "n5105", "sd888", "x-elite", "d9300"])
def test_measured_networks_are_predicted_inside_the_interval(boards, device):
    profile = load_device(device)
    predictor = LatencyPredictor(profile)
    for processor, core_set, precision in profile.fits:
        rows = [
            row for row in boards.of(device).latencies if (row.processor, row.core_set, row.precision) == (processor, core_set, precision)
        ]
        times = [predictor.predict(boards.graphs[row.network], f"{processor}[{core_set}]", precision) for row in rows]
        inside = [time.low_ms <= row.ms <= time.high_ms for row, time in zip(rows, times, strict=True)]
        assert not rows or np.mean(inside) >= 0.8


def test_gpu_tables_have_no_network_that_ran_on_the_cpu(boards):
    names = {row.network for row in boards.latencies if row.processor == "gpu"}
    assert len(names) == 20
    assert not any(re.search("int8|efficientnetv2|vision_transformer", name) for name in names)


def test_predictions_of_the_laptop_agree_with_its_eight_measured_networks():
    profile = load_device("core-ultra-155h")
    assert {key[0] for key in profile.priors} == {"cpu", "gpu", "npu"}
    for prior in profile.priors.values():
        assert not any("mobilenetv3" in row.name for row in prior.calibration.networks)
        off = [abs(row.left_out_ms / row.measured_ms - 1) for row in prior.calibration.networks]
        assert np.mean([error <= 0.25 for error in off]) >= 0.6
