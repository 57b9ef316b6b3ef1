import pytest
import torch

from predictors.errors import StretchError
from stretch.models.pt2.program import NamedArgument, Node
from stretch.models.pt2.site import bound, plain_value

pytestmark = pytest.mark.torch

CONV = torch.ops.aten.conv2d.default


def node(**given):
    return Node("", [NamedArgument(name, arg) for name, arg in given.items()], [])


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
