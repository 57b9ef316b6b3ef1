"""What computes nothing at inference."""

import pytest

from predictors.operators import kind_of


@pytest.mark.parametrize("name", ["dropout", "identity", "stochastic_depth"])
def test_identity_keeps_the_shape_and_costs_no_products(name):
    assert kind_of(name).elementwise
    assert kind_of(name).shape([(1, 6, 4, 8)], {}) == (1, 6, 4, 8)
    assert kind_of(name).macs([(1, 6, 4, 8)], {}, (1, 6, 4, 8)) == 0
