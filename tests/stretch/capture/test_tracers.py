import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from predictors.errors import StretchError, UsageError  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.capture.trace import Tracer, unchanged  # noqa: E402

pytestmark = pytest.mark.torch


class Block(nn.Module):
    """A convolution; subclasses look at shapes first."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.gamma = nn.Parameter(torch.ones(4, 1, 1))

    def look(self, x):
        raise NotImplementedError

    def forward(self, x):
        self.look(x)
        y = torch.relu(self.conv(x)) * self.gamma
        self.look(x)
        return y


class Asserts(Block):
    def look(self, x):
        assert x.shape[1] == 3
        assert x.dim() == x.ndim == 4, "images"


class TorchAsserts(Block):
    def look(self, x):
        torch._assert(x.shape[1] == 3, "three channels")


class Raises(Block):
    def look(self, x):
        if x.shape[-1] % 4 or x.size(2) % 4:
            raise ValueError(f"{x.shape[-1]} is no multiple of 4")


class Unpacks(Block):
    def forward(self, x):
        b, c, h, w = x.shape
        assert (b, c, len(x)) == (1, 3, 1)
        assert x.numel() == b * c * h * w
        y = self.conv(x)
        for _ in range(y.shape[1] // 2):
            y = y + 1
        return y.reshape(b, -1)


class Depends(Block):
    def forward(self, x):
        y = self.conv(x)
        left, right = y.chunk(2, 1)
        if left.shape != right.shape:
            return left
        return left + right if int(y.size(1) * 0.5) == left.size(1) else left


class Within(nn.Module):
    """Looks at shapes of what modules within it give, in one that asserts itself."""

    def __init__(self):
        super().__init__()
        self.first, self.rest = Asserts(), nn.Sequential(nn.Conv2d(4, 3, 1), Asserts(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x):
        y = self.first(x)
        assert y.shape == (x.shape[0], 4, *x.shape[2:])
        z = self.rest(y)
        assert z.shape[1:] == (4,)
        return z


@pytest.mark.parametrize("kind", [Asserts, TorchAsserts, Raises, Unpacks, Depends, Within])
def test_network_that_decides_by_shapes_is_captured_and_computes_what_it_computes(kind):
    module = kind().eval()
    # what is exported is compared with what the network computes before it is given back
    captured = capture(module, (1, 3, 8, 8))
    assert captured.graph.by_name[captured.graph.output].shape == tuple(module(torch.zeros(1, 3, 8, 8)).shape)
    assert captured.graph.params > 0
    assert not captured.opaque


class ByValue(Block):
    def look(self, x):
        if x.mean() > 0:
            self.seen = 1


class Wide(Block):
    def look(self, x):
        assert x.shape[-1] == 224, "wide images only"


class Silent(Block):
    def look(self, x):
        assert x.shape[-1] == 224


def test_line_that_branches_on_values_is_named():
    with pytest.raises(StretchError, match="cannot be traced") as caught:
        capture(ByValue(), (1, 3, 8, 8))
    assert "test_tracers.py, line " in caught.value.message
    assert "`if x.mean() > 0:`" in caught.value.message


@pytest.mark.parametrize(("kind", "reason"), [(Wide, "wide images only"), (Silent, "(AssertionError|assert 8)")])
def test_input_that_an_assertion_rejects_is_a_usage_error_with_its_line(kind, reason):
    with pytest.raises(UsageError, match=f"rejects an input of 1×3×8×8: {reason}") as caught:
        capture(kind(), (1, 3, 8, 8))
    assert "`assert x.shape[-1] == 224" in caught.value.message
    assert "--input" in caught.value.hint


class Remembering(nn.Module):
    """Keeps for later calls what it worked out in the first, as timm's tables of positions do."""

    def __init__(self):
        super().__init__()
        self.conv, self.bias = nn.Conv2d(3, 4, 1), nn.Parameter(torch.ones(4))
        self.kept, self.calls = {}, []

    def forward(self, x):
        if "bias" not in self.kept:
            self.kept["bias"] = self.bias[None, :, None, None] * 2
            self.calls.append(1)
            self.last = self.kept["bias"]
        return self.conv(x) + self.kept["bias"]


def test_what_a_module_keeps_for_later_calls_is_not_what_a_trace_computes():
    module, x = Remembering().eval(), torch.randn(1, 3, 4, 4)
    with unchanged(module):
        Tracer().trace(module)
    assert (module.kept, module.calls, hasattr(module, "last")) == ({}, [], False)
    with torch.no_grad():
        want = module(x)
    assert isinstance(module.kept["bias"], torch.Tensor)
    assert torch.isfinite(want).all()
