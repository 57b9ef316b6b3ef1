"""Optimisers whose learning rate is a tensor, clipping, and the running mean of weights."""

from collections.abc import Iterable

import torch
from torch import nn

from stretch.train.config import TrainConfig


def make_optimizer(parameters: Iterable[torch.Tensor], config: TrainConfig, rate: torch.Tensor) -> torch.optim.Optimizer:
    """SGD or AdamW of the configuration.

    Args:
        parameters: What is trained.
        config: The run.
        rate: The learning rate, a tensor on the parameters' device, so that a
            captured step reads the rate of the day.
    """
    weights = list(parameters)
    on_gpu = rate.is_cuda
    if config.optimizer == "adamw":
        return torch.optim.AdamW(
            weights, lr=rate, betas=(config.momentum, 0.999), weight_decay=config.weight_decay, fused=on_gpu, capturable=on_gpu
        )
    return torch.optim.SGD(
        weights,
        lr=rate,
        momentum=config.momentum,
        nesterov=config.nesterov and config.momentum > 0,
        weight_decay=config.weight_decay,
        fused=on_gpu,
    )


def clip_(gradients: list[torch.Tensor], largest: float) -> None:
    """Scale gradients in place so that their norm together is at most `largest`."""
    norms = torch._foreach_norm(gradients)
    total = torch.linalg.vector_norm(torch.stack(norms))
    torch._foreach_mul_(gradients, (largest / (total + 1e-6)).clamp(max=1.0))


class MeanWeights:
    """The running mean of a network's weights and statistics (Polyak averaging).

    Args:
        model: The network; its tensors are read at every `update`.
        decay: Weight of the mean so far.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.live = {k: v for k, v in model.state_dict(keep_vars=True).items() if v.is_floating_point()}
        self.mean = {k: v.detach().clone() for k, v in self.live.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move the mean towards the weights of now."""
        torch._foreach_lerp_(list(self.mean.values()), [v.detach() for v in self.live.values()], 1 - self.decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the mean with the network's weights; twice is nothing."""
        for name, mean in self.mean.items():
            kept = self.live[name].detach().clone()
            self.live[name].detach().copy_(mean)
            mean.copy_(kept)
