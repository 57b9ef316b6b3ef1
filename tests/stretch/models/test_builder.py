import pytest
import torch
from torch import nn

from predictors.errors import StretchError
from stretch.models.builder import Builder

pytestmark = pytest.mark.torch


def test_tensor_that_is_too_large_is_refused_without_being_made():
    b = Builder((1, 64, 64, 64))
    with pytest.raises(StretchError, match="elements, 1 to"):
        b.method("repeat", b.input, 1, 64, 64, 64)


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
