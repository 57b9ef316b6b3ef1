"""Fits to whole networks find what the times were made of."""

import numpy as np
import pytest

from predictors.fitting.design import Networks, design, grain_of
from predictors.fitting.formula import load_formula
from predictors.fitting.whole import CoreSet, fit_core_sets
from tests.predictors.fitting.worlds import DEVICE, processor, whole_world


@pytest.fixture(scope="module")
def world():
    found = whole_world(noise=0.02)
    networks = Networks(found.graphs, found.families, "tflite_cpu")
    made = design(networks, load_formula("tflite_cpu"), grain_of(processor(), "fp32"), "fp32")
    position = {name: i for i, name in enumerate(made.names)}
    times: dict[tuple[str, str], np.ndarray] = {}
    for row in found.latencies:
        times.setdefault((row.device, row.core_set), np.full(len(made.names), np.nan))[position[row.network]] = row.ms
    return made, [CoreSet(*key, values) for key, values in times.items()]


def test_core_sets_are_read_from_their_names():
    nothing = np.array([])
    assert (CoreSet("d", "1large2med", nothing).cores, CoreSet("d", "1large2med", nothing).alone) == (3, "1large")
    assert (CoreSet("d", "3small", nothing).cores, CoreSet("d", "3small", nothing).alone) == (3, "1small")
    assert CoreSet("d", "all", nothing).cores == 1


def test_networks_left_out_are_predicted_on_one_core_and_on_several(world):
    made, sets = world
    training = np.arange(len(made.names)) % 4 != 0
    sizes = fit_core_sets(made, load_formula("tflite_cpu"), "fp32", sets, training)
    for each in sets:
        error = made.units[~training] @ sizes[each.key] / each.times[~training] - 1
        assert np.abs(error).max() < 0.15, each.key
        assert (sizes[each.key] >= 0).all()


def test_networks_that_are_left_out_are_not_looked_at(world):
    made, sets = world
    training = np.arange(len(made.names)) % 4 != 0
    spoilt = [CoreSet(each.device, each.name, np.where(training, each.times, 1e6)) for each in sets]
    clean = fit_core_sets(made, load_formula("tflite_cpu"), "fp32", sets, training)
    for key, sizes in fit_core_sets(made, load_formula("tflite_cpu"), "fp32", spoilt, training).items():
        assert sizes == pytest.approx(clean[key], rel=1e-12)


def test_nothing_is_divided_by_more_than_there_are_cores(world):
    made, sets = world
    training = np.ones(len(made.names), dtype=bool)
    one, two = (next(each for each in sets if each.key == (DEVICE, name)) for name in ("1med", "2med"))
    # Times that say otherwise: a third for two cores.
    faster = [one, CoreSet(DEVICE, "2med", one.times / 3)]
    sizes = fit_core_sets(made, load_formula("tflite_cpu"), "fp32", faster, training)
    assert two.cores == 2
    assert (sizes[DEVICE, "2med"] >= sizes[DEVICE, "1med"] / 2 * (1 - 1e-9)).all()


def test_what_one_thread_does_alone_stays_and_products_are_divided(world):
    made, sets = world
    training = np.arange(len(made.names)) % 4 != 0
    one = next(each for each in sets if each.key == (DEVICE, "1med"))
    alone = fit_core_sets(made, load_formula("tflite_cpu"), "fp32", [one], training)[one.key]
    formula = load_formula("tflite_cpu")
    divided = np.array([formula.threads[each.shares[0]].exponent > 0 for each in made.parameters])
    times = made.units @ (alone * np.where(divided, 0.5, 1.0))
    sizes = fit_core_sets(made, formula, "fp32", [one, CoreSet(DEVICE, "2med", times)], training)[DEVICE, "2med"]
    assert made.units[~training] @ sizes == pytest.approx(times[~training], rel=0.1)
