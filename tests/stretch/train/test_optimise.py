import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from stretch.train.config import TrainConfig  # noqa: E402
from stretch.train.step import MeanWeights, clip_, make_optimizer  # noqa: E402

pytestmark = pytest.mark.torch


def test_clipping_leaves_small_gradients_and_shortens_long_ones():
    small, large = [torch.tensor([0.3, 0.4])], [torch.tensor([3.0, 0.0]), torch.tensor([4.0])]
    clip_(small, 1.0)
    clip_(large, 1.0)
    torch.testing.assert_close(small[0], torch.tensor([0.3, 0.4]))
    torch.testing.assert_close(torch.cat(large), torch.tensor([0.6, 0.0, 0.8]))


def test_mean_of_weights_forgets_the_first_ones_and_swaps_back():
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.0)
    mean, expected = MeanWeights(model, 0.5), 0.0
    for n in range(1, 12):
        model.weight.data.fill_(float(n))
        mean.update()
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * n
    mean.swap()
    assert model.weight.item() == pytest.approx(expected)
    mean.swap()
    assert model.weight.item() == 11.0
    assert int(mean.updates) == 11


def test_tensor_that_several_parts_share_has_one_mean_and_comes_back():
    model = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
    model[1].weight = model[0].weight
    mean = MeanWeights(model, 0.5)
    model[0].weight.data.fill_(3.0)
    mean.update()
    mean.swap()
    assert model[1].weight.item() != 3.0
    mean.swap()
    assert model[0].weight.item() == 3.0


def test_infinite_gradients_in_the_first_fp16_step_leave_the_momentum_sound():
    torch.full((1000,), float("nan"))  # what freed memory may hold
    weight = torch.nn.Parameter(torch.ones(1000))
    rate = torch.tensor(0.1)
    optimizer = make_optimizer([weight], TrainConfig(amp="fp16", weight_decay=0, nesterov=False), rate)
    assert optimizer.defaults["fused"] is False
    scaler = torch.amp.GradScaler("cpu")
    for factor in (float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(weight.detach(), torch.full((1000,), 1 - 0.1 - 0.1 * 1.9))


def test_adamw_reads_the_rate_of_the_day():
    weight = torch.zeros(1, requires_grad=True)
    rate = torch.tensor(0.1)
    optimizer = make_optimizer([weight], TrainConfig(optimizer="adamw", weight_decay=0), rate)
    for value in (0.1, 0.01):
        rate.fill_(value)
        weight.grad = torch.ones(1)
        optimizer.step()
    assert weight.item() == pytest.approx(-0.11, rel=1e-3)
