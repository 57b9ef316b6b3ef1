"""Train a supernet: largest, smallest and some random subnets in every step (Yu and Huang 2019)."""

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError
from stretch.train.distributed import World
from stretch.train.recipe import SandwichConfig, TrainConfig
from stretch.train.step import Prepare, TrainingStep, autocast, distill_loss, label_loss
from stretch.train.supernet import Subnet, Supernet

_Loss = Callable[[torch.Tensor], torch.Tensor]


class SubnetWork:
    """Forward and backward of one subnet, run eagerly or replayed as CUDA graphs."""

    def __init__(self, subnet: Subnet, shared: torch.Tensor, loss: _Loss, scaled: _Loss, config: TrainConfig) -> None:
        self.subnet, self.shared, self.loss, self.scaled, self.config = subnet, shared, loss, scaled, config
        self.device = shared.device
        self.scores = torch.empty(0)
        self.result = torch.empty(0)
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None

    def forward(self, x: torch.Tensor) -> None:
        """Compute `scores` from the present weights."""
        if self._graphs:
            self._graphs[0].replay()
            return
        self.subnet.load(self.shared)
        with autocast(self.device, self.config.amp):
            self.scores = self.subnet.model(x).float()

    def backward(self) -> None:
        """Compute the loss as `result`, and the subnet's gradients."""
        if self._graphs:
            self._graphs[1].replay()
            return
        loss = self.loss(self.scores)
        self.subnet.gather(torch.autograd.grad(self.scaled(loss), self.subnet.parameters))
        self.result = loss.detach()

    def capture(self, x: torch.Tensor) -> None:
        """Capture the forward and backward passes as graphs that read `x`; statistics are not changed."""
        buffers = [b.clone() for b in self.subnet.model.buffers()]
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.forward(x)
                self.backward()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        for buffer, old in zip(self.subnet.model.buffers(), buffers, strict=True):
            buffer.copy_(old)
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Graphs of different subnets run at the same time: each pair has its own memory and its own stream, because graphs
        # that were captured on one stream share cuBLAS's workspace.
        with torch.cuda.graph(first, stream=stream, capture_error_mode="thread_local"):
            self.forward(x)
        with torch.cuda.graph(second, pool=first.pool(), stream=stream, capture_error_mode="thread_local"):
            self.backward()
        self._graphs = first, second


class SandwichStep(TrainingStep):
    """One optimiser step on the summed gradients of several subnets.

    The largest subnet learns from labels (and a teacher, if there is one), the others from
    the largest (in-place distillation). On a GPU every subnet is a pair of CUDA graphs
    on its own stream, so that small ones run at the same time.

    Args:
        prepare: Function from uint8 images to the networks' inputs.

    Attributes:
        count: Number of completed steps, which determines the random subnets together with the seed.
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
        self.works: list[SubnetWork] = []
        self._streams: list[torch.cuda.Stream] = []
        #: Images and labels of the step, in the memory that captured graphs read.
        self._x = self._labels = torch.empty(0, device=device)
        self._soft: torch.Tensor | None = None
        self._teacher_graph: torch.cuda.CUDAGraph | None = None
        if not sandwich.largest and sandwich.inplace > 0 and teacher is None:
            raise StretchError("without its largest subnet a supernet needs a teacher", "set sandwich.largest = true, or name a teacher")
        model.flat.grad = torch.zeros_like(model.flat)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train on one batch; return the mean loss of the largest subnet, or of the first one if the largest takes no part."""
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
        if self._teacher_graph is not None:
            self._teacher_graph.replay()
        else:
            self._compute_teacher_scores()
        grad = self.supernet.flat.grad
        assert grad is not None
        grad.zero_()
        works = [self.works[i] for i in self.sample()]
        self._run(works)
        for work in works:
            work.subnet.add_to(grad)
        if self.world.size > 1:
            self.world.sum_(grad).div_(self.world.size)
        self.update()
        self.count += 1
        return works[0].result

    def sample(self) -> list[int]:
        """Return the indices of the subnets of this step: the largest, the smallest, and random ones, which differ between processes."""
        draw = random.Random((self.config.seed * 1_000_003 + self.count) * 1009 + self.world.rank)
        pool = range(2, len(self.supernet.subnets))
        always = [0] * self.sandwich.largest + [1] * self.sandwich.smallest
        return always + draw.sample(pool, min(self.sandwich.random, len(pool)))

    def _start(self, x: torch.Tensor, labels: torch.Tensor) -> None:
        self._x, self._labels = x.clone(), labels.clone()
        self._compute_teacher_scores()
        flat = self.supernet.flat.detach()
        largest = SubnetWork(self.supernet.subnets[0], flat, self._loss_on_labels, self.scale_loss, self.config)
        self.works = [
            largest,
            *(SubnetWork(s, flat, self._loss_of_taught, self.scale_loss, self.config) for s in self.supernet.subnets[1:]),
        ]
        if self.device.type == "cuda":
            self._streams = [torch.cuda.Stream(self.device) for _ in range(self.sandwich.random + 2)]
            if self.config.graph:
                for work in self.works if self.sandwich.largest else self.works[1:]:
                    work.capture(self._x)
                if self.teacher is not None:
                    self._teacher_graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(self._teacher_graph):
                        self._compute_teacher_scores()

    @torch.no_grad()
    def _compute_teacher_scores(self) -> None:
        """Compute the teacher's scores into the memory that the losses read."""
        if self.teacher is None:
            return
        with autocast(self.device, self.config.amp):
            scores = self.teacher(self._x).float()
        if self._soft is None:
            self._soft = scores
        else:
            self._soft.copy_(scores)

    def _run(self, works: list[SubnetWork]) -> None:
        """Run forward and backward of every subnet; the others start when the largest subnet's scores are ready."""
        others = works[1:] if self.sandwich.largest else works
        if self.sandwich.largest:
            works[0].forward(self._x)
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream(self.device))
        streams: Sequence[torch.cuda.Stream | None] = self._streams or [None] * len(others)
        for work, own_stream in zip(others, streams, strict=False):
            with torch.cuda.stream(own_stream) if own_stream is not None else nullcontext():
                work.forward(self._x)
                work.backward()
        if self.sandwich.largest:
            works[0].backward()
        for stream in self._streams:
            torch.cuda.current_stream(self.device).wait_stream(stream)

    def _loss_on_labels(self, scores: torch.Tensor) -> torch.Tensor:
        return label_loss(scores, self._labels, self._soft if self.config.distill > 0 else None, self.config)

    def _loss_of_taught(self, scores: torch.Tensor) -> torch.Tensor:
        share = self.sandwich.inplace
        loss = F.cross_entropy(scores, self._labels) if share < 1 else scores.new_zeros(())
        if share == 0:
            return loss
        taught = self.works[0].scores.detach() if self.sandwich.largest else self._soft
        assert taught is not None
        return share * distill_loss(scores, taught, self.sandwich.temperature) + (1 - share) * loss
