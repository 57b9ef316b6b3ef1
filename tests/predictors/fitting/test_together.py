"""Pools of devices: what is left out, intervals, and the fits that ship."""

import numpy as np
import pytest

from predictors.devices import PROFILE_FOLDER, load_device
from predictors.fits import read_fits
from predictors.fitting.design import Networks
from predictors.fitting.fit import fit_device
from predictors.fitting.fit import family_folds
from predictors.fitting.formula import load_formula
from predictors.fitting.together import Pool
from predictors.measurements.networks import load_measurements
from tests.predictors.fitting.alike import differences


@pytest.fixture(scope="module")
def pool():
    measured = load_measurements("npu")
    networks = Networks(measured.graphs, measured.families, "qnn_htp")
    folds = family_folds(measured.families, networks.kinds)
    return Pool(networks, load_formula("qnn_htp"), measured.latencies, folds, (32, 32))


def test_of_several_runtimes_the_least_time_counts(pool):
    rows = [row.ms for row in pool.rows if (row.device, row.network, row.precision) == ("s24", "resnet50", "int8")]
    (s24,) = [each for each in pool.sets["int8"] if each.device == "s24"]
    assert len(rows) == 3
    assert s24.times[list(pool.networks.costs).index("resnet50")] == min(rows)


def test_every_measured_network_is_left_out_once_with_its_family(pool):
    for precision, some in pool.sets.items():
        for each in some:
            assert len(pool.ratios[precision, *each.key]) == np.isfinite(each.times).sum()
    folds = {
        family: {pool.folds[name] for name, of in pool.networks.families.items() if of == family}
        for family in pool.networks.families.values()
    }
    assert all(len(some) == 1 for some in folds.values())


def test_interval_of_a_precision_holds_about_nine_tenths_of_all_devices(pool):
    for precision in pool.sets:
        made = pool.interval(precision)
        ratios = [ratio for place, some in pool.ratios.items() if place[0] == precision for ratio in some.values()]
        assert np.mean([made.low <= ratio <= made.high for ratio in ratios]) >= 0.85
        assert 0.8 <= pool.covered([place for place in pool.ratios if place[0] == precision]) <= 0.97


@pytest.mark.parametrize(("measurements", "device"), [("npu", "s24"), ("boards", "raspberrypi4")])
@pytest.mark.slow
def test_shipped_fit_is_the_one_that_its_measurements_make(measurements, device):
    made = {
        (each.fit.processor, each.fit.core_set, each.fit.precision): each.fit
        for each in fit_device(load_measurements(measurements), load_device(device))
    }
    shipped = read_fits(PROFILE_FOLDER / f"{device}.toml", device)
    assert made.keys() == shipped.keys()
    assert [(key, each) for key in made for each in differences(made[key], shipped[key])] == []
