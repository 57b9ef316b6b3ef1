import pytest

torch = pytest.importorskip("torch")

from stretch.models.cifar import CifarFamily  # noqa: E402 - torch may be missing

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("name", "millions"), [("resnet20_cifar10", 0.27), ("resnet56_cifar10", 0.86), ("resnet110_cifar10", 1.7)])
def test_parameters_are_those_of_the_paper(name, millions):
    module = CifarFamily().build(name)
    assert sum(p.numel() for p in module.parameters()) / 1e6 == pytest.approx(millions, rel=0.03)
