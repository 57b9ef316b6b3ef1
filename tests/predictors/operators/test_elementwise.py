"""Sums and products, with torch as the oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.operators import kind_of


@pytest.mark.torch
@given(st.lists(st.tuples(st.sampled_from([1, 3]), st.sampled_from([1, 4])), min_size=2, max_size=2))
def test_addition_broadcasts_as_torch_does(sizes):
    import torch

    shapes = [(1, a, b, 1) for a, b in sizes]
    assert kind_of("add").shape(shapes, {}) == torch.broadcast_shapes(*shapes)


def test_addition_of_shapes_that_do_not_broadcast_is_refused():
    with pytest.raises(ValueError, match="differ"):
        kind_of("add").shape([(1, 3, 4, 4), (1, 2, 4, 4)], {})
    with pytest.raises(ValueError, match="ranks"):
        kind_of("mul").shape([(1, 3), (1, 3, 1, 1)], {})


@pytest.mark.parametrize(("name", "weight"), [("scale", "weight"), ("shift", "bias")])
def test_learned_number_per_channel_is_a_weight(name, weight):
    assert kind_of(name).weights([(2, 6, 4, 8)], {}) == {weight: (6,)}
