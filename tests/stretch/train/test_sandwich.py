import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402 - torch may be missing

from stretch.train.config import SandwichConfig, TrainConfig  # noqa: E402
from stretch.train.data import synthetic  # noqa: E402
from stretch.train.distributed import World  # noqa: E402
from stretch.train.loop import Run  # noqa: E402
from stretch.train.sandwich import SandwichStep  # noqa: E402
from stretch.train.supernet import Supernet  # noqa: E402
from tests.stretch.train.supernets import pool  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def step_of(supernet, config, sandwich=None, rank=0, size=1):
    prepare = lambda x, generator: x.float()  # noqa: E731 - a name for the step to hold
    return SandwichStep(supernet.train(), config, prepare, None, CPU, sandwich or SandwichConfig(random=1), World(rank, size))


@pytest.mark.slow
def test_gradient_is_the_sum_over_the_sampled_subnets(captured):
    network = captured("tiny_resnet")
    config = TrainConfig(learning_rate=1e-12, momentum=0, nesterov=False, weight_decay=0, channels_last=False)
    supernet = Supernet(network, pool(network.graph))
    step = step_of(supernet, config)
    images, labels = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
    before = supernet.flat.detach().clone()
    drawn = step.sample()
    step(images, labels)
    flat = before.clone().requires_grad_()
    total, taught = 0.0, None
    for number in drawn:
        subnet = supernet.subnets[number]
        positions = supernet.sharing.positions(subnet.design)
        scores = torch.func.functional_call(subnet.model, {name: flat[p] for name, p in positions.items()}, images)
        if taught is None:
            taught = scores.detach().log_softmax(1)
            total = total + F.cross_entropy(scores, labels)
        else:
            total = total + (taught.exp() * (taught - scores.log_softmax(1))).sum(1).mean()
    total.backward()
    torch.testing.assert_close(supernet.flat.grad, flat.grad, atol=1e-4, rtol=1e-3)


def test_processes_draw_subnets_of_their_own_beside_the_largest_and_smallest(captured):
    supernet = Supernet(captured("tiny_resnet"), pool(captured("tiny_resnet").graph))
    steps = [step_of(supernet, TrainConfig(), rank=rank, size=4) for rank in range(4)]
    drawn = []
    for count in range(10):
        for step in steps:
            step.count = count
        drawn.append([step.sample() for step in steps])
    assert all(sample[:2] == [0, 1] for row in drawn for sample in row)
    assert {sample[2] for row in drawn for sample in row} == {2, 3, 4}
    assert any(len({sample[2] for sample in row}) > 1 for row in drawn)


@pytest.mark.slow
def test_supernet_learns_and_its_subnets_with_it(captured):
    network = captured("tiny_resnet")
    torch.manual_seed(0)
    supernet = Supernet(network, pool(network.graph), scratch=True)
    sets = synthetic(4, 16, 256)
    config = TrainConfig(epochs=16, batch=32, learning_rate=0.01, channels_last=False)
    run = Run(
        supernet,
        *sets,
        config,
        make_step=lambda prepare, device: SandwichStep(supernet.train(), config, prepare, None, device, SandwichConfig(), World()),
    )
    rows = [row for row in run.steps() if row is not None]
    assert rows[-1].loss < rows[0].loss / 2
    batches = [run.normalise(part) for part in sets[0].images.split(64)]
    for subnet in supernet.pool:
        scores = supernet.extract(subnet.design, batches)(run.normalise(sets[1].images))
        assert (scores.argmax(1) == sets[1].labels).float().mean() > 0.4
