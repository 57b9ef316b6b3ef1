import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from stretch.train.config import TrainConfig  # noqa: E402
from stretch.train.optimise import MeanWeights, clip_, make_optimizer  # noqa: E402

pytestmark = pytest.mark.torch


def test_clipping_leaves_small_gradients_and_shortens_long_ones():
    small, large = [torch.tensor([0.3, 0.4])], [torch.tensor([3.0, 0.0]), torch.tensor([4.0])]
    clip_(small, 1.0)
    clip_(large, 1.0)
    torch.testing.assert_close(small[0], torch.tensor([0.3, 0.4]))
    torch.testing.assert_close(torch.cat(large), torch.tensor([0.6, 0.0, 0.8]))


def test_mean_of_weights_is_the_decayed_sum_and_swaps_back():
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.0)
    mean = MeanWeights(model, 0.5)
    for value in (1.0, 2.0):
        model.weight.data.fill_(value)
        mean.update()
    mean.swap()
    assert model.weight.item() == pytest.approx(0.5 * 0.5 * 1.0 + 0.5 * 2.0)
    mean.swap()
    assert model.weight.item() == 2.0


def test_adamw_reads_the_rate_of_the_day():
    weight = torch.zeros(1, requires_grad=True)
    rate = torch.tensor(0.1)
    optimizer = make_optimizer([weight], TrainConfig(optimizer="adamw", weight_decay=0), rate)
    for value in (0.1, 0.01):
        rate.fill_(value)
        weight.grad = torch.ones(1)
        optimizer.step()
    assert weight.item() == pytest.approx(-0.11, rel=1e-3)
