import math

import pytest
import torch

from predictors.errors import StretchError
from stretch.models.builder import Builder
from stretch.models.pt2.file import Stored
from stretch.models.pt2.program import NamedArgument, Node
from stretch.models.pt2.site import Site, bound, plain_value

pytestmark = pytest.mark.torch

CONV = torch.ops.aten.conv2d.default


def node(**given):
    return Node("", [NamedArgument(name, arg) for name, arg in given.items()], [])


@pytest.mark.parametrize(
    ("arg", "value"),
    [
        ({"as_none": True}, None),
        ({"as_int": 3}, 3),
        ({"as_ints": [3, 4]}, [3, 4]),
        ({"as_float": 0.5}, 0.5),
        ({"as_float": 2}, 2.0),
        ({"as_float": "-Infinity"}, -math.inf),
        ({"as_floats": [1.0, "Infinity"]}, [1.0, math.inf]),
        ({"as_bool": True}, True),
        ({"as_string": "same"}, "same"),
        ({"as_scalar_type": 7}, torch.float32),
        ({"as_scalar_type": 6}, torch.float32),
        ({"as_scalar_type": 5}, torch.int64),
        ({"as_device": {"type": "cuda"}}, None),
    ],
)
def test_argument_is_what_it_says(arg, value):
    assert plain_value(arg) == value


@pytest.mark.parametrize(
    "arg",
    [
        {},
        {"as_int": 1, "as_none": True},
        {"as_int": "3"},
        {"as_ints": 3},
        {"as_float": "x"},
        {"as_graph": {}},
        {"as_scalar_type": 9},
        {"as_s": 1},
    ],
)
def test_argument_that_no_network_has_is_refused(arg):
    with pytest.raises(StretchError):
        plain_value(arg)


def test_arguments_have_the_names_and_defaults_of_the_operator():
    given = bound(CONV, node(input={"as_int": 1}, weight={"as_int": 2}, groups={"as_int": 3}), plain_value)
    assert list(given) == ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
    assert (given["bias"], given["groups"]) == (None, 3)


def test_name_of_what_is_changed_in_place_is_that_of_what_is_read():
    assert (
        bound(torch.ops.aten.dropout.default, node(self={"as_int": 1}, p={"as_float": 0.5}, train={"as_bool": False}), plain_value)["input"]
        == 1
    )


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(StretchError, match="its argument `weight` is missing"):
        bound(CONV, node(input={"as_int": 1}), plain_value)
    with pytest.raises(StretchError, match="has no argument `size`"):
        bound(CONV, node(input={"as_int": 1}, weight={"as_int": 1}, size={"as_int": 1}), plain_value)


def test_stored_tensors_become_parameters_where_they_are_read():
    b = Builder((1, 3), nested=True)
    weight = Stored("a.weight", torch.nn.Parameter(torch.ones(3)))
    site = Site(torch.ops.aten.add.Tensor, {"self": b.input, "other": weight}, "", b)
    assert site.x is b.input
    assert site.stored("other") is weight
    assert site.stored("self") is None
    made = b.finish(b.call(torch.add, site.x, site.tensor("other")), "Net")
    assert dict(made.named_parameters())["a.weight"] is weight.value
