"""Units of networks are those of their kernels."""

import numpy as np
import pytest

from predictors.fitting.design import Networks, design, grain_of, group_of
from predictors.fitting.formula import INFERENCE, load_formula
from predictors.models.fitted import FittedModel
from predictors.models.terms import terms
from tests.predictors.fitting.worlds import networks, processor
from tests.predictors.models.test_fitted import fit


@pytest.fixture(scope="module")
def made():
    graphs, families = networks(6)
    of = Networks(graphs, families, "tflite_cpu")
    return of, design(of, load_formula("tflite_cpu"), grain_of(processor(), "fp32"), "fp32")


def test_units_are_summed_over_the_kernels_of_a_group(made):
    of, table = made
    grain = grain_of(processor(), "fp32")
    for column, parameter in enumerate(table.parameters):
        for row, name in enumerate(table.names):
            if parameter.term == INFERENCE:
                expected = 1.0
            else:
                inside = [cost for cost in of.costs[name] if (group := group_of(cost, table.groups)) and parameter.takes(group)]
                expected = sum(terms.get(parameter.term).units(cost, grain) for cost in inside)
            assert table.units[row, column] == pytest.approx(expected)


def test_every_kernel_of_convolutional_networks_is_in_a_group(made):
    assert made[1].left == {}


def test_groups_of_a_fit_time_networks_as_the_parameters_do(made):
    of, table = made
    sizes = np.random.default_rng(0).uniform(1e-6, 2e-6, len(table.parameters))
    from predictors.fits.fit import Correction, KernelGroup

    groups = {name: KernelGroup(some) for name, some in table.group_terms(sizes).items()}
    model = FittedModel(fit(groups, Correction(fixed_ms=table.fixed(sizes))), processor())
    for row, name in enumerate(table.names):
        total = sum(time.ms for time in model.times(of.costs[name])) + model.fixed_ms
        assert total == pytest.approx(table.units[row] @ sizes, rel=1e-9)
