"""Activations."""

import pytest

from predictors.kinds import POINTWISE
from predictors.operators import kind_of

NAMES = ("relu", "relu6", "hard_swish", "hard_sigmoid", "silu", "sigmoid", "tanh", "gelu", "elu", "leaky_relu", "mish", "clamp", "prelu")


@pytest.mark.parametrize("name", NAMES)
def test_activation_keeps_the_shape_costs_no_products_and_is_fused_pointwise(name):
    kind = kind_of(name)
    assert kind.elementwise
    assert kind.weightless
    assert kind.shape([(1, 6, 4, 8)], {}) == (1, 6, 4, 8)
    assert kind.macs([(1, 6, 4, 8)], {}, (1, 6, 4, 8)) == 0
    assert POINTWISE in kind.traits
