"""Train a supernet: largest, smallest and some random subnets in every step (Yu and Huang 2019)."""

import random
from collections.abc import Callable
from contextlib import nullcontext

import msgspec
import torch
import torch.nn.functional as F
from torch import nn

from stretch.train.config import TrainConfig
from stretch.train.distill import distill_loss, with_teacher
from stretch.train.distributed import World
from stretch.train.optimise import clip_
from stretch.train.step import Prepare, Step, autocast
from stretch.train.supernet import Subnet, Supernet


class SandwichConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a supernet is sampled.

    Args:
        random: Subnets of the pool in every step, beside the largest and the smallest.
        smallest: Whether the smallest takes part: it bounds the pool from below, and is never used.
        inplace: Weight of the largest subnet's scores in the loss of the others; the rest is labels.
        temperature: Of those scores.
    """

    random: int = 2
    smallest: bool = True
    inplace: float = 1.0
    temperature: float = 1.0


class Work:
    """Forward and backward of one subnet, run eagerly or replayed as CUDA graphs.

    Args:
        subnet: The subnet.
        shared: The supernet's weights.
        loss: Loss of scores.
        config: The run.
    """

    def __init__(self, subnet: Subnet, shared: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor], config: TrainConfig) -> None:
        self.subnet, self.shared, self.loss, self.config = subnet, shared, loss, config
        self.device = shared.device
        self.scores = torch.empty(0)
        self.result = torch.empty(0)
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None

    def forward(self, x: torch.Tensor) -> None:
        """Compute `scores` from the weights of now."""
        if self._graphs:
            self._graphs[0].replay()
            return
        self.subnet.load(self.shared)
        with autocast(self.device, self.config.amp):
            self.scores = self.subnet.model(x).float()

    def backward(self) -> None:
        """Compute `result`, the loss, and the subnet's gradients."""
        if self._graphs:
            self._graphs[1].replay()
            return
        loss = self.loss(self.scores)
        self.subnet.gather(torch.autograd.grad(loss, self.subnet.parameters))
        self.result = loss.detach()

    def capture(self, x: torch.Tensor) -> None:
        """Turn both into graphs that read `x`; statistics are left as they are."""
        buffers = [b.clone() for b in self.subnet.model.buffers()]
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.forward(x)
                self.backward()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        for own, old in zip(self.subnet.model.buffers(), buffers, strict=True):
            own.copy_(old)
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Graphs of different subnets run at the same time: each pair has memory of its own.
        with torch.cuda.graph(first, capture_error_mode="thread_local"):
            self.forward(x)
        with torch.cuda.graph(second, pool=first.pool(), capture_error_mode="thread_local"):
            self.backward()
        self._graphs = first, second


class SandwichStep(Step):
    """One optimiser step on the summed gradients of several subnets.

    The largest learns from labels (and a teacher, if there is one), the others from
    the largest (in-place distillation). On a GPU every subnet is a pair of CUDA graphs
    on a stream of its own, so that small ones run side by side.

    Args:
        model: The supernet.
        config: The run.
        prepare: uint8 images to what the networks read.
        teacher: Gives soft labels to the largest, if the run distils.
        device: Of everything.
        sandwich: How to sample.
        world: This process; each draws random subnets of its own.

    Attributes:
        count: Steps done, which with the seed decides what is drawn.
    """

    def __init__(
        self,
        model: Supernet,
        config: TrainConfig,
        prepare: Prepare,
        teacher: nn.Module | None,
        device: torch.device,
        sandwich: SandwichConfig,
        world: World,
    ) -> None:
        super().__init__(model, config, prepare, teacher, device)
        self.supernet, self.sandwich, self.world, self.count = model, sandwich, world, 0
        self.works: list[Work] = []
        self._streams: list[torch.cuda.Stream] = []
        model.flat.grad = torch.zeros_like(model.flat)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train on one batch; returns the largest subnet's mean loss."""
        x = self.prepare(images, self.generator)
        if self.config.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        if not self.works:
            self._start(x, labels)
        if self.device.type == "cuda" and self.config.graph:
            self._x.copy_(x)
        else:
            self._x = x
        self._labels.copy_(labels)
        if self.teacher is not None:
            with torch.no_grad(), autocast(self.device, self.config.amp):
                self._soft.copy_(self.teacher(self._x))
        grad = self.supernet.flat.grad
        assert grad is not None
        grad.zero_()
        works = [self.works[i] for i in self.sample()]
        self._run(works)
        for work in works:
            work.subnet.add_to(grad)
        if self.world.size > 1:
            self.world.sum_(grad).div_(self.world.size)
        if self.config.clip > 0:
            clip_([grad], self.config.clip)
        self.optimizer.step()
        if self.mean is not None:
            self.mean.update()
        self.count += 1
        return works[0].result

    def sample(self) -> list[int]:
        """Which subnets this step trains: the largest, the smallest, and random ones of the pool, this process's own."""
        draw = random.Random((self.config.seed * 1_000_003 + self.count) * 1009 + self.world.rank)
        pool = range(2, len(self.supernet.subnets))
        always = [0, 1] if self.sandwich.smallest else [0]
        return always + draw.sample(pool, min(self.sandwich.random, len(pool)))

    def _start(self, x: torch.Tensor, labels: torch.Tensor) -> None:
        self._x, self._labels = x.clone(), labels.clone()
        if self.teacher is not None:
            with torch.no_grad(), autocast(self.device, self.config.amp):
                self._soft = self.teacher(self._x).float()
        flat = self.supernet.flat.detach()
        largest = Work(self.supernet.subnets[0], flat, self._loss_on_labels, self.config)
        self.works = [largest, *(Work(s, flat, self._loss_on_largest, self.config) for s in self.supernet.subnets[1:])]
        if self.device.type == "cuda":
            self._streams = [torch.cuda.Stream(self.device) for _ in range(self.sandwich.random + 2)]
            if self.config.graph:
                for work in self.works:
                    work.capture(self._x)

    def _run(self, works: list[Work]) -> None:
        """Forward and backward of every subnet; those behind the largest start when its scores are there."""
        largest, *others = works
        largest.forward(self._x)
        here = torch.cuda.current_stream(self.device) if self._streams else None
        for work, stream in zip(others, self._streams or [None] * len(others), strict=False):
            if stream is not None:
                stream.wait_stream(here)
            with torch.cuda.stream(stream) if stream is not None else nullcontext():
                work.forward(self._x)
                work.backward()
        largest.backward()
        for stream in self._streams:
            here.wait_stream(stream)

    def _loss_on_labels(self, scores: torch.Tensor) -> torch.Tensor:
        c = self.config
        loss = F.cross_entropy(scores, self._labels, label_smoothing=c.label_smoothing)
        if self.teacher is not None:
            loss = with_teacher(
                loss, scores, self._soft.float(), self._labels, kind=c.distill_kind, share=c.distill, temperature=c.temperature
            )
        return loss

    def _loss_on_largest(self, scores: torch.Tensor) -> torch.Tensor:
        share = self.sandwich.inplace
        soft = distill_loss(scores, self.works[0].scores.detach(), self.sandwich.temperature)
        return share * soft + (1 - share) * F.cross_entropy(scores, self._labels) if share < 1 else soft
