"""One step of a training run: losses on labels and on a teacher, gradients and the optimiser, optionally as one CUDA graph."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError
from stretch.train.recipe import TrainConfig
from stretch.transform.model import BranchedModel
from stretch.transform.refine import ReplayedStep


def distill_loss(scores: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the cross-entropy to the teacher's softened labels (Hinton et al. 2015), without its constant term."""
    return soft_label_losses(scores, teacher, temperature).mean()


def soft_label_losses(scores: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the cross-entropy to the teacher's softened labels per sample, (n,)."""
    soft = F.log_softmax(teacher / temperature, dim=1)
    return F.kl_div(F.log_softmax(scores / temperature, dim=1), soft, reduction="none", log_target=True).sum(1) * temperature**2


def weighted_distill_loss(scores: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the soft-label loss with lower weights where the student is already better (Zhou et al. 2021, eq. 10), as in paper 003.

    A sample's weight is 1 − exp(−s / t), where s and t are the cross-entropies of student
    and teacher to the label. It is near one while the student is far behind its teacher, near
    zero once it is ahead. No gradient flows through the weights.
    """
    with torch.no_grad():
        student = F.cross_entropy(scores, labels, reduction="none")
        taught = F.cross_entropy(teacher, labels, reduction="none").clamp_min(1e-6)
        weights = 1 - torch.exp(-student / taught)
    return (weights * soft_label_losses(scores, teacher, temperature)).mean()


def label_loss(scores: torch.Tensor, labels: torch.Tensor, teacher: torch.Tensor | None, config: TrainConfig) -> torch.Tensor:
    """Return the loss on labels, or with a teacher's scores the weighted sum of this loss and the distillation loss."""
    loss = F.cross_entropy(scores, labels, label_smoothing=config.label_smoothing)
    if teacher is None:
        return loss
    if config.distill_kind == "weighted":
        taught = weighted_distill_loss(scores, teacher, labels, config.temperature)
    else:
        taught = distill_loss(scores, teacher, config.temperature)
    return (1 - config.distill) * loss + config.distill * taught


class WithFeatures(nn.Module):
    """A branched network that returns its scores and its tensors at meeting points."""

    def __init__(self, model: BranchedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the scores, and the outputs of all segments but the last."""
        return segment_outputs(self.model, x)


def segment_outputs(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Run a branched network; return its scores and the outputs of all segments but the last."""
    assert isinstance(model, BranchedModel)
    outputs = []
    for part in model.design.segments:
        x = model.get_submodule(part.name)(x)
        outputs.append(x)
    return x, [output for output in outputs[:-1] if output.dim() == 4]


def feature_loss(features: list[torch.Tensor], targets: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean squared distance at meeting points, relative to the mean square of the teacher's tensors."""
    losses = []
    for a, b in zip(features, targets, strict=True):
        if a.shape != b.shape:
            raise StretchError(
                f"features of shape {tuple(a.shape[1:])} cannot be compared with the teacher's {tuple(b.shape[1:])}",
                "matching features needs `project` or `sum` joins",
            )
        losses.append(F.mse_loss(a.float(), b.float()) / b.float().square().mean().clamp_min(1e-12))
    return torch.stack(losses).mean()


def make_optimizer(parameters: Iterable[torch.Tensor], config: TrainConfig, rate: torch.Tensor) -> torch.optim.Optimizer:
    """Create the SGD or AdamW optimiser of the configuration."""
    weights = list(parameters)
    on_gpu = rate.is_cuda
    # PyTorch's fused SGD leaves its momentum uninitialised if a scaler finds infinite gradients in the first step.
    fused = on_gpu and config.amp != "fp16"
    momentum, decay = config.momentum, config.weight_decay
    if config.optimizer == "adamw":
        return torch.optim.AdamW(weights, rate, (momentum, 0.999), weight_decay=decay, capturable=on_gpu, fused=fused)
    return torch.optim.SGD(weights, rate, momentum, weight_decay=decay, nesterov=config.nesterov and momentum > 0, fused=fused)


class MeanWeights:
    """The running mean of a network's weights and statistics (Polyak averaging).

    The weight of the previous mean is (1 + n) / (10 + n) in the first steps, up to `decay`,
    so that the initial weights are forgotten quickly and short runs have a useful mean.

    Attributes:
        updates: Number of updates, as a tensor with the weights, so that a captured step counts too.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        # A shared tensor, as in bands of rows, has several names but one average.
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


Prepare = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class TrainingStep:
    """Forward, backward and update of one batch.

    Args:
        prepare: Function from uint8 images to the model's input, with augmentation by a generator.

    Attributes:
        rate: Learning rate, a tensor on the device.
        generator: Random generator of the augmentation.
        mean: Running mean of the weights, if the run keeps one.
        scaler: Scaler of fp16 losses, if the run needs one.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        prepare: Prepare,
        teacher: nn.Module | None,
        device: torch.device,
        *,
        labelled: bool = True,
    ) -> None:
        self.labelled = labelled
        self.model, self.config, self.prepare, self.teacher, self.device = model, config, prepare, teacher, device
        self.rate = torch.tensor(config.learning_rate, device=device)
        self.generator = torch.Generator(device).manual_seed(config.seed)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(self.parameters, config, self.rate)
        self.mean = MeanWeights(unwrap(model), config.ema) if config.ema > 0 else None
        scales = config.amp == "fp16" and device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type) if scales else None

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train on one batch; return its mean loss as a tensor on the device."""
        self.optimizer.zero_grad(set_to_none=False)
        total = torch.zeros((), device=self.device)
        parts = self.config.accumulate
        for part, part_labels in zip(images.chunk(parts), labels.chunk(parts), strict=True):
            loss = self._loss(part, part_labels) * (len(part) / len(images))
            total += loss.detach()
            self.scale_loss(loss).backward()
        self.update()
        return total

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss to differentiate, which is scaled up in fp16 because small gradients would vanish."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def update(self) -> None:
        """Clip the accumulated gradients, run the optimiser's step, and update the mean."""
        if self.config.clip > 0:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip, foreach=True)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.mean is not None:
            self.mean.update()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Use the averaged weights within the context, if the run keeps them."""
        if self.mean is not None:
            self.mean.swap()
        try:
            yield
        finally:
            if self.mean is not None:
                self.mean.swap()

    def _loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.prepare(images, self.generator)
        if self.config.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        features: list[torch.Tensor] = []
        with autocast(self.device, self.config.amp):
            if self.config.features > 0:
                scores, features = self.model(x)
            else:
                scores = self.model(x)
            soft, targets = self._taught(x)
        c = self.config
        if self.labelled:
            loss = label_loss(scores.float(), labels, None if soft is None else soft.float(), c)
        else:
            assert soft is not None
            loss = c.distill * distill_loss(scores.float(), soft.float(), c.temperature)
        return loss + c.features * feature_loss(features, targets) if targets else loss

    @torch.no_grad()
    def _taught(self, x: torch.Tensor) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """Return the teacher's scores, and its tensors at meeting points if the run matches features."""
        if self.teacher is None:
            return None, []
        if self.config.features > 0:
            return segment_outputs(self.teacher, x)
        return self.teacher(x), []


class GraphStep(TrainingStep):
    """A training step that is recorded as a CUDA graph after a few runs: one launch instead of thousands (`ReplayedStep`)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._replayed = ReplayedStep(self._train, self.device, [self.generator])
        #: Images and labels that the recorded step reads, and the loss that it writes; created with the first batch.
        self._batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train on one batch of the same size as the first; return its mean loss, valid until the next step."""
        if self._batch is None:
            self._batch = images.clone(), labels.clone(), torch.zeros((), device=self.device)
        read_images, read_labels, loss = self._batch
        read_images.copy_(images)
        read_labels.copy_(labels)
        self._replayed()
        return loss

    def _train(self) -> None:
        """Train on the current batch."""
        assert self._batch is not None
        images, labels, loss = self._batch
        loss.copy_(super().__call__(images, labels))


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside wrappers of distributed training and of the compiler."""
    while True:
        inner = getattr(model, "_orig_mod", None) or (model.module if isinstance(model, nn.parallel.DistributedDataParallel) else None)
        if inner is None:
            return model
        model = inner


def autocast(device: torch.device, amp: str) -> torch.autocast:
    """Return the context of mixed precision on a GPU; it is disabled elsewhere, where it is slower than fp32."""
    return torch.autocast(device.type, dtype=_DTYPES.get(amp, torch.bfloat16), enabled=amp != "none" and device.type == "cuda")
