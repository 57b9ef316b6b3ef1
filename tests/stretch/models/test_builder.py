import numpy as np
import pytest
import torch
from torch import nn

from predictors.errors import StretchError
from stretch.models.builder import Builder, shape_of

pytestmark = pytest.mark.torch


def test_network_computes_what_was_called_and_leaves_out_what_leads_to_nothing():
    b = Builder((1, 3, 4, 4))
    kept = b.module(nn.Conv2d(3, 5, 1), b.input, "layer1/conv.0")
    b.module(nn.Conv2d(3, 7, 1), b.input, "unused")
    result = b.call(torch.add, b.method("mean", kept, (2, 3)), b.stored(np.ones(5, np.float32), "offset"))
    assert shape_of(result) == (1, 5)
    made = b.finish(result, "Net")
    assert list(dict(made.named_children())) == ["layer1_conv_0"]
    x = torch.randn(1, 3, 4, 4)
    assert torch.equal(made(x), made.layer1_conv_0(x).mean((2, 3)) + 1)
    assert [name for name, _ in made.named_parameters()] == ["offset", "layer1_conv_0.weight", "layer1_conv_0.bias"]
    assert not made.training


@pytest.mark.parametrize("name", ["forward", "train", "0.conv", "", "graph", "é"])
def test_names_of_nodes_never_hide_those_of_modules(name):
    b = Builder((1, 3))
    made = b.finish(b.module(nn.Linear(3, 2), b.input, name), "Net")
    assert made(torch.zeros(1, 3)).shape == (1, 2)


def test_names_that_come_twice_are_told_apart():
    b = Builder((1, 3))
    x = b.module(nn.Linear(3, 3), b.module(nn.Linear(3, 3), b.input, "a.b"), "a/b")
    assert list(dict(b.finish(x, "Net").named_children())) == ["a_b", "a_b_1"]


def test_indices_are_stored_and_not_trained():
    b = Builder((1, 3))
    picked = b.call(torch.index_select, b.input, 1, b.stored(np.array([2, 0]), "order"))
    made = b.finish(picked, "Net")
    assert list(made.parameters()) == []
    assert made(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[3.0, 1.0]]


def test_tensor_that_is_too_large_is_refused_without_being_made():
    b = Builder((1, 64, 64, 64))
    with pytest.raises(StretchError, match="elements, 1 to"):
        b.method("repeat", b.input, 1, 64, 64, 64)


def test_call_that_does_not_fit_is_refused_in_one_line():
    b = Builder((1, 3))
    with pytest.raises(StretchError, match="torch does not take what it reads") as caught:
        b.call(torch.matmul, b.input, b.input)
    assert "\n" not in caught.value.message


def test_nested_names_are_those_of_modules_within_each_other():
    b = Builder((1, 3), nested=True)
    x = b.module(nn.Linear(3, 3), b.input, "layer1.0.fc")
    x = b.module(nn.Linear(3, 3), x, "layer1.0.fc")
    x = b.call(torch.add, x, b.tensor(nn.Parameter(torch.ones(3)), "layer1.offset"))
    made = b.finish(x, "Net")
    names = ["layer1.offset", "layer1.0.fc.weight", "layer1.0.fc.bias", "layer1.0.fc_1.weight", "layer1.0.fc_1.bias"]
    assert [name for name, _ in made.named_parameters()] == names
    x = torch.randn(1, 3)
    assert torch.equal(made(x), getattr(made.layer1, "0").fc_1(getattr(made.layer1, "0").fc(x)) + 1)


@pytest.mark.parametrize(
    "name",
    [
        "graph.fc",
        "train.fc",
        "a.train.fc",
        "a.forward",
        ".",
        "0.0",
        "a..b",
        "x." * 99 + "y",
        "offset.fc",
        "block-1.a",
        'a").b',
        "a\n.b",
        "-",
    ],
)
def test_nested_names_never_hide_what_torch_needs(name):
    b = Builder((1, 3), nested=True)
    x = b.call(torch.add, b.input, b.tensor(torch.ones(3), "offset"))
    made = b.finish(b.module(nn.Linear(3, 2), x, name), "Net")
    assert made(torch.zeros(1, 3)).shape == (1, 2)
    assert made.train().eval().graph is not None


def test_network_of_several_inputs_takes_them_by_name_and_returns_them_in_containers():
    b = Builder({"left": (1, 3), "right": (1, 3)})
    assert list(b.inputs) == ["left", "right"]
    made = b.finish({"sum": b.call(torch.add, *b.inputs.values()), "more": (b.input, [None, 2.5])}, "Net")
    x, y = torch.randn(1, 3), torch.randn(1, 3)
    found = made(right=y, left=x)
    assert torch.equal(found["sum"], x + y)
    assert (found["more"][0] is x, found["more"][1]) == (True, [None, 2.5])


@pytest.mark.parametrize("name", ["input_shape", "warnings"])
def test_no_part_of_a_network_is_called_as_what_it_says_of_itself(name):
    for nested in (False, True):
        b = Builder((1, 3), nested=nested)
        made = b.finish(b.module(nn.Linear(3, 2), b.input, name), "Net")
        setattr(made, name, (1, 3))
        assert made(torch.zeros(1, 3)).shape == (1, 2)
