import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch may be missing

from stretch.transform.calibrate.refine import refine  # noqa: E402

pytestmark = pytest.mark.torch


def test_output_comes_closer_statistics_and_the_caller_s_random_numbers_stay():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    x = list(torch.randn(48, 3, 6, 6).split(20))
    y = [torch.randn(len(batch), 4, 4, 4) * 0.1 + 1 for batch in x]
    state = torch.random.get_rng_state()
    mean = net[1].running_mean.clone()
    with torch.no_grad():
        before = sum((net(a) - b).square().sum() for a, b in zip(x, y, strict=True))
        refine(net, x, y, 100, lambda output: output)
        after = sum((net(a) - b).square().sum() for a, b in zip(x, y, strict=True))
    assert after < 0.9 * before
    assert torch.equal(net[1].running_mean, mean)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None for p in net.parameters())


def test_segment_without_weights_is_left_alone():
    refine(nn.ReLU(), [torch.ones(2, 3)], [torch.ones(2, 3)], 5, lambda output: output)
