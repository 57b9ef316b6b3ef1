import pytest

torch = pytest.importorskip("torch")

from stretch.models.small_resnet import BasicBlock, Bottleneck, SmallResNet  # noqa: E402 - torch may be missing

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_each_stage_but_the_first_halves_the_resolution(block):
    net = SmallResNet(block, (8, 16, 24), 2, classes=7).eval()
    x = net.conv1(torch.zeros(1, 3, 32, 32))
    sizes = []
    with torch.inference_mode():
        for stage in net.stages:
            x = stage(x)
            sizes.append((x.shape[1], x.shape[2]))
        assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert sizes == [(width * block.expansion, size) for width, size in zip((8, 16, 24), (32, 16, 8), strict=True)]
