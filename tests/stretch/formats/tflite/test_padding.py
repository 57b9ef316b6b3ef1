import pytest

from predictors.operators import kind_of
from stretch.formats.tflite.padding import window


@pytest.mark.parametrize(
    ("size", "stride", "rule", "explicit"), [(8, 1, 0, False), (8, 2, 1, True), (7, 2, 0, False)], ids=["same", "symmetric", "odd"]
)
def test_symmetric_padding_needs_an_operator_only_where_same_is_another_rule(size, stride, rule, explicit):
    attrs = {"kernel": (3, 3), "stride": (stride, stride), "padding": (1, 1, 1, 1)}
    image = (1, 4, size, size)
    place = window(attrs, image, kind_of("max_pool").shape([image], attrs))
    assert (place.padding, place.explicit) == (rule, explicit)
