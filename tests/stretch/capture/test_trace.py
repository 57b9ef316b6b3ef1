import contextlib

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from predictors.errors import StretchError, UsageError  # noqa: E402
from stretch.capture.trace import capture_traced as capture  # noqa: E402
from stretch.transform import Branch  # noqa: E402

pytestmark = pytest.mark.torch


def test_macs_of_resnet50_are_the_published_ones(captured):
    assert captured("resnet50").graph.macs == pytest.approx(4.09e9, rel=0.01)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 5, 8, 8)], ids=["captured", "refused"])
def test_modes_of_modules_within_are_left_as_they_were(shape):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.ReLU(), nn.Dropout())).train()
    module[1].eval()
    module[2].training = False
    modes = [part.training for part in module.modules()]
    with contextlib.suppress(UsageError):
        capture(module, shape)
    assert [part.training for part in module.modules()] == modes == [True, True, False, False, True, True]


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Sorting(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return torch.sort(self.conv(x))[0]


class Twice(nn.Module):
    def forward(self, x, y):
        return x + y


class Pair(nn.Module):
    def forward(self, x):
        return {"out": x}


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, 3, 8, 1))

    def forward(self, x):
        return x * self.gamma


class ThroughView(nn.Module):
    def forward(self, x):
        y = x + 1
        y[:, :2].mul_(2)
        return y * 3


class Random(nn.Module):
    def forward(self, x):
        return x * torch.rand(1)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Branching(), "cannot be traced"),
        (Sorting(), "node `(sort|getitem)`"),
        (Twice(), "exactly one input"),
        (Pair(), "returns its input"),
        (Scaled(), r"node `mul`.*\(1, 3, 8, 1\)"),
        (ThroughView(), "changed in place through a view"),
        (Random(), "something else when it is traced"),
        (nn.Identity(), "has no operator"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4)), "`1`.*InstanceNorm2d"),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")), "padding mode"),
        (nn.Sequential(nn.ConvTranspose2d(3, 4, 3)), "ConvTranspose2d"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(3)), "unequal windows"),
    ],
)
def test_unsupported_network_is_refused_naming_the_node(module, reason):
    with pytest.raises(StretchError, match=reason) as caught:
        capture(module, (1, 3, 8, 8))
    assert caught.value.hint


def test_subclass_with_its_own_forward_is_not_mistaken_for_its_base():
    class Doubled(nn.Conv2d):
        def forward(self, x):
            return super().forward(x) + super().forward(x)

    module = nn.Sequential(Doubled(3, 4, 1))
    found = capture(module, (1, 3, 8, 8))
    assert [op.kind for op in found.graph.ops] == ["input", "conv", "conv", "add"]
    assert found.weights["conv2d"]["weight"] is module[0].weight


class Reused(nn.Module):
    """In-place operations whose tensor is read again under its other names."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.conv(x)
        y = self.conv(self.relu(x))
        x = x + y
        z = x
        x += y
        return z * x


def test_tensor_changed_in_place_is_read_as_it_is_then():
    module = Reused()
    found = capture(module, (1, 3, 8, 8))
    branch = Branch(found.graph)
    for name, weights in found.weights.items():
        branch.get_submodule(name).load_state_dict(weights)
    x = torch.randn(1, 3, 8, 8)
    with torch.inference_mode():
        torch.testing.assert_close(branch(x), module(x))


def test_submodule_called_like_a_method_of_modules_is_renamed():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.ModuleDict({"one": nn.Conv2d(3, 4, 1)})
            self.block_ = nn.ReLU()

        def forward(self, x):
            return self.block_(self.block["one"](x))

    assert not [op.name for op in capture(Net(), (1, 3, 8, 8)).graph.ops if hasattr(nn.Module, op.name)]
