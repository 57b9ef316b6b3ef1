import numpy as np
import pytest

from predictors.errors import StretchError
from stretch.models.builder import Builder
from stretch.models.onnx.site import RULES, Site, rule

pytestmark = pytest.mark.torch


def site(builder, *inputs, **attrs):
    return Site(inputs, "Op", "name", attrs, 1, 17, builder)


def test_site_tells_what_is_stored_from_what_is_computed():
    b = Builder((1, 3))
    seen = site(b, b.input, np.array([4, 5]), None, axes=[1])
    assert seen.numbers("sizes", 1) == [4, 5]
    assert seen.numbers("axes", 2) == [1]
    assert seen.numbers("pads", 3) is None
    assert seen.optional(2, "bias") is None
    with pytest.raises(StretchError, match="its weight depends on what the network reads"):
        seen.known(0, "weight")
    with pytest.raises(StretchError, match="it has no input 2"):
        seen.tensor(2)


def test_rule_is_found_by_the_name_of_its_operator():
    @rule("OfThisTest")
    def made(seen):
        return seen.x

    assert RULES.pop("OfThisTest") is made
