import pytest

from tests.effort import examples

torch = pytest.importorskip("torch")
from hypothesis import given, settings  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.models.load import load_model  # noqa: E402
from stretch.train.prepare import replace_head  # noqa: E402

pytestmark = pytest.mark.torch


class AuxiliaryLast(nn.Module):
    """Its head is registered first; the last linear layer computes something on the way."""

    def __init__(self):
        super().__init__()
        self.classify = nn.Linear(4, 10)
        self.stem = nn.Conv2d(3, 4, 3)
        self.gate = nn.Linear(4, 4)

    def forward(self, x):
        x = self.stem(x).mean((2, 3))
        return self.classify(x * self.gate(x).sigmoid())


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 5, 1), nn.Conv2d(3, 5, 1)

    def forward(self, x):
        return (self.one(x) + self.two(x)).mean((2, 3))


class FixedView(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return self.fc(x.mean((2, 3), keepdim=True)).view(-1, 4)


def changed(module, classes=7, seed=3, size=32):
    return replace_head(capture(module.eval(), (1, 3, size, size)), classes, seed).module


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None)
@given(classes=st.integers(1, 40), seed=st.integers(0, 2**40), noise=st.integers(0, 2**40))
def test_new_weights_follow_from_the_seed_alone_and_leave_the_global_generator_as_it_was(classes, seed, noise):
    rows = []
    for state in (noise, noise + 1):
        captured = capture(AuxiliaryLast().eval(), (1, 3, 8, 8))
        torch.manual_seed(state)
        before = torch.random.get_rng_state()
        rows.append(replace_head(captured, classes, seed).module.classify)
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(rows[0].weight, rows[1].weight)
    assert torch.equal(rows[0].bias, rows[1].bias)
    assert rows[0].weight.shape == (classes, 4)


def test_layer_that_makes_the_result_is_changed_whatever_was_registered_last():
    module = changed(AuxiliaryLast())
    assert module.classify.out_features == 7
    assert module.gate.out_features == 4
    assert module.eval()(torch.rand(2, 3, 8, 8)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "size"),
    [("squeezenet1_1", 64), ("timm:mobilenetv3_small_050", 64)],
)
def test_convolutional_and_linear_heads_of_real_networks_get_the_classes(name, size):
    module = load_model(name, weights="none").module
    built = changed(module, 6, size=size)
    assert built(torch.rand(1, 3, size, size)).shape == (1, 6)
    assert not built.training


@pytest.mark.parametrize(("module", "reason"), [(TwoHeads(), "add"), (FixedView(), "with 7 classes in `fc`")])
def test_head_that_cannot_be_changed_is_named(module, reason):
    with pytest.raises(StretchError, match=reason) as error:
        changed(module)
    assert "classes" in error.value.hint
