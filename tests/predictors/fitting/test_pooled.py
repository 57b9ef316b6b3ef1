"""Pooled fits, on worlds whose truth is known."""

import numpy as np
import pytest

from predictors.fitting.design import Networks, design
from predictors.fitting.formula import load_formula
from predictors.fitting.pooled import fit_pooled
from predictors.fitting.whole import CoreSet
from predictors.measurements.networks import load_measurements
from predictors.models.terms import Grain


@pytest.fixture(scope="module")
def world():
    """The networks of the NPU tables, and times made up of known sizes: five devices, the last two of one precision alone."""
    measured = load_measurements("npu")
    formula = load_formula("qnn_htp")
    networks = Networks(measured.graphs, measured.families, "qnn_htp")
    designs = {p: design(networks, formula, Grain(32, 32, size), p) for p, size in (("fp16", 2), ("int8", 1))}
    rng = np.random.default_rng(0)
    common = rng.normal(0, 0.3, len(designs["fp16"].parameters))
    sets, truth = {}, {}
    for precision, made in designs.items():
        unit = formula.units[precision]
        prior = np.array(
            [size.compute * unit.compute + size.memory * unit.memory + size.launch * unit.launch for size in made.priors(precision)]
        )
        places = []
        for number, speed in enumerate((0.5, 1.0, 2.0, 3.0, 6.0)):
            if precision == "fp16" and number > 2:
                continue
            truth[precision, f"d{number}", "all"] = prior * np.exp(common) * speed
            places.append(CoreSet(f"d{number}", "all", made.units @ truth[precision, f"d{number}", "all"]))
        sets[precision] = places
    return designs, formula, sets, truth


@pytest.mark.slow
def test_networks_left_out_are_predicted_where_devices_differ_in_speed_alone(world):
    designs, formula, sets, truth = world
    training = np.ones(len(designs["fp16"].names), dtype=bool)
    training[::4] = False
    found = fit_pooled(designs, formula, sets, training)
    assert set(found) == set(truth)
    for place, sizes in found.items():
        units = designs[place[0]].units[~training]
        np.testing.assert_allclose(units @ sizes, units @ truth[place], rtol=0.12)


def test_runtimes_differ_in_what_an_inference_takes_and_the_fastest_is_predicted(world):
    designs, formula, sets, truth = world
    beside = np.array([parameter.term == "inference" for parameter in designs["int8"].parameters])
    # The slower runtime adds as much again for each call; on the third device there is no other.
    twice = {
        p: [
            CoreSet(each.device, each.name, each.times + slower * (designs[p].units @ (truth[p, *each.key] * beside)), runtime)
            for each in some
            for runtime, slower in (("fast", 0.0), ("slow", 2.0))
            if runtime == "slow" or each.device != "d2"
        ]
        for p, some in sets.items()
    }
    training = np.ones(len(designs["fp16"].names), dtype=bool)
    training[::4] = False
    found = fit_pooled(designs, formula, twice, training)
    assert set(found) == set(truth)
    for place, sizes in found.items():
        units = designs[place[0]].units[~training]
        wanted = truth[place] * np.where(beside & (place[1] == "d2"), 3.0, 1.0)
        np.testing.assert_allclose(units @ sizes, units @ wanted, rtol=0.12)
