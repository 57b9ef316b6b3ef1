"""One optimiser step, run eagerly or replayed as a CUDA graph."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from stretch.train.config import TrainConfig
from stretch.train.distill import with_teacher

Prepare = Callable[[torch.Tensor], torch.Tensor]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Step:
    """Forward, backward and update of one batch.

    Args:
        model: In training mode, on its device.
        config: The run.
        prepare: uint8 images to what the model reads, augmented.
        teacher: Gives soft labels, if the run distils; in evaluation mode.
        device: Of model and images.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, prepare: Prepare, teacher: nn.Module | None, device: torch.device) -> None:
        self.model, self.config, self.prepare, self.teacher, self.device = model, config, prepare, teacher, device
        # A tensor, so that a captured step reads the rate of the day.
        self.rate = torch.tensor(config.learning_rate, device=device)
        self.optimizer = torch.optim.SGD(
            model.parameters(),
            lr=self.rate,
            momentum=config.momentum,
            nesterov=config.nesterov and config.momentum > 0,
            weight_decay=config.weight_decay,
            fused=device.type == "cuda",
        )

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train on one batch; returns its mean loss as a tensor on the device."""
        loss = self._loss(images, labels)
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.prepare(images)
        if self.config.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with autocast(self.device, self.config.amp):
            scores = self.model(x)
            if self.teacher is not None:
                with torch.no_grad():
                    soft = self.teacher(x)
        loss = F.cross_entropy(scores.float(), labels, label_smoothing=self.config.label_smoothing)
        if self.teacher is not None:
            loss = with_teacher(
                loss,
                scores.float(),
                soft.float(),
                labels,
                kind=self.config.distill_kind,
                share=self.config.distill,
                temperature=self.config.temperature,
            )
        return loss


class GraphStep(Step):
    """The same step captured once as a CUDA graph and replayed: one launch instead of thousands."""

    _WARM = 3

    def __init__(self, model: nn.Module, config: TrainConfig, prepare: Prepare, teacher: nn.Module | None, device: torch.device) -> None:
        super().__init__(model, config, prepare, teacher, device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train on one batch of the size of the first; returns its mean loss, valid until the next step."""
        if self._graph is None:
            self._capture(images, labels)
        self._images.copy_(images)
        self._labels.copy_(labels)
        assert self._graph is not None
        self._graph.replay()
        return self._result

    def _capture(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._images, self._labels = images.clone(), labels.clone()
        # Warming up trains; what it changed is put back, so that the first replay is the first step.
        weights = copy.deepcopy(self.model.state_dict())
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(self._WARM):
                super().__call__(self._images, self._labels)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        self.model.load_state_dict(weights)
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = super().__call__(self._images, self._labels)


def autocast(device: torch.device, amp: str) -> torch.autocast:
    """Mixed precision on a GPU; nothing elsewhere, where it is slower than fp32."""
    return torch.autocast(device.type, dtype=_DTYPES.get(amp, torch.bfloat16), enabled=amp != "none" and device.type == "cuda")
