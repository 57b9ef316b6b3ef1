import numpy as np
import pytest

from predictors.errors import StretchError
from stretch.models.builder import Builder
from stretch.models.tflite.site import Seen, Site, aligned, flattened

pytestmark = pytest.mark.torch


def site(builder, *inputs, **settings):
    return Site(inputs, "OP", "name", settings, 1, builder)


def test_operands_of_rows_of_other_images_are_in_the_order_of_the_file():
    b = Builder((1, 5, 4, 3))
    row = flattened(b, b.input)
    (one, other), order = aligned(site(b, row, row), (0, 1))
    assert (one, other, order.form) == (row.node, row.node, "row")
    (one, _), order = aligned(site(b, row, np.zeros((1, 60), np.float32)), (0, 1))
    assert one is not row.node
    assert order.form == "plain"


def test_what_is_missing_or_no_image_is_refused():
    b = Builder((1, 5))
    seen = site(b, Seen(b.input), None, fused_activation_function=9)
    with pytest.raises(StretchError, match="it has no input 1"):
        seen.seen(1)
    with pytest.raises(StretchError, match="which is no image"):
        seen.image()
    with pytest.raises(StretchError, match="its weight depends on what the network reads"):
        seen.known(0, "weight")
    with pytest.raises(StretchError, match="its activation is number 9"):
        seen.activated(b.input)
    with pytest.raises(StretchError, match="it reads no tensor of the network"):
        aligned(site(b, np.zeros(3, np.float32)), (0,))
