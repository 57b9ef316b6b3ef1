"""Optimisers with a tensor as learning rate, gradient clipping, and the moving average of weights."""

from collections.abc import Iterable

import torch
from torch import nn

from stretch.train.config import TrainConfig


def make_optimizer(parameters: Iterable[torch.Tensor], config: TrainConfig, rate: torch.Tensor) -> torch.optim.Optimizer:
    """SGD or AdamW of the configuration."""
    weights = list(parameters)
    on_gpu = rate.is_cuda
    # PyTorch's fused SGD leaves its momentum uninitialised where a scaler finds the first step's gradients infinite.
    fused = on_gpu and config.amp != "fp16"
    if config.optimizer == "adamw":
        return torch.optim.AdamW(
            weights, lr=rate, betas=(config.momentum, 0.999), weight_decay=config.weight_decay, fused=fused, capturable=on_gpu
        )
    return torch.optim.SGD(
        weights,
        lr=rate,
        momentum=config.momentum,
        nesterov=config.nesterov and config.momentum > 0,
        weight_decay=config.weight_decay,
        fused=fused,
    )


def clip_(gradients: list[torch.Tensor], largest: float) -> None:
    """Scale gradients in place so that their global norm is at most `largest`."""
    norms = torch._foreach_norm(gradients)
    total = torch.linalg.vector_norm(torch.stack(norms))
    torch._foreach_mul_(gradients, (largest / (total + 1e-6)).clamp(max=1.0))


class MeanWeights:
    """The running mean of a network's weights and statistics (Polyak averaging).

    The weight of the mean so far grows to `decay` as (1 + n) / (10 + n) in the first steps,
    so that the initial weights are soon forgotten and short runs have a mean worth evaluating.

    Args:
        model: The network; its tensors are read at every `update`.
        decay: Weight of the mean so far, at most.

    Attributes:
        updates: Number of updates, a tensor beside the weights, so that a captured step counts too.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        # A shared tensor, as of bands of rows, has several names but one average.
        once = {id(v): k for k, v in reversed(model.state_dict(keep_vars=True).items()) if v.is_floating_point()}
        self.live = {k: v for k, v in model.state_dict(keep_vars=True).items() if once.get(id(v)) == k}
        self.mean = {k: v.detach().clone() for k, v in self.live.items()}
        self.updates = torch.zeros((), device=next(iter(self.live.values())).device)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """All changing tensors, by name."""
        return {"updates": self.updates} | {f"weights.{name}": value for name, value in self.mean.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights."""
        self.updates += 1
        share = 1 - ((1 + self.updates) / (10 + self.updates)).clamp(max=self.decay)
        mean = list(self.mean.values())
        step = torch._foreach_sub([v.detach() for v in self.live.values()], mean)
        torch._foreach_mul_(step, share)
        torch._foreach_add_(mean, step)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the average with the network's weights; calling it twice has no effect."""
        for name, mean in self.mean.items():
            kept = self.live[name].detach().clone()
            self.live[name].detach().copy_(mean)
            mean.copy_(kept)
