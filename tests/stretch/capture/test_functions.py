import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402 - torch may be missing
from torch import nn  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from stretch.capture import capture  # noqa: E402

pytestmark = pytest.mark.torch


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def kinds(function):
    return [op.kind for op in capture(Apply(function), (1, 4, 8, 8), "net").graph.ops[1:]]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x + x, ["add"]),
        (lambda x: torch.add(x, x), ["add"]),
        (lambda x: x.mul(x), ["mul"]),
        (lambda x: torch.cat([x, x], 1), ["concat"]),
        (lambda x: torch.cat([x, x], dim=-3), ["concat"]),
        (lambda x: torch.cat([x], 1), ["identity"]),
        (lambda x: x.mean([2, 3]), ["global_avg_pool"]),
        (lambda x: x.mean((2, 3), keepdim=True), ["global_avg_pool"]),
        (lambda x: F.adaptive_avg_pool2d(x, (1, 1)), ["global_avg_pool"]),
        (lambda x: F.max_pool2d(x, 3, 2, 1), ["max_pool"]),
        (lambda x: F.avg_pool2d(x, 2), ["avg_pool"]),
        (lambda x: F.hardtanh(x, 0.0, 6.0), ["relu6"]),
        (lambda x: F.leaky_relu(x, 0.2), ["leaky_relu"]),
        (lambda x: F.gelu(x, approximate="tanh"), ["gelu"]),
        (lambda x: F.dropout(x, 0.5, False), ["dropout"]),
        (lambda x: F.pad(x, (1, 2, 3, 4)), ["pad"]),
        (lambda x: x.view(x.size(0), -1), ["flatten"]),
        (lambda x: torch.flatten(x, 1), ["flatten"]),
    ],
)
def test_function_lowers_to_its_kind(function, expected):
    assert kinds(function) == expected


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x + 1, "number 1"),
        (lambda x: torch.cat([x, x], 2), "only along channels"),
        (lambda x: x.mean(1), "only over height and width"),
        (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), "mode `reflect`"),
        (lambda x: x.view(1, 2, 2, 8, 8), "reshaping"),
        (lambda x: torch.add(x, x, alpha=2), "scales one side"),
        (lambda x: x.transpose(1, 2), "method `transpose`"),
        (lambda x: torch.cumsum(x, 1), "function `cumsum`"),
    ],
)
def test_function_that_is_not_supported_is_refused_with_the_reason(function, reason):
    with pytest.raises(StretchError, match=reason):
        kinds(function)
