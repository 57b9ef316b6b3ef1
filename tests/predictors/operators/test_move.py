"""Operators that move elements."""

import pytest

from predictors.operators import kind_of


def test_concatenation_adds_channels_and_refuses_other_differences():
    assert kind_of("concat").shape([(1, 3, 4, 4), (1, 5, 4, 4)], {}) == (1, 8, 4, 4)
    with pytest.raises(ValueError, match="more than channels"):
        kind_of("concat").shape([(1, 3, 4, 4), (1, 5, 4, 2)], {})


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 3), (2, 7)])
def test_slice_outside_the_channels_is_refused(start, stop):
    with pytest.raises(ValueError, match="are not in"):
        kind_of("slice").shape([(1, 6, 4, 8)], {"start": start, "stop": stop})


def test_shapes_of_what_is_moved():
    shape = (1, 6, 4, 8)
    assert kind_of("flatten").shape([shape], {}) == (1, 192)
    assert kind_of("unflatten").shape([(1, 6)], {}) == (1, 6, 1, 1)
    assert kind_of("pad").shape([shape], {"padding": (1, 2, 3, 4)}) == (1, 6, 8, 14)
    assert kind_of("slice").shape([shape], {"start": 2, "stop": 5}) == (1, 3, 4, 8)
    assert kind_of("upsample").shape([shape], {"scale": (2, 3)}) == (1, 6, 8, 24)


def test_groups_that_do_not_divide_the_channels_are_refused():
    with pytest.raises(ValueError, match="4 groups do not divide 6 channels"):
        kind_of("channel_shuffle").shape([(1, 6, 4, 4)], {"groups": 4})


def test_image_is_not_made_an_image():
    with pytest.raises(ValueError, match="N×C tensor"):
        kind_of("unflatten").shape([(1, 6, 1, 1)], {})
