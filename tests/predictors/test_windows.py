import pytest

from predictors.windows import window_shape

WINDOW = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0, 0, 1)}


def test_sides_may_be_padded_differently():
    assert window_shape((2, 3, 7, 5), WINDOW, 4) == (2, 4, 3, 5)


@pytest.mark.parametrize(("height", "rows"), [(7, 4), (6, 3)])
def test_window_that_would_begin_behind_the_image_is_left_out_of_what_rounds_up(height, rows):
    attrs = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0, 0, 0), "ceil_mode": True}
    assert window_shape((1, 1, height, 2), attrs, 1) == (1, 1, rows, 1)


def test_dilation_widens_the_window():
    assert window_shape((1, 1, 9, 9), WINDOW | {"padding": (0,) * 4, "dilation": (3, 2)}, 1) == (1, 1, 2, 7)
