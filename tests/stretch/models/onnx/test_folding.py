import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stretch.models.builder import Builder
from stretch.models.onnx.folding import UNSCALED, added, gated, multiplied, times
from stretch.models.onnx.site import Site
from tests.stretch.models.onnx.oracle import random

pytestmark = pytest.mark.torch

SHAPES = {nn.Linear: (2, 3), nn.Conv2d: (2, 3, 4, 4), nn.Conv1d: (2, 3, 4)}


def product(kind, *, bias=False, unscaled=True):
    """A layer that reads the input of a network, its site, and what both are made with."""
    builder = Builder(SHAPES[kind])
    layer = nn.Linear(3, 5, bias) if kind is nn.Linear else kind(3, 5, 3, padding=1, bias=bias)
    x = builder.module(layer, builder.input, "layer")
    x.meta[UNSCALED] = unscaled
    return Site([], "Op", "op", {}, 1, 17, builder), x


def given_by(site, x, kind):
    """What the layer gives."""
    with torch.no_grad():
        return site.builder.behind(x)(torch.from_numpy(random(SHAPES[kind]))).numpy()


def numbers_for(kind):
    """Five numbers, one for each channel."""
    return random((5,), 3) if kind is nn.Linear else random((5, *(1,) * (len(SHAPES[kind]) - 2)), 3)


def run(site, found, kind):
    with torch.no_grad():
        return site.builder.finish(found, "Network")(torch.from_numpy(random(SHAPES[kind]))).numpy()


def test_other_layers_and_numbers_stay_as_they_are():
    site, x = product(nn.Conv2d, unscaled=False)
    assert multiplied(site, x, numbers_for(nn.Conv2d)) is None
    assert added(site, x, numbers_for(nn.Conv2d)) is None
    site, x = product(nn.Conv2d)
    assert multiplied(site, x, random((4, 4))) is None
    assert multiplied(site, x, random((2, 5, 1, 1))) is None
    assert added(site, x, random((4,))) is None
    assert multiplied(site, site.builder.input, np.float32(2).reshape(())) is None


def test_any_tensor_is_scaled():
    for factor in (np.float32(0.5).reshape(()), random((5,))):
        site, x = product(nn.Linear, unscaled=False)
        want = given_by(site, x, nn.Linear)
        assert times(site, x, np.ones((), np.float32)) is x
        np.testing.assert_allclose(run(site, times(site, x, factor), nn.Linear), want * factor, rtol=1e-6)


@pytest.mark.parametrize(("gate", "function"), [(torch.sigmoid, F.silu), (F.hardsigmoid, F.hardswish), (torch.tanh, None)])
def test_product_with_a_gate_is_what_torch_calls_it(gate, function):
    builder = Builder((2, 3))
    node = builder.call(gate, builder.input)
    assert gated(builder.input, node) is function
    assert gated(node, builder.input) is None
    assert gated(builder.call(torch.neg, builder.input), node) is None
