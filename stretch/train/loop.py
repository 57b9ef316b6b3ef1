"""Train a network on an image set held in memory."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch
from torch import nn

from predictors.errors import StretchError
from stretch.train.augment import Normalise, crop_and_flip
from stretch.train.config import TrainConfig
from stretch.train.data import ImageSet
from stretch.train.schedule import learning_rate
from stretch.train.step import GraphStep, Prepare, Step, autocast
from stretch.transform.model import Segment


@dataclass(frozen=True)
class Epoch:
    """One row of a run's log.

    Args:
        epoch: From 1.
        loss: Mean training loss.
        accuracy: Top-1 on the test set, or None where it was not evaluated.
        seconds: Of training, without evaluation.
    """

    epoch: int
    loss: float
    accuracy: float | None
    seconds: float


@dataclass
class History:
    """A finished run: its epochs and the final test accuracy."""

    epochs: list[Epoch] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """Top-1 after the last epoch."""
        return next(e.accuracy for e in reversed(self.epochs) if e.accuracy is not None)

    def rows(self) -> list[dict[str, float | int | None]]:
        """The log as plain rows."""
        return [asdict(e) for e in self.epochs]


def train(
    model: nn.Module,
    train_set: ImageSet,
    test_set: ImageSet,
    config: TrainConfig,
    *,
    teacher: nn.Module | None = None,
    evaluate_every: int = 10,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> History:
    """Train `model` in place on the device it is on.

    Args:
        model: Any classifier; a `BranchedModel` runs its branches side by side.
        train_set: Moved to the model's device.
        test_set: Moved to the model's device.
        config: The run.
        teacher: Gives soft labels where `config.distill` is above zero.
        evaluate_every: Epochs between evaluations; the last epoch is always evaluated.
        on_epoch: Called after each epoch.

    Raises:
        StretchError: If the set has less than one batch, or the loss is no
            longer a number; names the epoch.
    """
    device = next(model.parameters()).device
    train_set, test_set = train_set.to(device), test_set.to(device)
    per_epoch = len(train_set) // config.batch
    if per_epoch == 0:
        raise StretchError(f"{len(train_set)} training images are less than one batch of {config.batch}", "choose a smaller batch")
    if config.channels_last:
        model.to(memory_format=torch.channels_last)
    set_parallel_branches(model, config.parallel_branches and device.type == "cuda")
    normalise = Normalise(*train_set.moments(), device)
    prepare: Prepare = lambda images: crop_and_flip(normalise(images))  # noqa: E731 - a name for the step to hold
    if teacher is not None:
        teacher.to(device).eval()
    torch.manual_seed(config.seed)
    order = torch.Generator().manual_seed(config.seed)
    kind = GraphStep if config.graph and device.type == "cuda" else Step
    step = kind(model.train(), config, prepare, teacher if config.distill > 0 else None, device)
    history, done = History(), 0
    for number in range(1, config.epochs + 1):
        start, total = time.perf_counter(), torch.zeros((), device=device)
        for images, labels in train_set.batches(config.batch, order):
            step.rate.fill_(learning_rate(done, config.epochs * per_epoch, round(config.warmup_epochs * per_epoch), config.learning_rate))
            total += step(images, labels)
            done += 1
        loss = float(total) / per_epoch
        seconds = time.perf_counter() - start
        if not loss == loss or loss in (float("inf"), float("-inf")):
            raise StretchError(f"the loss is {loss} in epoch {number} (step {done})", "lower the learning rate or lengthen the warm-up")
        last = number == config.epochs
        accuracy = evaluate(model, test_set, normalise, config) if last or number % evaluate_every == 0 else None
        history.epochs.append(Epoch(number, loss, accuracy, seconds))
        on_epoch(history.epochs[-1])
    return history


def evaluate(model: nn.Module, data: ImageSet, normalise: Normalise, config: TrainConfig) -> float:
    """Top-1 accuracy, 0 to 1; the model is left in the mode it was in."""
    training = model.training
    model.eval()
    device = data.images.device
    right = torch.zeros((), dtype=torch.int64, device=device)
    with torch.inference_mode(), autocast(device, config.amp):
        for images, labels in data.batches(1000):
            x = normalise(images)
            if config.channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            right += (model(x).argmax(1) == labels).sum()
    model.train(training)
    return int(right) / len(data)


def set_parallel_branches(model: nn.Module, parallel: bool) -> None:
    """Whether segments of a branched model run their branches on CUDA streams of their own."""
    for module in model.modules():
        if isinstance(module, Segment):
            module.parallel = parallel
