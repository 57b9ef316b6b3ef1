"""Refinement of a network by gradient descent on unlabelled images: first segment by segment, then end to end, then with int8 rounding."""

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from predictors.errors import StretchError
from scheduler.progress import Progress, silent
from stretch.network.capture import Captured
from stretch.planning.design.scale import design_segments
from stretch.transform.build import build, is_original
from stretch.transform.calibrate.run import undivided_design
from stretch.transform.calibrate.split import Images, held_back
from stretch.transform.calibrate.statistics import norms, renew_statistics
from stretch.transform.model import BACKBONE, BranchedModel, to_channels_last
from stretch.transform.tensors import (
    errors_as_damaged,
    evenly_spread,
    load_optimizer,
    optimizer_tensors,
    read_state,
    read_tensors,
    under,
    write_checkpoint,
)

#: Number of steps before the recording, in which libraries choose kernels and the optimiser creates its state.
WARMUP_STEPS = 3


class ReplayedStep:
    """A step that reads and writes the same tensors each time.

    On a GPU it is recorded as a CUDA graph after a few runs and then replayed, which is faster than launching the thousand small
    kernels of a network one by one. On other devices it is called.

    Args:
        step: The step. The tensors that it reads keep their memory, and it copies no number to the CPU.
        device: Device on which it runs.
        generators: Its sources of random numbers, on the same device.
    """

    def __init__(self, step: Callable[[], None], device: torch.device, generators: Sequence[torch.Generator] = ()) -> None:
        self._step, self._generators = step, generators
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._count = 0

    def __call__(self) -> None:
        """Run the step."""
        if self._graph is not None:
            self._graph.replay()
            return
        if self._stream is None:
            self._step()
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            self._step()
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        self._count += 1
        if self._count == WARMUP_STEPS:
            self._graph = torch.cuda.CUDAGraph()
            for generator in self._generators:
                self._graph.register_generator_state(generator)
            with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
                self._step()


def scheduled_adam(parameters: Sequence[torch.Tensor], rate: float, **settings: Any) -> tuple[torch.optim.Adam, Callable[[float], object]]:
    """Return an Adam whose learning rate can change between replayed steps, and the function that sets it."""
    device = parameters[0].device
    if device.type != "cuda":
        adam = torch.optim.Adam(parameters, rate, **settings)
        return adam, lambda value: adam.param_groups[0].update(lr=value)
    number = torch.tensor(rate, device=device)
    return torch.optim.Adam(parameters, number, fused=True, capturable=True, **settings), number.fill_


FILE, VERSION = "refinement.safetensors", 1

#: Seconds between two checkpoints, the maximum loss by an interruption.
CHECKPOINT_INTERVAL_S = 30.0

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Progress of a refinement."""

    version: int  # Version of this format.
    identity: dict[str, str]  # Fingerprints of the refined network, its images and its settings.
    phase: _Count  # Number of the current phase.
    steps: _Count  # Completed steps.
    seconds: _Amount  # Wall time of the completed steps, in seconds.
    looks: _Count  # Number of evaluations so far.
    least: _Amount  # Error of the best state so far.


class Checkpoint:
    """A folder with the state of one refinement.

    Args:
        folder: Created at the first write; it has no other content.
        every_s: Seconds between two writes; `CHECKPOINT_INTERVAL_S` if None.
    """

    def __init__(self, folder: Path, every_s: float | None = None) -> None:
        self.file = folder / FILE
        self._interval_s, self._last_write = CHECKPOINT_INTERVAL_S if every_s is None else every_s, time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._last_write >= self._interval_s

    def write(self, done: Done, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the previous checkpoint.

        Raises:
            StretchError: If the disk is full or the folder cannot be written.
        """
        write_checkpoint(self.file, done, tensors)
        self._last_write = time.monotonic()

    def read(self, identity: Mapping[str, str]) -> tuple[Done, dict[str, torch.Tensor]] | None:
        """Read the last checkpoint; None if there is none.

        Args:
            identity: Fingerprints of the refinement that is to continue.

        Raises:
            StretchError: If the checkpoint is damaged, or belongs to another refinement.
        """
        if not self.file.exists():
            return None
        done = read_state(self.file, Done, self._start_over_hint)
        tensors, _ = read_tensors(self.file)
        if done.version != VERSION:
            raise StretchError(f"{self.file} has version {done.version}, this nn-stretch goes on from {VERSION}", self._start_over_hint)
        for name, expected in identity.items():
            if done.identity.get(name) != expected:
                raise StretchError(
                    f"{self.file} is of a refinement with other {name}", f"go on with the {name} of before, or {self._start_over_hint}"
                )
        return done, tensors

    def errors_as_damaged(self) -> AbstractContextManager[None]:
        """Attribute errors in a block to the checkpoint's file."""
        return errors_as_damaged(self.file, self._start_over_hint)

    def remove(self) -> None:
        """Remove the checkpoint, and its folder if that is empty."""
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)
            self.file.parent.rmdir()

    @property
    def _start_over_hint(self) -> str:
        return f"remove {self.file} to start over"


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of names, shapes and numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


#: Share of a segment's input that is taken from the original while the segment is refined alone (Wei et al. 2022, QDrop).
DROP_PROBABILITY = 0.5


class RoundedNetwork(Protocol):
    """A branched network that computes with rounded weights and tensors (`stretch.stages.rounded`).

    Attributes:
        scales: Scales of all tensors that are rounded to int8, (n,).
        zeros: Zero points of these tensors, (n,).
    """

    scales: torch.Tensor
    zeros: torch.Tensor

    def segment(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return the output of one segment for its input."""
        ...


#: Creates the rounded form of a network, which shares its weights; batches of images give the ranges of its tensors.
Rounding = Callable[[BranchedModel, Sequence[torch.Tensor]], RoundedNetwork]


@dataclass(frozen=True)
class SegmentPair:
    """One segment in both networks."""

    name: str
    end: str  # Name of the tensor at its end.
    branched: nn.Module
    original: nn.Module  # The same segment of the original.


@dataclass
class SegmentErrors:
    """Squared error over square for one batch, each a scalar."""

    #: Errors of the segments in order, if both networks have the same channels; the last is the mean over the outputs.
    meeting: list[torch.Tensor] = field(default_factory=list)
    #: Error of the classifier's input; None without a classifier, or if its channels differ from the original's.
    features: torch.Tensor | None = None

    def loss(self, apart: bool) -> torch.Tensor:
        """Return the sum if segments are refined alone; otherwise outputs or features count as much as the mean of the meeting points.

        Features are the best target for few images (Wang and Wu 2023, "Practical network acceleration with tiny sets").
        """
        *inner, output = self.meeting
        ends = output if self.features is None else output + self.features
        if not inner:
            return ends
        together = torch.stack(inner)
        return ends + (together.sum() if apart else together.mean())


class SegmentPairs:
    """The segments of a branched network from the first that differs from the original's, and the rest of the network.

    Attributes:
        parameters: Weights of these segments, and of the parts that read their outputs.
        count: Number of these segments that have several branches.
        norms: Batch norms of these segments, except in bands or channels, whose branches see parts of an image.
        rounded: Modules that compute all segments of the branched network; None if it computes the segments itself.
    """

    def __init__(self, model: BranchedModel, captured: Captured) -> None:
        original = build(captured, undivided_design(captured, model.design)).to(next(model.parameters()).device)
        if next(original.parameters()).is_cuda:  # depthwise convolutions are three times faster with channels last
            original, model = map(to_channels_last, (original, model))
        stages = [
            SegmentPair(part.name, part.end, model.get_submodule(part.name), original.get_submodule(part.name))
            for part in model.design.segments
        ]
        kept = map(is_original, model.design.segments, design_segments(captured.graph, model.design))
        same = next((number for number, same_as_original in enumerate(kept) if not same_as_original), len(stages))
        self._branched, self._original = model, original
        self.rounded: RoundedNetwork | None = None
        self._before, self._stages = stages[:same], stages[same:]
        modules = [*(stage.branched for stage in self._stages), *(model.after if self._stages else ())]
        self.parameters = list(dict.fromkeys(p for module in modules for p in module.parameters()))
        self._scaled = [not part.shares_weights for part in model.design.segments[same:]]
        self.count = sum(not part.whole for part in model.design.segments[same:])
        self.norms = [norm for stage, scaled in zip(self._stages, self._scaled, strict=True) if scaled for norm in norms(stage.branched)]

    def errors(self, x: torch.Tensor, apart: bool, generator: torch.Generator) -> SegmentErrors:
        """Return the errors of the branched network on a batch.

        Args:
            x: Input of both networks, (n, channels, height, width).
            apart: Whether each segment is judged alone: part of its input is the original's, and
                no gradient flows to earlier segments.
            generator: Chooses that part; on the device of `x`.
        """
        original_values = self._segment_inputs(x)
        branched_values = dict(original_values) if self.rounded is None else self._segment_inputs(x, original=False)
        branched_x, original_x = branched_values[BACKBONE], original_values[BACKBONE]
        measured = SegmentErrors()
        for stage in self._stages:
            if apart and branched_x.shape == original_x.shape:
                chosen = torch.rand(branched_x.shape, generator=generator, device=branched_x.device) < DROP_PROBABILITY
                branched_x = torch.where(chosen, original_x, branched_x.detach())
            with _recorded_features(stage.branched) as branched_features:
                branched_x = branched_values[stage.end] = self._run_segment(stage, branched_x)
            with torch.no_grad(), _recorded_features(stage.original) as original_features:
                original_x = original_values[stage.end] = stage.original(original_x)
            if branched_x.shape == original_x.shape:
                measured.meeting.append(relative_error(branched_x, original_x))
        if not self._is_chain:
            with torch.no_grad():
                expected = self._results(self._original, original_values)
            measured.meeting.append(mean_error(self._results(self._branched, branched_values), expected))
            return measured
        if branched_features and original_features and branched_features[-1].shape == original_features[-1].shape:
            measured.features = relative_error(branched_features[-1], original_features[-1])
        return measured

    @torch.no_grad()
    def outputs(self, images: torch.Tensor, batch: int, *, original: bool) -> list[torch.Tensor]:
        """Return the outputs of one of the networks, each (n, …).

        Args:
            images: Input of the network, (n, channels, height, width).
        """
        results = []
        for x in images.split(batch):
            values = self._segment_inputs(x, original=original)
            value = values[BACKBONE]
            for stage in self._stages:
                value = values[stage.end] = stage.original(value) if original else self._run_segment(stage, value)
            results.append(self._results(self._original if original else self._branched, values))
        return [torch.cat(parts) for parts in zip(*results, strict=True)]

    @torch.no_grad()
    def renew(self, images: torch.Tensor, batch: int) -> None:
        """Recompute the statistics of `norms` in order, each from inputs with the new statistics of earlier segments."""
        arriving = [self._segment_inputs(x)[BACKBONE] for x in images.split(batch)]
        for stage, scaled in zip(self._stages, self._scaled, strict=True):
            if scaled:
                renew_statistics(stage.branched, arriving)
            arriving = [stage.branched(x) for x in arriving]

    @property
    def _is_chain(self) -> bool:
        """Whether the network returns only the end of its last segment."""
        return not self._branched.sides and len(self._branched.original_outputs) == 1

    @torch.no_grad()
    def _segment_inputs(self, x: torch.Tensor, *, original: bool = True) -> dict[str, torch.Tensor]:
        """Return a network's tensors before the first differing segment, by name; `BACKBONE` is that segment's input."""
        values = self._original.beginning([x])
        value = values.pop(BACKBONE)
        for stage in self._before:
            value = values[stage.end] = stage.original(value) if original else self._run_segment(stage, value)
        return values | {BACKBONE: value}

    def _run_segment(self, stage: SegmentPair, x: torch.Tensor) -> torch.Tensor:
        """Return the output of a segment of the branched network."""
        output: torch.Tensor = stage.branched(x) if self.rounded is None else self.rounded.segment(stage.name, x)
        return output

    def _results(self, model: BranchedModel, values: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs of one of the networks, from the ends of its segments."""
        tensors = model.ending(values)
        return [tensors[name] for name in model.original_outputs]


def relative_error(branched: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """Return the squared error over the square of the original, a scalar."""
    return (branched.float() - original.float()).square().sum() / original.float().square().sum().clamp_min(1e-12)


def mean_error(branched: Sequence[torch.Tensor], original: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean relative error of several outputs, with equal weights regardless of their magnitudes."""
    return torch.stack([relative_error(a, b) for a, b in zip(branched, original, strict=True)]).mean()


@contextlib.contextmanager
def _recorded_features(segment: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Record the input of a segment's last linear layer, the classifier's features; nothing without such a layer."""
    features: list[torch.Tensor] = []
    layer = next((layer for layer in reversed(list(segment.modules())) if isinstance(layer, nn.Linear)), None)
    handle = None if layer is None else layer.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    try:
        yield features
    finally:
        if handle is not None:
            handle.remove()


#: Minimum share of an image's area that a view shows.
MIN_AREA = 0.1
#: Maximum ratio of a view's width to its height in the image, and of its height to its width.
MAX_ASPECT = 4 / 3
#: Share of the views into which another view is blended, with a weight of up to a half.
BLEND_PROBABILITY = 0.5
#: Share of the views that contain a rectangle of another view, and the range of its sides over the view's (Yun et al. 2019, "CutMix").
PASTE_PROBABILITY, MIN_SIDE, MAX_SIDE = 0.5, 0.3, 0.8
#: Standard deviation of the number added to each colour, and half the range of contrasts, relative to the deviation of the images.
LIGHT_CHANGE = 0.2


class Views:
    """Random crops of unlabelled images, half of them mirrored, some with others blended or pasted in, with changed colours and contrast.

    They need not look natural, because the original computes the target for each of them (Beyer et al. 2022,
    "Knowledge distillation: a good teacher is patient and consistent"). Only the images and one batch are in memory.

    Args:
        images: Images as the network reads them, (n, channels, height, width).
        seed: Seed of this object's own random numbers, which are the same on every device.
        synthetic: Images synthesised from the network; if given, half of the views show these.

    Attributes:
        random: Generator with the state for the next views.
    """

    def __init__(self, images: torch.Tensor, seed: int = 0, synthetic: torch.Tensor | None = None) -> None:
        self.images, self._synthetic = images, synthetic
        self.random = torch.Generator().manual_seed(seed)
        self._deviation = float(images.std())

    def draw(self, count: int) -> torch.Tensor:
        """Return random views, (count, channels, height, width)."""
        crops = self.images[self._to_device(torch.randint(len(self.images), (count,), generator=self.random))]
        if self._synthetic is not None:
            half = count // 2
            chosen = torch.randint(len(self._synthetic), (half,), generator=self.random)
            crops[:half] = self._synthetic[chosen.to(self._synthetic.device)].to(crops.device, non_blocking=True)
        views = F.grid_sample(crops, F.affine_grid(self._windows(count), list(crops.shape), False), "bilinear", "reflection", False)
        blended = self._uniform(0, 0.5, count, 1, 1, 1) * (self._uniform(0, 1, count, 1, 1, 1) < BLEND_PROBABILITY)
        views = torch.lerp(views, views[self._to_device(torch.randperm(count, generator=self.random))], blended)
        shift = self._to_device(torch.randn(count, views.shape[1], 1, 1, generator=self.random)) * (LIGHT_CHANGE * self._deviation)
        views = views * self._uniform(1 - LIGHT_CHANGE, 1 + LIGHT_CHANGE, count, 1, 1, 1) + shift
        shuffled = views[self._to_device(torch.randperm(count, generator=self.random))]
        return torch.where(self._rectangles(count, *views.shape[2:]), shuffled, views).contiguous(memory_format=torch.channels_last)

    def _rectangles(self, count: int, height: int, width: int) -> torch.Tensor:
        """Return the mask of pixels from another view, (count, 1, height, width); rectangles may extend over the border."""
        pasted = self._uniform(0, 1, count, 1, 1, 1) < PASTE_PROBABILITY
        size = self._uniform(MIN_SIDE, MAX_SIDE, count, 1, 1, 1)
        top, left = (self._uniform(MIN_SIDE - MAX_SIDE, 1, count, 1, 1, 1) for _ in range(2))
        down = self._to_device((torch.arange(height) + 0.5) / height).reshape(1, 1, height, 1)
        across = self._to_device((torch.arange(width) + 0.5) / width).reshape(1, 1, 1, width)
        return pasted & (down > top) & (down < top + size) & (across > left) & (across < left + size)

    def _windows(self, count: int) -> torch.Tensor:
        """Return the position of each view in its image, as an affine map, (count, 2, 3)."""
        area, ratio = self._uniform(MIN_AREA, 1, count), MAX_ASPECT ** self._uniform(-1, 1, count)
        width, height = (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)
        across, down = ((1 - size) * self._uniform(-1, 1, count) for size in (width, height))
        mirrored = torch.where(self._uniform(0, 1, count) < 0.5, -1.0, 1.0)
        nothing = torch.zeros_like(width)
        return torch.stack([width * mirrored, nothing, across, nothing, height, down], 1).reshape(count, 2, 3)

    def _uniform(self, low: float, high: float, *shape: int) -> torch.Tensor:
        return self._to_device(low + (high - low) * torch.rand(*shape, generator=self.random))

    def _to_device(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.to(self.images.device, non_blocking=True)


#: Minimum number of images, some of which are held back.
MIN_IMAGES = 16
#: Maximum number of images for the statistics of batch norms, and the minimum batch for statistics.
STATISTICS, FEWEST = 128, 8
#: Bytes of activations that a step may hold, on a CPU and on a GPU; larger batches are computed in parts.
CPU_BYTES, GPU_BYTES = 2**31, 2**34


@dataclass(frozen=True)
class Refinement:
    """Settings of a refinement."""

    minutes: float | None = None  # Maximum wall time in minutes; None for no bound.
    steps: int | None = None  # Maximum number of steps; None for no bound.
    batch: int = 64  # Views per step.
    #: Maximum learning rate of Adam. It is a quarter if all segments are refined together, a tenth without batch norms, a twentieth with
    #: int8 rounding. In each phase it rises at first and falls to zero with the cosine of the completed share.
    rate: float = 1e-3
    apart: float = 0.3  # Share of the work in which each segment is refined alone (block reconstruction: Li et al. 2021, BRECQ).
    rounded: float = 0.2  # Last share of the work, with int8 rounding, if a processor computes in int8.
    looks: int = 20  # Number of evaluations on the held-back images.
    seed: int = 0  # Seed of views and batches.


@dataclass(frozen=True)
class Refined:
    """Result of a refinement: squared error of the outputs over their square, on held-back images."""

    before: float  # Error before the refinement.
    after: float  # Error of the best state, which may be the first one.
    images: int  # Number of held-back images.
    steps: int  # Completed steps.
    seconds: float  # Wall time.
    rounded_before: float | None = None  # Error with int8 rounding before the steps that round; None without int8.
    rounded_after: float | None = None  # Error with int8 rounding of the best state.


#: Factors of the learning rate: all segments together; the same without batch norms (at the full rate, errors grew tenfold); int8 rounding.
_JOINT_RATE, _NO_NORM_RATE, _ROUNDED_RATE = 0.25, 0.1, 0.05
#: Evaluated and kept weights are exponential moving averages over the steps with this decay, which is lower in the first steps.
_EMA_DECAY = 0.998
#: Share of a phase in which the learning rate rises, and the fraction of it at the start.
_WARMUP_SHARE, _FIRST_RATE = 0.1, 1e-3


def refine(
    model: BranchedModel,
    captured: Captured,
    images: Images,
    settings: Refinement,
    progress: Progress = silent,
    checkpoint: Checkpoint | None = None,
    rounding: Rounding | None = None,
) -> Refined:
    """Bring a network closer to its original by gradients, without labels.

    Random views of the images (`Views`) are drawn for each step, and the original computes their targets.
    The images that calibration held back are held back here too. The best state on them is kept, which may be
    the first one, so that the network never gets worse on them. While each segment is refined alone,
    batch norms normalise by the present batch, so that large steps suit all layers. For evaluations they use the statistics
    of the images. When all segments are refined together, statistics are fixed and steps are small. If processors compute in
    int8, the last steps and their evaluations use the rounded network. Segments before the
    first that differs are not changed.

    Args:
        model: Network, preferably calibrated; changed in place, in evaluation mode afterwards, on its device.
        images: Images to fit to. If given, half of the views show synthetic ones, which are never held back and give no statistics.
        settings: Minutes or steps must be given.
        progress: Called regularly with the completed share.
        checkpoint: Written regularly. If it has the state of an interrupted refinement of the same network, images and settings,
            that refinement continues with the same result as without the interruption. It remains when the refinement is done.
        rounding: Creates the rounded network if processors compute in int8.

    Raises:
        StretchError: If there are too few images, neither minutes nor steps are given, or the checkpoint is damaged,
            cannot be written or belongs to another refinement.
    """
    return _RefinementRun(model, captured, images, settings, progress, checkpoint, rounding).run()


@dataclass(frozen=True)
class _Phase:
    """Steps of one kind, between two shares of the work."""

    start: float
    stop: float
    apart: bool = False  # Whether each segment is refined alone.
    rounds: bool = False  # Whether the network is refined with int8 rounding.


class _Average:
    """A running average of parameters, which forgets the first steps quickly."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters, self.weights, self.steps = parameters, [parameter.detach().clone() for parameter in parameters], 0

    def update(self) -> None:
        """Move the average towards the present parameters."""
        decay = min(_EMA_DECAY, (1 + self.steps) / (10 + self.steps))
        get_ema_multi_avg_fn(decay)(self.weights, self.parameters, None)
        self.steps += 1

    @contextlib.contextmanager
    @torch.no_grad()
    def in_use(self) -> Iterator[None]:
        """Copy the average into the parameters within the context, and restore them afterwards."""
        current = [parameter.detach().clone() for parameter in self.parameters]
        torch._foreach_copy_(list(self.parameters), self.weights)
        yield
        torch._foreach_copy_(list(self.parameters), current)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state for a checkpoint."""
        return {f"average.{number}": weight for number, weight in enumerate(self.weights)} | {"averaged": torch.tensor(self.steps)}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the state of a checkpoint; without one nothing changes."""
        for name, weight in under(tensors, "average.").items():
            self.weights[int(name)].copy_(weight)
        self.steps = int(tensors.get("averaged", 0))


class _RefinementRun:
    """One refinement."""

    def __init__(
        self,
        model: BranchedModel,
        captured: Captured,
        images: Images,
        settings: Refinement,
        progress: Progress,
        checkpoint: Checkpoint | None,
        rounding: Rounding | None,
    ) -> None:
        count = sum(len(batch) for batch in images.fitted)
        if count < MIN_IMAGES:
            raise StretchError(f"{count} images are too few to refine with", f"give at least {MIN_IMAGES}, better some hundreds")
        if settings.minutes is None and settings.steps is None:
            raise StretchError("refinement without end", "say how many minutes or steps it may take")
        self._model, self._settings, self._progress, self._checkpoint = model.eval(), settings, progress, checkpoint
        self._device = next(model.parameters()).device
        all_images = torch.cat(images.fitted).to(self._device).contiguous(memory_format=torch.channels_last)
        synthetic_images = torch.cat(images.synthetic) if images.synthetic else None
        self._identity = (
            {}
            if checkpoint is None
            else _identity(model, captured, {"images": all_images, "synthetic": synthetic_images}, settings, rounds=rounding is not None)
        )
        self._resumed = None if checkpoint is None else checkpoint.read(self._identity)
        self._pairs = SegmentPairs(model, captured)
        is_held_back = held_back(count).to(self._device)
        training_images, self._held_back = all_images[~is_held_back], all_images[is_held_back]
        self._views = Views(training_images, settings.seed, None if synthetic_images is None else synthetic_images.to(self._device))
        self._statistics_images = evenly_spread(training_images, STATISTICS)
        activations = 4 * sum(prod(op.shape) for op in model.graph.ops) // model.graph.input.shape[0]
        limit = GPU_BYTES if self._device.type == "cuda" else CPU_BYTES
        self._micro_batch = max(1, min(settings.batch, limit // activations))
        # statistics of a few images would differ too much from the data's
        self._can_use_batch_statistics = bool(self._pairs.norms) and min(self._micro_batch, len(self._statistics_images)) >= FEWEST
        self._targets = self._pairs.outputs(self._held_back, self._micro_batch, original=True)
        self._mixing = torch.Generator(self._device).manual_seed(settings.seed)
        self._rounding, self._rounded_before = rounding, 0.0
        self._phase, self._steps, self._evaluations, self._start = 0, 0, 0, time.perf_counter()
        self._initial_error = self._best_error = self._error()
        self._best = self._state()

    def run(self) -> Refined:
        """Run all phases."""
        # without parameters, the whole network is the original's
        if self._pairs.parameters:
            phases, tensors = self._phases(), self._resume()
            while self._phase < len(phases):
                if phases[self._phase].stop > phases[self._phase].start:
                    self._run_phase(phases[self._phase], tensors)
                tensors = {}
                self._phase += 1
                self._write({})
        if self._pairs.rounded is None:
            return Refined(self._initial_error, self._best_error, len(self._held_back), self._steps, self._seconds())
        self._pairs.rounded, error = None, self._best_error
        return Refined(self._initial_error, self._error(), len(self._held_back), self._steps, self._seconds(), self._rounded_before, error)

    def _phases(self) -> list[_Phase]:
        """Return the phases: each segment alone, all together, all with int8 rounding."""
        rounding_start = 1.0 if self._rounding is None else 1 - self._settings.rounded
        # a single segment is the whole network, and whole networks need small steps
        joint_start = min(self._settings.apart if self._pairs.count > 1 else 0.0, rounding_start)
        return [_Phase(0.0, joint_start, apart=True), _Phase(joint_start, rounding_start), _Phase(rounding_start, 1.0, rounds=True)]

    def _resume(self) -> dict[str, torch.Tensor]:
        """Restore the checkpoint's state, if there is one, and return its tensors, including the optimiser's."""
        if self._checkpoint is None or self._resumed is None:
            return {}
        done, tensors = self._resumed
        with self._checkpoint.errors_as_damaged():
            self._model.load_state_dict(under(tensors, "best."))
            self._best = self._state()
            self._model.load_state_dict(under(tensors, "model."))
            self._views.random.set_state(tensors["random.views"])
            self._mixing.set_state(tensors["random.mixing"])
            if "rounding.scales" in tensors:
                self._start_rounding(tensors)
        self._phase, self._steps, self._evaluations, self._best_error = done.phase, done.steps, done.looks, done.least
        self._start -= done.seconds
        return tensors

    def _write(self, phase_tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a checkpoint, if one is wanted, with the state of a phase in progress."""
        if self._checkpoint is None:
            return
        tensors = {f"model.{key}": value for key, value in self._model.state_dict().items()}
        tensors |= {f"best.{key}": value for key, value in self._best.items()}
        tensors |= {"random.views": self._views.random.get_state(), "random.mixing": self._mixing.get_state()}
        if (rounded := self._pairs.rounded) is not None:
            tensors |= {"rounding.scales": rounded.scales, "rounding.zeros": rounded.zeros}
            tensors["rounding.before"] = torch.tensor(self._rounded_before, dtype=torch.float64)
        done = Done(
            version=VERSION,
            identity=self._identity,
            phase=self._phase,
            steps=self._steps,
            seconds=self._seconds(),
            looks=self._evaluations,
            least=self._best_error,
        )
        self._checkpoint.write(done, tensors | dict(phase_tensors))

    def _start_rounding(self, checkpoint_tensors: Mapping[str, torch.Tensor]) -> None:
        """Simulate int8 rounding from now on, with the ranges of the current tensors or of a checkpoint."""
        assert self._rounding is not None
        rounded = self._pairs.rounded = self._rounding(self._model, self._statistics_images.split(self._micro_batch))
        if checkpoint_tensors:
            with torch.no_grad():
                rounded.scales.copy_(checkpoint_tensors["rounding.scales"])
                rounded.zeros.copy_(checkpoint_tensors["rounding.zeros"])
            self._rounded_before = float(checkpoint_tensors["rounding.before"])
        else:
            self._rounded_before = self._best_error = self._error()

    def _run_phase(self, phase: _Phase, checkpoint_tensors: dict[str, torch.Tensor]) -> None:
        """Run the steps of one phase, from the best state so far."""
        settings, parameters = self._settings, self._pairs.parameters
        if phase.rounds and self._pairs.rounded is None:
            self._start_rounding({})
        by_batch = phase.apart and self._can_use_batch_statistics
        rate_factor = _ROUNDED_RATE if phase.rounds else _JOINT_RATE if self._can_use_batch_statistics else _NO_NORM_RATE
        rate = settings.rate * (1.0 if by_batch else rate_factor)
        optimiser, set_rate = scheduled_adam(parameters, rate)
        views = torch.empty(settings.batch, *self._held_back.shape[1:], device=self._device).contiguous(memory_format=torch.channels_last)
        step = ReplayedStep(lambda: self._step(views, optimiser, phase.apart), self._device, [self._mixing])
        average = _Average(parameters)
        if self._checkpoint is not None:
            with self._checkpoint.errors_as_damaged():
                load_optimizer(optimiser, parameters, checkpoint_tensors)
                average.load(checkpoint_tensors)
        evaluated = False
        # the first step is taken even if no time is left, so that slow machines give a result too
        while (done := self._progress_share()) < phase.stop or not self._steps:
            phase_share = min((done - phase.start) / (phase.stop - phase.start), 1.0)
            set_rate(rate * min(1.0, (phase_share + _FIRST_RATE) / _WARMUP_SHARE) * 0.5 * (1 + math.cos(math.pi * phase_share)))
            views.copy_(self._views.draw(settings.batch))
            self._use_batch_statistics(by_batch)
            step()
            self._use_batch_statistics(False)
            average.update()
            self._steps += 1
            evaluated = self._progress_share() * settings.looks >= self._evaluations + 1
            if evaluated:
                self._evaluations += 1
                self._evaluate(average, by_batch)
            if self._checkpoint is not None and self._checkpoint.due:
                self._write(optimizer_tensors(optimiser, parameters) | average.tensors())
        if not evaluated:
            self._evaluate(average, by_batch)
        self._model.load_state_dict(self._best)

    def _evaluate(self, average: _Average, by_batch: bool) -> None:
        """Evaluate the network with its averaged weights, and keep this state if it is the best so far."""
        with average.in_use():
            if by_batch:
                self._pairs.renew(self._statistics_images, self._micro_batch)
            error = self._error()
            if error < self._best_error:
                self._best, self._best_error = self._state(), error
        before = self._initial_error if self._pairs.rounded is None else self._rounded_before
        self._progress(
            f"refine, {min(self._progress_share(), 1):.0%} done, error {error:.3f}, best {self._best_error:.3f}, {before:.3f} before"
        )

    def _progress_share(self) -> float:
        """Return the completed share of the work, by steps or by time."""
        by_steps = self._steps / self._settings.steps if self._settings.steps else 0.0
        by_time = self._seconds() / (60 * self._settings.minutes) if self._settings.minutes else 0.0
        return max(by_steps, by_time)

    def _seconds(self) -> float:
        """Return the wall time so far in seconds, including the time before an interruption."""
        return time.perf_counter() - self._start

    def _step(self, views: torch.Tensor, optimiser: torch.optim.Optimizer, apart: bool) -> None:
        optimiser.zero_grad()
        for part in views.split(self._micro_batch):
            with torch.enable_grad(), torch.autocast(views.device.type, torch.bfloat16, enabled=views.is_cuda, cache_enabled=False):
                loss = self._pairs.errors(part, apart, self._mixing).loss(apart)
            (loss * (len(part) / len(views))).backward()
        optimiser.step()

    def _use_batch_statistics(self, by_batch: bool) -> None:
        for norm in self._pairs.norms:
            norm.train(by_batch)

    def _error(self) -> float:
        return float(mean_error(self._pairs.outputs(self._held_back, self._micro_batch, original=False), self._targets))

    def _state(self) -> dict[str, torch.Tensor]:
        return {key: value.clone() for key, value in self._model.state_dict().items()}


def _identity(
    model: BranchedModel, captured: Captured, images: dict[str, torch.Tensor | None], refinement: Refinement, *, rounds: bool
) -> dict[str, str]:
    """Return the fingerprints of all inputs that determine a refinement."""
    settings = f"{refinement} on {next(model.parameters()).device.type}" + (" with rounding" if rounds else "")
    return {
        "weights": fingerprint(captured.tensors | {f"branched.{key}": value for key, value in model.state_dict().items()}),
        "images": fingerprint({name: batch for name, batch in images.items() if batch is not None}),
        "settings": hashlib.sha256(settings.encode()).hexdigest(),
    }
