import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402 - torch may be missing

from stretch.train.distill import distill_loss, weighted_distill_loss, with_teacher  # noqa: E402

pytestmark = pytest.mark.torch


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


def test_student_ahead_of_its_teacher_learns_less_from_it_than_one_behind():
    labels = torch.tensor([0])
    teacher = torch.tensor([[1.0, 0.0, 0.0]])
    ahead, behind = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[-9.0, 0.0, 0.0]])
    share = [weighted_distill_loss(s, teacher, labels, 1.0) / distill_loss(s, teacher, 1.0) for s in (ahead, behind)]
    assert share[0] < 0.01
    assert share[1] > 0.99


@pytest.mark.parametrize("kind", ["soft", "weighted"])
def test_share_of_the_teacher_goes_from_nothing_to_all(kind):
    scores, teacher, labels = torch.randn(6, 4), torch.randn(6, 4), torch.randint(4, (6,))
    loss = F.cross_entropy(scores, labels)
    none = with_teacher(loss, scores, teacher, labels, kind=kind, share=0.0, temperature=2.0)
    torch.testing.assert_close(none, loss)
    alone = weighted_distill_loss(scores, teacher, labels, 2.0) if kind == "weighted" else distill_loss(scores, teacher, 2.0)
    torch.testing.assert_close(with_teacher(loss, scores, teacher, labels, kind=kind, share=1.0, temperature=2.0), alone)
