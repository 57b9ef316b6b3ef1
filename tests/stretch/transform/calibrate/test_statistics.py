import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch may be missing

from stretch.transform.calibrate.statistics import Moments, rebase_statistics, renew_statistics  # noqa: E402

pytestmark = pytest.mark.torch


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5), nn.BatchNorm1d(5)).eval()
    with torch.no_grad():
        for norm in (net[1], net[5]):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 3)
            norm.weight.normal_()
            norm.bias.normal_()
    return net


def images(seed=0):
    return list(torch.randn(24, 3, 8, 8, generator=torch.Generator().manual_seed(seed)).split(8))


def test_renewed_statistics_are_the_mean_over_batches_and_momentum_is_kept():
    net, x = network(), images()
    weights = net[1].weight.clone()
    with torch.no_grad():
        renew_statistics(net, x)
        first = torch.stack([net[0](batch).mean((0, 2, 3)) for batch in x]).mean(0)
    torch.testing.assert_close(net[1].running_mean, first, rtol=1e-4, atol=1e-5)
    assert torch.equal(net[1].weight, weights)
    assert net[1].momentum == net[5].momentum == 0.1
    assert not any(m.training for m in net.modules())


def test_rebased_statistics_are_the_data_s_and_the_function_stays():
    net, x = network(), images()
    with torch.no_grad():
        want = net(torch.cat(x))
        outputs = rebase_statistics(net, x)
        torch.testing.assert_close(torch.cat(outputs), want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(net(torch.cat(x)), want, rtol=1e-4, atol=1e-4)
        seen = net[0](torch.cat(x))
        before_last = net[:5](torch.cat(x))
    torch.testing.assert_close(net[1].running_mean, seen.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net[1].running_var, seen.var((0, 2, 3), correction=0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net[5].running_mean, before_last.mean(0), rtol=1e-4, atol=1e-4)


def test_small_variance_around_a_large_mean_is_not_lost():
    x = 1000 + 0.01 * torch.randn(64, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    moments = Moments()
    for batch in x.split(20):
        moments.add(batch)
    mean, variance = moments.take()
    torch.testing.assert_close(mean, x.double().mean((0, 2, 3)))
    torch.testing.assert_close(variance, x.double().var((0, 2, 3), correction=0), rtol=1e-3, atol=0)
