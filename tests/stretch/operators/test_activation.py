import math

import numpy as np
import pytest

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from stretch.formats.tflite.source import Source
from tests.stretch.export.tflite.rounded import codes, quant_of, run

pytest.importorskip("ai_edge_litert")
torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from stretch.operators.activation import LOWEST, MISH_TOP  # noqa: E402

ACTIVATIONS = ("relu", "relu6", "hard_swish", "hard_sigmoid", "silu", "sigmoid", "tanh", "gelu", "elu", "leaky_relu", "mish", "clamp")

#: Numbers where an activation could go wrong: far out, around zero, at its bends.
HARD = np.array([-1e4, -100, -88, -20, -6, -3, -1, -1e-3, 0, 1e-3, 1, 3, 6, 20, 88, 89, 100, 1e4], np.float32)

EXACT = {
    "relu": lambda x: max(x, 0),
    "relu6": lambda x: min(max(x, 0), 6),
    "hard_swish": lambda x: x * min(max(x + 3, 0), 6) / 6,
    "hard_sigmoid": lambda x: min(max(x + 3, 0), 6) / 6,
    "silu": lambda x: x / (1 + math.exp(-x)) if x > -700 else 0.0,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "tanh": math.tanh,
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "elu": lambda x: x if x > 0 else 0.7 * math.expm1(x),
    "leaky_relu": lambda x: x if x > 0 else 0.2 * x,
    "clamp": lambda x: min(max(x, -1.0), 3.0),
    "mish": lambda x: x * math.tanh(x if x > 30 else math.log1p(math.exp(x))),
}
ATTRS = {"gelu": {"approximate": "none"}, "elu": {"alpha": 0.7}, "leaky_relu": {"slope": 0.2}, "clamp": {"low": -1.0, "high": 3.0}}


def graph_of(kind, size):
    ops = [Op("x", "input", attrs={"shape": (1, size, 1, 1)}), Op("y", kind, ("x",), ATTRS.get(kind, {}))]
    return OpGraph.build(kind, ops, "y")


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation_is_right_far_out_and_at_its_bends(tmp_path, kind):
    got = run(Source(graph_of(kind, len(HARD)), {}), tmp_path, HARD.reshape(1, -1, 1, 1)).ravel()
    expected = np.array([EXACT[kind](float(x)) for x in HARD])
    assert np.allclose(got, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", [k for k in ACTIVATIONS if k not in ("gelu", "elu", "mish", "clamp")])
def test_int8_activation_is_within_two_steps(tmp_path, kind):
    x = np.linspace(-8, 8, 256, dtype=np.float32)
    expected = np.array([EXACT[kind](float(v)) for v in x], np.float32)
    source = Source(graph_of(kind, len(x)), {}, {"x": quant_of(x), "y": quant_of(expected)})
    assert all(dtype == "int8" for _, dtype in codes(source)[:-1])
    got = run(source, tmp_path, x.reshape(1, -1, 1, 1)).ravel()
    # what is rounded on the way in counts with the steepest slope, which is about 1
    allowed = 2 * source.scales["y"].scale + 0.6 * 1.1 * source.scales["x"].scale
    assert np.abs(got - expected).max() <= allowed


def test_mish_is_its_input_beyond_its_clip():
    assert math.tanh(math.log1p(math.exp(MISH_TOP))) > 1 - np.finfo(np.float32).eps / 2


def captured(module):
    from stretch.capture.trace import capture_traced

    return [(op.kind, dict(op.attrs)) for op in capture_traced(module, (1, 2, 3, 3)).graph.ops[1:]]


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Hardtanh(), ("clamp", {"low": -1.0, "high": 1.0})),
        (nn.Hardtanh(0.0, 6.0), ("relu6", {})),
        (Apply(lambda x: x.clamp(-2, 3)), ("clamp", {"low": -2.0, "high": 3.0})),
        (Apply(lambda x: torch.clip(x, 0, 1)), ("clamp", {"low": 0.0, "high": 1.0})),
        (Apply(lambda x: x.clamp(min=0)), ("relu", {})),
        (Apply(lambda x: x.clamp(max=1)), ("clamp", {"low": LOWEST, "high": 1.0})),
        (Apply(lambda x: x.clamp(min=-math.inf, max=2)), ("clamp", {"low": LOWEST, "high": 2.0})),
    ],
)
def test_what_clips_is_a_rectifier_or_has_bounds(module, expected):
    assert captured(module) == [expected]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Apply(lambda x: x.clamp(2, 1)), "bounds must be in order"),
        (Apply(lambda x: x.clamp(0, math.nan)), "bounds must be in order"),
        (Apply(lambda x: x.clamp(torch.tensor(0.0), torch.tensor(1.0))), "to tensors, not to numbers"),
    ],
)
def test_clamping_that_is_not_supported_is_refused(module, reason):
    with pytest.raises(StretchError, match=reason):
        captured(module)
