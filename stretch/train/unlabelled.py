"""The whole branched network after its original, by gradients on unlabelled images: no labels, no dataset, some minutes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from predictors.errors import StretchError
from stretch.capture import Captured
from stretch.train.distill import distill_loss, feature_loss, segment_outputs
from stretch.train.optimise import MeanWeights
from stretch.transform import BranchedModel, build
from stretch.transform.calibrate import MIN_IMAGES, whole_design

#: Images of a step.
BATCH = 48
#: Learning rate after the first steps, which it rises over; it falls to nothing along a half-cosine.
RATE, RISE = 5e-4, 0.05
#: Weight of the mean of weights so far, and of the decay of weights.
MEAN, DECAY = 0.995, 1e-4
#: Least share of a picture's side that a view shows, and share of a step's images that are mixed with others.
LEAST_VIEW, MIXED = 0.6, 0.5
#: How often it is looked whether the weights became better.
LOOKS = 20

#: Seconds left, step, loss.
Step = Callable[[str], None]


@dataclass(frozen=True)
class Refined:
    """What came of it.

    Args:
        before: Divergence from the original on the images that choose, as it came.
        after: That of the weights that were kept; at most `before`.
        steps: Steps that were taken.
        seconds: Wall time.
    """

    before: float
    after: float
    steps: int
    seconds: float


def refine_unlabelled(
    model: BranchedModel,
    captured: Captured,
    images: Sequence[torch.Tensor],
    chosen: Sequence[torch.Tensor],
    *,
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    step: Step = lambda doing: None,
) -> Refined:
    """Distil the original into its branched network with unlabelled images.

    Student and teacher see the same views: parts of a picture, mirrored, half of them mixed with another one,
    as many as time allows (Beyer et al. 2022, "Knowledge distillation: a good teacher is patient and consistent").
    The student learns the teacher's scores, or its outputs where they are no scores, and its tensors at the meeting
    points where they have the same shape. Batch-norms keep their statistics: a batch of views is not what they will meet.
    Of the weights on the way, those it came with among them, the ones stay whose scores are nearest to the original's on
    images that nothing was fitted to. They must not be among those of the calibration either, which a start fits too well.

    Args:
        model: Changed in place, in evaluation mode afterwards; calibrated is a better start than built.
        captured: The original.
        images: Batches of what the network reads, (n, channels, height, width).
        chosen: Batches of other images, for the choice.
        minutes: Wall time; the number of steps follows from the first ones.
        steps: Steps; counts instead of `minutes` if given, and makes the outcome depend on nothing else.
        seed: Of views.
        step: Called now and then with what was done.

    Raises:
        StretchError: If there are too few images, or neither time nor steps are given.
    """
    together, others = (torch.cat(list(some)) if some else torch.empty(0) for some in (images, chosen))
    if len(together) < MIN_IMAGES:
        raise StretchError(
            f"{len(together)} images are too few to refine a network with", f"give at least {MIN_IMAGES}, better some hundreds"
        )
    if not len(others):
        raise StretchError("there are no images to choose between the weights on the way", "hold some back from the others")
    if not steps and not minutes:
        raise StretchError("refining needs a number of minutes or steps", "give one of them")
    run = _Run(model, captured, together, others, seed)
    started = time.perf_counter()
    before = best = run.divergence()
    kept = _state(model)
    total = steps or run.affordable(60.0 * (minutes or 0.0))
    for number in range(total):
        run.step(number, total)
        if (number + 1) % max(1, total // LOOKS) == 0 or number + 1 == total:
            with run.mean():
                now = run.divergence()
                if now < best:
                    best, kept = now, _state(model)
            step(f"refine: step {number + 1} of {total}, divergence {best:.4f} of {before:.4f}")
    model.load_state_dict(kept)
    model.eval()
    return Refined(before, best, total, time.perf_counter() - started)


class _Run:
    """A student, its teacher and what they look at."""

    def __init__(self, model: BranchedModel, captured: Captured, images: torch.Tensor, chosen: torch.Tensor, seed: int) -> None:
        self.device = next(model.parameters()).device
        self.model = model.eval()
        self.teacher = build(captured, whole_design(captured, model.design)).to(self.device).eval().requires_grad_(False)
        self.fitted, self.chosen = images.to(self.device), chosen.to(self.device)
        self.generator = torch.Generator().manual_seed(seed)
        weights = [p for p in model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(weights, RATE, weight_decay=DECAY, fused=self.device.type == "cuda")
        self.average = MeanWeights(model, MEAN)

    def step(self, number: int, total: int) -> None:
        """One step of `total`."""
        rise = max(1.0, RISE * total)
        share = min(1.0, (number + 1) / rise) * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * number / total)).item())
        for group in self.optimiser.param_groups:
            group["lr"] = RATE * share
        x = self.views()
        with torch.no_grad():
            scores, targets = segment_outputs(self.teacher, x)
        with torch.enable_grad():
            own, values = segment_outputs(self.model, x)
            loss = _distance(own, scores)
            same = [(a, b) for a, b in zip(values, targets, strict=True) if a.shape == b.shape]
            if same:
                loss = loss + feature_loss([a for a, _ in same], [b for _, b in same])
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.average.update()

    @torch.no_grad()
    def views(self) -> torch.Tensor:
        """Views of images chosen at random: a part of each, mirrored or not, some mixed with others."""
        count, draw = min(BATCH, len(self.fitted)), self.generator
        chosen = torch.randint(len(self.fitted), (count,), generator=draw)
        size = LEAST_VIEW + (1 - LEAST_VIEW) * torch.rand(count, generator=draw)
        mirrored = 1.0 - 2.0 * torch.randint(2, (count,), generator=draw)
        shift = (2 * torch.rand(count, 2, generator=draw) - 1) * (1 - size)[:, None]
        mixes = torch.rand(count, generator=draw) * (torch.rand(count, generator=draw) < MIXED)
        other = torch.randperm(count, generator=draw)
        moved = torch.zeros(count, 2, 3)
        moved[:, 0, 0], moved[:, 1, 1], moved[:, :, 2] = size * mirrored, size, shift
        x = self.fitted[chosen.to(self.device)]
        grid = F.affine_grid(moved.to(self.device), list(x.shape), align_corners=False)
        x = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
        share = mixes.to(self.device)[:, None, None, None]
        return (1 - share) * x + share * x[other.to(self.device)]

    def mean(self) -> "_Mean":
        """The mean of the weights so far in place of the weights."""
        return _Mean(self.average)

    @torch.no_grad()
    def divergence(self) -> float:
        """How far the network's outputs are from the original's on the images that choose."""
        total = 0.0
        for x in self.chosen.split(BATCH):
            total += float(_distance(self.model(x), self.teacher(x))) * len(x)
        return total / len(self.chosen)

    def affordable(self, seconds: float) -> int:
        """Steps that fit into a time, from how long some take that change nothing."""
        state, best = _state(self.model), float("inf")
        # the first step is slow: memory is found, kernels are chosen
        for _ in range(3):
            start = time.perf_counter()
            self.step(0, 1 << 30)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            best = min(best, time.perf_counter() - start)
        self.model.load_state_dict(state)
        self.optimiser.state.clear()
        self.average = MeanWeights(self.model, MEAN)
        return max(1, int(0.9 * seconds / best))


class _Mean:
    """For a while the mean of weights takes their place."""

    def __init__(self, average: MeanWeights) -> None:
        self._average = average

    def __enter__(self) -> None:
        self._average.swap()

    def __exit__(self, *_: object) -> None:
        self._average.swap()


def _distance(outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Divergence of class scores; of other outputs the squared error over the square of the wanted ones."""
    if wanted.dim() == 2 and wanted.shape[1] > 1:
        return distill_loss(outputs, wanted, 1.0)
    return F.mse_loss(outputs, wanted) / wanted.square().mean().clamp_min(1e-12)


def _state(model: BranchedModel) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}
