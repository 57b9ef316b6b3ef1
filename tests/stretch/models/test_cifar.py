import pytest

torch = pytest.importorskip("torch")

from stretch.models.cifar import CifarFamily  # noqa: E402 - torch may be missing
from stretch.planning.network.segments import split_segments  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("name", "millions"), [("resnet20_cifar10", 0.27), ("resnet56_cifar10", 0.86), ("resnet110_cifar10", 1.7)])
def test_parameters_are_those_of_the_paper(name, millions):
    module = CifarFamily().build(name)
    assert sum(p.numel() for p in module.parameters()) / 1e6 == pytest.approx(millions, rel=0.03)


@pytest.mark.slow
def test_three_stages_of_nine_blocks(captured):
    stages = [s for s in split_segments(captured("resnet56_cifar10").graph) if s.branchable]
    assert [(s.depth, s.width) for s in stages] == [(9, 16), (9, 32), (9, 64)]


def test_classes_follow_the_data_set():
    module = CifarFamily().build("resnet20_cifar100").eval()
    with torch.inference_mode():
        assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 100)
