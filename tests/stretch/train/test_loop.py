"""The training loop and its parts: step, rate, augmentation, distillation, means of weights."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError
from stretch.network.models.tiny import tiny_resnet
from stretch.train.images import synthetic
from stretch.train.loop import Run, learning_rate
from stretch.train.recipe import TrainConfig
from stretch.train.step import GraphStep, MeanWeights, TrainingStep, distill_loss, label_loss, make_optimizer, weighted_distill_loss

#: Enough steps for every seed, thread count and instruction set to end far from chance: the worst of 72 runs had a
#: hundredth of its first epoch's loss left, and no run misclassified an unseen image.
SHORT = TrainConfig(epochs=8, batch=32, learning_rate=0.005)


def fresh(seed=0):
    torch.manual_seed(seed)
    return tiny_resnet()


def train(model, images, config):
    run = Run(model, images, config)
    list(run.steps())
    return run.history


@pytest.mark.slow
def test_network_learns_a_separable_set():
    history = train(fresh(), synthetic(4, 16, 320), SHORT)
    assert history[-1].accuracy > 0.6
    assert history[-1].loss < history[0].loss / 4


def test_loss_of_nan_stops_the_run_naming_the_step():
    with pytest.raises(StretchError, match=r"epoch 1 \(step 2\)"):
        train(fresh(), synthetic(4, 16, 64), TrainConfig(epochs=3, batch=32, learning_rate=1e30))


def test_step_is_plain_sgd_with_momentum_and_decay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    twin = copy.deepcopy(model)
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


def test_recorded_step_trains_like_the_plain_step():
    """On a CPU the step is not recorded but called each time."""
    trained = []
    for kind in (TrainingStep, GraphStep):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
        config = TrainConfig(learning_rate=0.1, channels_last=False, ema=0.9)
        step = kind(model, config, lambda x, generator: x + torch.rand(x.shape, generator=generator), None, torch.device("cpu"))
        losses = [float(step(torch.randn(8, 3, 2, 2), torch.randint(4, (8,)))) for _ in range(5)]
        trained.append((losses, [weight.tolist() for weight in model.parameters()]))
    assert trained[0] == trained[1]


@given(st.integers(1, 1000), st.integers(0, 50), st.floats(1e-3, 10))
def test_rate_rises_to_its_peak_then_falls_towards_zero(steps, warmup, peak):
    rates = [learning_rate(s, steps + warmup, warmup, peak) for s in range(steps + warmup)]
    assert max(rates) == pytest.approx(peak)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(rates[: warmup + 1]))
    assert all(a >= b for a, b in itertools.pairwise(rates[warmup:]))
    assert min(rates) >= 0


def test_distillation_loss_is_the_divergence_from_the_softened_teacher():
    scores, teacher = torch.randn(5, 7), torch.randn(5, 7)
    p, q = (teacher / 3).softmax(1), (scores / 3).softmax(1)
    torch.testing.assert_close(distill_loss(scores, teacher, 3.0), (p * (p / q).log()).sum(1).mean() * 9)
    assert distill_loss(teacher, teacher, 3.0).abs() < 1e-6


def test_weighted_labels_are_those_of_the_published_formula():
    torch.manual_seed(0)
    scores, teacher, labels = torch.randn(6, 4), torch.randn(6, 4), torch.randint(4, (6,))
    total = 0.0
    for s, t, label in zip(scores, teacher, labels, strict=True):
        weight = 1 - torch.exp(-s.log_softmax(0)[label] / t.log_softmax(0)[label])
        p, q = (t / 2).softmax(0), (s / 2).softmax(0)
        total += float(weight * (p * (p / q).log()).sum() * 4)
    assert float(weighted_distill_loss(scores, teacher, labels, 2.0)) == pytest.approx(total / 6, rel=1e-4)


@pytest.mark.parametrize("kind", ["soft", "weighted"])
def test_share_of_the_teacher_rises_from_zero_to_one(kind):
    scores, teacher, labels = torch.randn(6, 4), torch.randn(6, 4), torch.randint(4, (6,))
    nothing, everything = (TrainConfig(distill_kind=kind, distill=share, temperature=2.0) for share in (0.0, 1.0))
    torch.testing.assert_close(label_loss(scores, labels, teacher, nothing), F.cross_entropy(scores, labels))
    alone = weighted_distill_loss(scores, teacher, labels, 2.0) if kind == "weighted" else distill_loss(scores, teacher, 2.0)
    torch.testing.assert_close(label_loss(scores, labels, teacher, everything), alone)


def test_weight_average_forgets_the_first_weights_and_can_be_undone():
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
    assert (model.weight.item(), int(mean.updates)) == (11.0, 11)


def test_shared_tensor_has_one_average_and_is_restored():
    model = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
    model[1].weight = model[0].weight
    mean = MeanWeights(model, 0.5)
    model[0].weight.data.fill_(3.0)
    mean.update()
    mean.swap()
    assert model[1].weight.item() != 3.0
    mean.swap()
    assert model[0].weight.item() == 3.0


def test_infinite_gradients_in_the_first_fp16_step_leave_the_momentum_finite():
    torch.full((1000,), float("nan"))  # freed memory may hold such values
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


def test_adamw_uses_the_current_learning_rate():
    weight = torch.zeros(1, requires_grad=True)
    rate = torch.tensor(0.1)
    optimizer = make_optimizer([weight], TrainConfig(optimizer="adamw", weight_decay=0), rate)
    for value in (0.1, 0.01):
        rate.fill_(value)
        weight.grad = torch.ones(1)
        optimizer.step()
    assert weight.item() == pytest.approx(-0.11, rel=1e-3)
