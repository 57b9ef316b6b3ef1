import numpy as np
import pytest
import torch

from predictors.errors import StretchError
from stretch.models.builder import Builder, shape_of, turned
from stretch.models.tflite.site import RULES, Seen, Site, aligned, flattened, plain, rule

pytestmark = pytest.mark.torch


def site(builder, *inputs, **settings):
    return Site(inputs, "OP", "name", settings, 1, builder)


def computed(builder, node):
    x = torch.arange(60.0).reshape(1, 5, 4, 3)
    return x, builder.finish(node, "Net")(x)


def test_image_and_its_row_are_told_in_the_order_of_the_file():
    b = Builder((1, 5, 4, 3))
    seen = Seen(b.call(torch.neg, b.input), "image")
    row = flattened(b, seen.node)
    assert (seen.shape, row.shape, row.size) == ((1, 4, 3, 5), (1, 60), (4, 3, 5))
    x, got = computed(b, plain(b, row))
    assert torch.equal(got, -x.permute(0, 2, 3, 1).reshape(1, 60))


def test_row_of_one_pixel_or_channel_is_in_either_order():
    for shape in ((1, 5, 1, 1), (1, 1, 4, 3)):
        b = Builder(shape)
        assert flattened(b, b.input).form == "plain"


def test_orders_that_follow_each_other_are_one():
    b = Builder((1, 5, 4, 3))
    there = turned(b, b.input, (0, 2, 3, 1))
    assert turned(b, there, (0, 3, 1, 2)) is b.input
    x, got = computed(b, turned(b, there, (3, 0, 2, 1)))
    assert torch.equal(got, x.permute(0, 2, 3, 1).permute(3, 0, 2, 1))


def test_operands_of_an_image_have_its_order():
    b = Builder((1, 5, 4, 3))
    image = Seen(b.input, "image")
    channels, columns, number = np.arange(5, dtype=np.float32), np.ones((3, 1), np.float32), np.array(2.0, np.float32)
    (x, c, w, n), order = aligned(site(b, image, channels, columns, number), range(4))
    assert x is b.input
    assert (shape_of(c), shape_of(w), n, order.form) == ((1, 5, 1, 1), (1, 1, 1, 3), 2.0, "image")


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


def test_rule_is_found_by_the_name_of_its_operator():
    @rule("OF_THIS_TEST")
    def made(seen):
        return seen.seen(0)

    assert RULES.pop("OF_THIS_TEST") is made
