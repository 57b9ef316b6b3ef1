"""Train a network epoch by epoch, resumable after any step."""

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from predictors.errors import StretchError
from stretch.train.distributed import World, share_statistics
from stretch.train.images import ImageSource, Normalise, crop_and_flip
from stretch.train.recipe import SandwichConfig, TrainConfig
from stretch.train.sandwich import SandwichStep
from stretch.train.step import GraphStep, TrainingStep, WithFeatures, autocast, unwrap
from stretch.train.supernet import Supernet
from stretch.transform.model import BranchedModel, BranchedSegment, to_channels_last


def learning_rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """Return the learning rate: a linear rise over `warmup` steps, then a half-cosine down to zero."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * done))


#: Steps between checks of the loss within an epoch; a check waits for the device.
_LOG_EVERY = 200


@dataclass(frozen=True)
class Epoch:
    """One row of a run's log."""

    epoch: int  # Number of the epoch, from 1.
    loss: float  # Mean training loss.
    accuracy: float | None  # Top-1 accuracy on the test set; None if not evaluated or without labels.
    seconds: float  # Training time in seconds, without evaluation.
    agreement: float | None = None  # Without labels: share of held-back images for which the network and the teacher answer the same class.

    @property
    def score(self) -> float | None:
        """Criterion of the best weights: accuracy, or agreement without labels; None if not measured."""
        return self.accuracy if self.accuracy is not None else self.agreement


class Diverged(StretchError):
    """The loss is NaN or infinite."""


class Run:
    """A training run that can be saved and resumed between any two steps.

    Args:
        sandwich: Sampling of a supernet; None for a single network.

    Attributes:
        step: Function that trains on a batch.
        epoch: Number of completed epochs.
        done: Number of completed steps of the current epoch.
        history: Finished epochs.
    """

    def __init__(
        self,
        model: nn.Module,
        images: tuple[ImageSource, ImageSource],
        config: TrainConfig,
        *,
        teacher: nn.Module | None = None,
        world: World | None = None,
        sandwich: SandwichConfig | None = None,
        labelled: bool = True,
    ) -> None:
        device = next(model.parameters()).device
        self.world = world or World(device=device)
        self.config = config
        train_set, test_set = images
        self.train_set, self.test_set = train_set.to(device), test_set.to(device)
        self.per_epoch = len(train_set) // config.batch
        if self.per_epoch == 0:
            raise StretchError(f"{len(train_set)} training images are less than one batch of {config.batch}", "choose a smaller batch")
        if config.batch % self.world.size:
            raise StretchError(f"a batch of {config.batch} cannot be shared by {self.world.size} processes", "choose a multiple of it")
        self.normalise = Normalise(*train_set.moments(), device)
        if config.channels_last:
            to_channels_last(model)
        set_parallel_branches(model, config.parallel_branches and device.type == "cuda" and not config.compile)
        if teacher is not None:
            teacher.to(device).eval()
        if teacher is None and not labelled:
            raise StretchError("without labels and without a teacher there is nothing to learn", "name a teacher")
        #: Reference of the evaluation without labels.
        self.reference = None if labelled else teacher
        torch.manual_seed(config.seed + self.world.rank)
        self.model = model
        self.step: TrainingStep
        if sandwich is not None:
            assert isinstance(model, Supernet)
            self.step = SandwichStep(model, config, self._prepare, teacher, device, sandwich, self.world)
        else:
            if config.sync_bn:
                self.model = share_statistics(model, self.world)
            self.model.train()
            used = teacher if config.distill > 0 or config.features > 0 else None
            alone = self.world.size == 1
            kind = GraphStep if config.graph and device.type == "cuda" and alone and config.amp != "fp16" else TrainingStep
            self.step = kind(self._wrap_model(device), config, self._prepare, used, device, labelled=labelled)
        self.epoch, self.done = 0, 0
        self.history: list[Epoch] = []
        self.losses = torch.zeros(self.per_epoch, device=device)

    def _wrap_model(self, device: torch.device) -> nn.Module:
        """Wrap the network for the step: with features, compiled, distributed."""
        model: nn.Module = self.model
        if self.config.features > 0:
            if not isinstance(model, BranchedModel):
                raise StretchError("features are matched at meeting points, this network has none", "set train.features = 0")
            model = WithFeatures(model)
        if self.world.size > 1:
            model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        if self.config.compile:
            compiled = torch.compile(model)
            assert isinstance(compiled, nn.Module)
            return compiled
        return model

    def _prepare(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        x = self.normalise(images)
        if self.config.augment == "none" or self.train_set.augmented:
            return x
        return crop_and_flip(x, 4 if self.config.augment == "crop" else 0, generator, (self.world.rank, self.world.size))

    def steps(self, evaluate_every: int = 10) -> Iterator[Epoch | None]:
        """Train to the end, yielding after every step: the epoch's row after its last step, otherwise None.

        Args:
            evaluate_every: Number of epochs between evaluations.
        """
        c, share = self.config, (self.world.rank, self.world.size)
        warmup, total = round(c.warmup_epochs * self.per_epoch), c.epochs * self.per_epoch
        while self.epoch < c.epochs:
            start = time.perf_counter()
            batches = self.train_set.epoch(self.epoch + 1, c.batch, c.seed, self.done, share)
            for images, labels in itertools.islice(batches, self.per_epoch - self.done):
                self.step.rate.fill_(learning_rate(self.epoch * self.per_epoch + self.done, total, warmup, c.learning_rate))
                self.losses[self.done] = self.step(images, labels)
                self.done += 1
                if self.done < self.per_epoch:
                    if self.done % _LOG_EVERY == 0:
                        self.check()
                    yield None
            self.check()
            if self.done < self.per_epoch:
                raise StretchError(f"epoch {self.epoch + 1} had {self.done} batches, expected were {self.per_epoch}", "images were skipped")
            loss = float(self.world.sum_(self.losses.mean())) / self.world.size
            self.epoch, self.done = self.epoch + 1, 0
            seconds = time.perf_counter() - start
            score = self.evaluate() if self.epoch == c.epochs or self.epoch % evaluate_every == 0 else None
            accuracy, agreement = (score, None) if self.reference is None else (None, score)
            self.history.append(Epoch(self.epoch, loss, accuracy, seconds, agreement))
            yield self.history[-1]

    def check(self) -> None:
        """Refuse losses of this epoch that are NaN or infinite."""
        values = self.losses[: self.done].tolist()
        bad = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
        if bad is not None:
            step = self.epoch * self.per_epoch + bad + 1
            raise Diverged(
                f"the loss is {values[bad]} in epoch {self.epoch + 1} (step {step})", "lower the learning rate or lengthen the warm-up"
            )

    def check_weights(self) -> None:
        """Refuse weights that are NaN or infinite, which the last step may have caused without an effect on a loss."""
        for name, value in unwrap(self.model).state_dict().items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                step = self.epoch * self.per_epoch + self.done
                where = f"epoch {self.epoch + (self.done > 0)} (step {step})"
                raise Diverged(f"`{name}` has values that are no numbers in {where}", "lower the learning rate or lengthen the warm-up")

    def evaluate(self) -> float:
        """Return the top-1 accuracy on the test set, or without labels the agreement with the teacher, of averaged weights if any."""
        with self.step.averaged():
            return evaluate(unwrap(self.model), self.test_set, self.normalise, self.config, self.reference)


class Listener:
    """Observer of a run in its first process; does nothing by default."""

    def note(self, message: str) -> None:
        """Receive a message for the user."""

    def stepped(self, run: Run) -> None:
        """Handle a completed step."""

    def finished(self, row: Epoch) -> None:
        """Handle a completed epoch."""


@torch.no_grad()
def evaluate(model: nn.Module, data: ImageSource, normalise: Normalise, config: TrainConfig, reference: nn.Module | None = None) -> float:
    """Return the top-1 accuracy, 0 to 1, of a map of classes that of its pixels; the model keeps its training or evaluation mode.

    Args:
        reference: Network in evaluation mode whose best classes replace the labels, so that the result is the agreement with it.
    """
    training = model.training
    model.eval()
    correct, count = None, 0
    # without gradients four times the batch fits into the memory of training
    for images, labels in data.batches(min(1000, 4 * config.batch)):
        x = normalise(images)
        if config.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with autocast(x.device, config.amp):
            right_class = labels if reference is None else reference(x).argmax(1)
            hits = (model(x).argmax(1) == right_class).sum()
        correct = hits if correct is None else correct + hits
        count += right_class.numel()
    model.train(training)
    return int(correct) / count if correct is not None else 0.0


def set_parallel_branches(model: nn.Module, parallel: bool) -> None:
    """Set whether segments of a branched model or a supernet run their branches on separate CUDA streams."""
    networks = [subnet.model for subnet in model.subnets] if isinstance(model, Supernet) else [model]
    for network in networks:
        for module in network.modules():
            if isinstance(module, BranchedSegment):
                module.parallel = parallel
