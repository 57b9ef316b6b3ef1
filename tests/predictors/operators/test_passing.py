"""What computes nothing at inference."""

import pytest

from predictors.operators import kind_of, kinds


def test_only_identities_are_identities():
    assert {name for name in kinds if kind_of(name).identity} == {"dropout", "stochastic_depth", "identity"}


@pytest.mark.parametrize("name", ["dropout", "identity", "stochastic_depth"])
def test_identity_keeps_the_shape_and_costs_no_products(name):
    assert kind_of(name).elementwise
    assert kind_of(name).shape([(1, 6, 4, 8)], {}) == (1, 6, 4, 8)
    assert kind_of(name).macs([(1, 6, 4, 8)], {}, (1, 6, 4, 8)) == 0


def test_input_has_the_shape_that_it_is_given():
    assert kind_of("input").shape([], {"shape": (1, 3, 8, 8)}) == (1, 3, 8, 8)
