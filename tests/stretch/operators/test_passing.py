import pytest

torch = pytest.importorskip("torch")

from stretch.operators.passing import StochasticDepth  # noqa: E402 - torch may be missing

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_stochastic_depth_drops_whole_samples_and_keeps_the_expectation(mode):
    torch.manual_seed(0)
    module = StochasticDepth(0.25, mode).train()
    x = torch.ones(4000, 2)
    out = torch.cat([module(x[i : i + 4]) for i in range(0, 4000, 4)])
    assert sorted(out.unique().tolist()) == pytest.approx([0, 4 / 3])
    assert out.mean().item() == pytest.approx(1.0, abs=0.06)
    assert torch.equal(module.eval()(x), x)
