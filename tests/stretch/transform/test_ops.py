import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from predictors.graph import Op  # noqa: E402
from predictors.operators import kind_of, kinds  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.transform.ops import Add, PaddedConv2d, StochasticDepth, make_module  # noqa: E402

pytestmark = pytest.mark.torch

WINDOW = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1), "dilation": (1, 1), "ceil_mode": True}
ATTRS = {
    "conv": {"out_channels": 6, "kernel": (3, 2), "stride": (1, 2), "padding": (1, 0, 1, 0), "dilation": (1, 1), "groups": 2, "bias": True},
    "linear": {"out_features": 5, "bias": True},
    "batch_norm": {"eps": 1e-3, "momentum": 0.01, "affine": True},
    "gelu": {"approximate": "tanh"},
    "elu": {"alpha": 0.5},
    "leaky_relu": {"slope": 0.1},
    "max_pool": WINDOW,
    "avg_pool": {k: v for k, v in WINDOW.items() if k != "dilation"} | {"count_include_pad": False},
    "global_avg_pool": {"keepdims": False},
    "global_max_pool": {"keepdims": True},
    "pad": {"padding": (1, 2, 3, 4)},
    "slice": {"start": 1, "stop": 3},
    "channel_shuffle": {"groups": 2},
    "upsample": {"scale": (2, 3)},
    "layer_norm": {"eps": 1e-6, "affine": True},
    "add_scalar": {"value": 3.0},
    "mul_scalar": {"value": -0.5},
    "dropout": {"p": 0.3},
    "stochastic_depth": {"p": 0.2, "mode": "row"},
}


@pytest.mark.parametrize("kind", sorted(set(kinds) - {"input"}))
def test_module_of_every_kind_traces_back_to_its_operator(kind):
    shape = (1, 4) if kind in ("linear", "unflatten") else (1, 4, 9, 9)
    count = max(1, kind_of(kind).min_inputs)
    op = Op("op", kind, ("input",) * count, ATTRS.get(kind, {}))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.op = make_module(op, [shape] * count)

        def forward(self, x):
            return self.op(*[x] * count)

    traced = capture(Net(), shape).graph.by_name["op"]
    assert (traced.kind, dict(traced.attrs)) == (kind, dict(op.attrs))


def test_convolution_with_unequal_padding_pads_each_side_its_own():
    attrs = {"out_channels": 2, "kernel": (3, 3), "stride": (2, 2), "padding": (0, 0, 1, 1), "dilation": (1, 1), "groups": 1, "bias": False}
    module = make_module(Op("op", "conv", ("x",), attrs), [(1, 2, 8, 8)])
    assert isinstance(module, PaddedConv2d)
    x = torch.randn(1, 2, 8, 8)
    expected = nn.functional.conv2d(nn.functional.pad(x, (0, 1, 0, 1)), module.weight, stride=2)
    assert torch.equal(module(x), expected)


def test_sum_of_three_inputs_adds_them_all():
    a, b, c = torch.randn(3, 1, 2, 2, 2)
    assert torch.equal(Add()(a, b, c), a + b + c)


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_stochastic_depth_drops_whole_samples_and_keeps_the_expectation(mode):
    torch.manual_seed(0)
    module = StochasticDepth(0.25, mode).train()
    x = torch.ones(4000, 2)
    out = torch.cat([module(x[i : i + 4]) for i in range(0, 4000, 4)])
    assert sorted(out.unique().tolist()) == pytest.approx([0, 4 / 3])
    assert out.mean().item() == pytest.approx(1.0, abs=0.06)
    assert torch.equal(module.eval()(x), x)
