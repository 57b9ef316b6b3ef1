"""Messages for a network that cannot be captured: its cause, and a way out that leads on."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from predictors.errors import StretchError, UsageError  # noqa: E402
from stretch.network.capture import capture  # noqa: E402

pytestmark = pytest.mark.torch


class Sequence(nn.Module):
    """Reads batch × steps × numbers."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(8, 8), function

    def forward(self, tokens):
        return self.function(tokens, self.layer)


def unpacking(tokens, layer):
    batch, steps, numbers = tokens.shape
    return layer(tokens.reshape(batch * steps, numbers))


@pytest.mark.parametrize("function", [lambda tokens, layer: layer(tokens) * tokens.shape[2], unpacking])
@pytest.mark.parametrize("shape", [(2, 8), (8,)])
def test_number_of_axes_that_does_not_fit_is_named_with_a_shape_for_tokens(function, shape):
    with pytest.raises(UsageError, match="number of axes") as caught:
        capture(Sequence(function), [shape])
    assert "tokens=1x16x32" in caught.value.hint


class Deformed(nn.Module):
    """An operator of another library, whose Python code branches on what it reads."""

    def __init__(self):
        super().__init__()
        ops = pytest.importorskip("torchvision.ops")
        self.offset, self.deformed = nn.Conv2d(3, 18, 3, padding=1), ops.DeformConv2d(3, 8, 3, padding=1)

    def forward(self, x):
        return self.deformed(x, self.offset(x))


def test_operator_that_is_not_captured_is_the_cause_and_not_its_control_flow():
    with pytest.raises(StretchError) as caught:
        capture(Deformed().eval(), (1, 3, 8, 8))
    assert "deform_conv2d" in caught.value.message
    assert "control flow" not in caught.value.message + (caught.value.hint or "")
