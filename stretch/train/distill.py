"""Distillation losses on a teacher's scores, and on its tensors at meeting points."""

import torch
import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError
from stretch.train.config import DistillKind
from stretch.transform.model import BranchedModel


def distill_loss(scores: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Cross-entropy to the teacher's softened labels (Hinton et al. 2015), up to its constant."""
    return soft_label_losses(scores, teacher, temperature).mean()


def soft_label_losses(scores: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """The same cross-entropy per sample, (n,)."""
    soft = F.log_softmax(teacher / temperature, dim=1)
    return F.kl_div(F.log_softmax(scores / temperature, dim=1), soft, reduction="none", log_target=True).sum(1) * temperature**2


def weighted_distill_loss(scores: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    """Soft labels, weighted less where the student is already better (Zhou et al. 2021, eq. 10), as in paper 003.

    A sample's weight is 1 − exp(−s / t), where s and t are the cross-entropies of student
    and teacher to the label: near one while the student is far behind its teacher, near
    zero once it is ahead. No gradient flows through the weights.
    """
    with torch.no_grad():
        student = F.cross_entropy(scores, labels, reduction="none")
        taught = F.cross_entropy(teacher, labels, reduction="none").clamp_min(1e-6)
        weights = 1 - torch.exp(-student / taught)
    return (weights * soft_label_losses(scores, teacher, temperature)).mean()


def with_teacher(
    loss: torch.Tensor,
    scores: torch.Tensor,
    teacher: torch.Tensor,
    labels: torch.Tensor,
    *,
    kind: DistillKind,
    share: float,
    temperature: float,
) -> torch.Tensor:
    """A weighted sum of a loss on labels and one on the teacher's scores."""
    weighted = kind == "weighted"
    taught = weighted_distill_loss(scores, teacher, labels, temperature) if weighted else distill_loss(scores, teacher, temperature)
    return (1 - share) * loss + share * taught


class WithFeatures(nn.Module):
    """A branched network that returns its scores and its tensors at meeting points."""

    def __init__(self, model: BranchedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Scores, and the outputs of every branched segment."""
        return segment_outputs(self.model, x)


def segment_outputs(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Run a branched network; returns its scores and the outputs of all segments but the last."""
    assert isinstance(model, BranchedModel)
    outputs = []
    for part in model.design.segments:
        x = model.get_submodule(part.name)(x)
        outputs.append(x)
    return x, [output for output in outputs[:-1] if output.dim() == 4]


def feature_loss(features: list[torch.Tensor], targets: list[torch.Tensor]) -> torch.Tensor:
    """Mean squared distance at meeting points, relative to the mean square of the teacher's tensors."""
    losses = []
    for a, b in zip(features, targets, strict=True):
        if a.shape != b.shape:
            raise StretchError(
                f"features of shape {tuple(a.shape[1:])} cannot be compared with the teacher's {tuple(b.shape[1:])}",
                "matching features needs `project` or `sum` joins",
            )
        losses.append(F.mse_loss(a.float(), b.float()) / b.float().square().mean().clamp_min(1e-12))
    return torch.stack(losses).mean()
