"""Distributed training: the rank of this process, and collective operations."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_reduce

from predictors.errors import StretchError


@dataclass(frozen=True)
class World:
    """The rank of this process and the number of all processes."""

    rank: int = 0  # Rank of this process, from 0.
    size: int = 1  # Number of processes.
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))  # Device of this process.

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def join_world(device: str = "auto") -> Iterator[World]:
    """Join the processes of torchrun, or run as the only process (`device`: ``auto`` (a GPU if available), ``cpu`` or ``cuda``)."""
    size, rank, local = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0")))
    on_gpu = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise StretchError("there is no GPU that torch can use", "train on the CPU with --set data.device=cpu, or repair the driver")
    if on_gpu and local >= torch.cuda.device_count():
        raise StretchError(f"process {local} of this machine has no GPU, there are {torch.cuda.device_count()}", "lower --gpus")
    where = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(where)
    if size == 1:
        yield World(0, 1, where)
        return
    try:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    except (RuntimeError, ValueError) as error:
        raise StretchError(
            f"the {size} processes cannot find each other: {str(error).splitlines()[0]}", "start them with torchrun"
        ) from error
    try:
        yield World(rank, size, where)
    finally:
        dist.destroy_process_group()


class SharedNorm(nn.BatchNorm2d):
    """Batch norm with statistics over all processes, on any device.

    torch's `SyncBatchNorm` supports only GPUs; this one is for CPUs, and for the
    test that several processes compute the same as one.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise by mean and variance over all processes while training."""
        if not self.training or not dist.is_initialized():
            return super().forward(input)
        dims = [0, *range(2, input.dim())]
        shape = (1, -1, *[1] * (input.dim() - 2))
        total, count = all_reduce(torch.stack([input.sum(dims), input.new_full((input.shape[1],), input.numel() / input.shape[1])]))
        mean = total / count
        # The mean of squared deviations is more accurate than the mean of squares minus the squared mean.
        variance = all_reduce((input - mean.view(shape)).square().sum(dims)) / count
        out: torch.Tensor = (input - mean.view(shape)) * torch.rsqrt(variance.view(shape) + self.eps)
        if self.track_running_stats:
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            with torch.no_grad():
                self.num_batches_tracked += 1
                weight = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
                self.running_mean.lerp_(mean, weight)
                self.running_var.lerp_(variance * count / (count - 1), weight)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out


def share_statistics(model: nn.Module, world: World) -> nn.Module:
    """Synchronise the statistics of every batch norm; names and weights stay."""
    if world.size == 1:
        return model
    if world.device.type == "cuda":
        synchronised: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return synchronised
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SharedNorm
    return model
