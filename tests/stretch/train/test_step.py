import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402 - torch may be missing
from torch import nn  # noqa: E402

from stretch.train.config import TrainConfig  # noqa: E402
from stretch.train.step import TrainingStep  # noqa: E402

pytestmark = pytest.mark.torch


def test_step_is_plain_sgd_with_momentum_and_decay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    twin = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    twin.load_state_dict(model.state_dict())
    config = TrainConfig(learning_rate=0.1, weight_decay=0.01, channels_last=False)
    step = TrainingStep(model, config, lambda x, generator: x.float(), None, torch.device("cpu"))
    reference = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    for _ in range(4):
        images, labels = torch.randn(8, 3, 2, 2), torch.randint(4, (8,))
        loss = step(images, labels)
        expected = F.cross_entropy(twin(images), labels)
        reference.zero_grad()
        expected.backward()
        reference.step()
        torch.testing.assert_close(loss, expected.detach())
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)
