"""Images synthesised from a trained network, by the information that its batch norms and its classifier have on the training images.

Yin et al. 2020, "Dreaming to distill: data-free knowledge transfer via DeepInversion". Noise is optimised until the network
predicts a class with confidence and the statistics in each batch norm are those of the training images. As for ImageNet in the
paper, the first steps are at half the size.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError
from predictors.files import cache_folder, write_whole
from scheduler.bundle.preprocessing import Preprocessing
from scheduler.progress import Progress, silent
from stretch.network.capture import Captured
from stretch.transform.build import build
from stretch.transform.calibrate.run import undivided_design
from stretch.transform.calibrate.statistics import norms
from stretch.transform.model import statistics_of, to_channels_last
from stretch.transform.refine import ReplayedStep, fingerprint, scheduled_adam

#: Between two steps an image is shifted by up to 1 / `SHIFTED` of its height.
SHIFTED = 14


@dataclass(frozen=True)
class Synthesis:
    """Settings of a synthesis."""

    count: int  # Number of images.
    steps: int = 200  # Steps of Adam, per batch.
    coarse: float = 0.75  # Share of the steps at half the size, at a quarter of the cost; 0 if the network reads only one size.
    batch: int = 128  # Number of images whose statistics are compared together.
    rate: float = 0.1  # Learning rate of Adam; it falls to zero with the cosine of the steps.
    statistics: float = 100.0  # Weight of the distance between batch-norm statistics.
    first: float = 10.0  # Weight of the first batch norm, which sees colours and edges, relative to the others.
    variation: float = 0.03  # Weight of the differences between neighbouring pixels.
    size: float = 1e-5  # Weight of the squared pixels.
    seed: int = 0  # Seed of noise, classes and shifts.


class _Moments(torch.autograd.Function):
    """Mean and variance of each channel, (c,) in float32, of a tensor (n, c, …) in any precision, without a float32 copy of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        axes = [0, *range(2, x.ndim)]
        mean = x.mean(axes, dtype=torch.float32)
        count = x.numel() // x.shape[1]
        ctx.save_for_backward(x, mean)
        return mean, torch.linalg.vector_norm(x, dim=axes, dtype=torch.float32).square() / count - mean.square()

    @staticmethod
    def backward(ctx: Any, by_mean: torch.Tensor, by_variance: torch.Tensor) -> torch.Tensor:
        x, mean = ctx.saved_tensors
        count = x.numel() // x.shape[1]
        slope = 2 * by_variance / count
        offset, slope = (value.to(x.dtype).reshape(-1, *[1] * (x.ndim - 2)) for value in (by_mean / count - slope * mean, slope))
        return torch.addcmul(offset, x, slope)


_moments: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]] = _Moments.apply


class _Statistics:
    """Distance between the inputs of batch norms and their stored statistics.

    The distance is the Kullback-Leibler divergence of two normal distributions, averaged over channels and layers. It does not depend on
    the magnitude of a layer's values. The paper's distance does, so that the classes get no weight if values are large, as in MobileNets.
    """

    def __init__(self, layers: Sequence[nn.Module], first: float) -> None:
        self._values: list[torch.Tensor] = []
        self._first = first
        self._handles = [layer.register_forward_pre_hook(self._note) for layer in layers]

    def take(self) -> torch.Tensor:
        """Return the weighted mean over the layers since the last call, a scalar."""
        values, self._values = self._values, []
        return (self._first * values[0] + sum(values[1:], values[0].new_zeros(()))) / (self._first + len(values) - 1)

    def close(self) -> None:
        """Remove the hooks from the layers."""
        for handle in self._handles:
            handle.remove()

    def _note(self, layer: nn.modules.batchnorm._BatchNorm, inputs: tuple[torch.Tensor]) -> None:
        mean, variance = _moments(inputs[0])
        kept_mean, kept_variance = statistics_of(layer)
        stored_variance = kept_variance + layer.eps
        variance = variance.clamp_min(0) + layer.eps
        self._values.append(
            ((variance + (mean - kept_mean).square()) / stored_variance - 1 - (variance / stored_variance).log()).mean() / 2
        )


def synthesise(captured: Captured, preprocessing: Preprocessing, synthesis: Synthesis, progress: Progress = silent) -> list[torch.Tensor]:
    """Synthesise images that resemble a network's training images, in equal numbers of its classes.

    A GPU is used if there is one. Each finished batch is stored in the cache, so that an interrupted synthesis continues,
    and a request for more images only computes the additional batches.

    Args:
        captured: The trained network, with one input (1, 3, height, width) and one output of class scores.
        preprocessing: Preprocessing of pictures for the network; it bounds the pixels.

    Returns:
        Batches of the network's input, (n, 3, height, width), on the CPU.

    Raises:
        StretchError: If the network has no class scores, no colours, or no batch-norms with statistics.
    """
    shape, outputs = captured.graph.input.shape, captured.graph.outputs
    if len(shape) != 4 or shape[1] != 3 or len(outputs) > 1 or len(captured.graph.by_name[outputs[0]].shape) != 2:
        raise StretchError(
            "images can be made only from a network that reads a picture and answers with class scores", "leave synthetic out"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = to_channels_last(build(captured, undivided_design(captured)).to(device)).eval().requires_grad_(False)
    layers = [layer for layer in norms(model) if isinstance(layer.running_mean, torch.Tensor)]
    if not layers:
        raise StretchError(
            "images can be made only from a network with batch-norms, whose statistics describe its training images", "leave synthetic out"
        )
    coarse = synthesis.coarse if _reads(model, 1, 3, shape[2] // 2, shape[3] // 2) else 0.0
    synthesis = replace(synthesis, batch=min(synthesis.batch, synthesis.count), coarse=coarse)
    settings = f"{replace(synthesis, count=0)} {preprocessing} {shape}"
    folder = cache_folder("synthetic") / hashlib.sha256((fingerprint(captured.tensors) + settings).encode()).hexdigest()
    low, high = (_levels(preprocessing, end).to(device) for end in (0.0, float(preprocessing.range)))
    count, batches = captured.graph.by_name[outputs[0]].shape[1], []
    order = torch.randperm(count, generator=torch.Generator().manual_seed(synthesis.seed))
    statistics = _Statistics(layers, synthesis.first)
    for number in range(math.ceil(synthesis.count / synthesis.batch)):
        file = folder / f"{number}.uint8"
        if not file.exists():
            progress(f"synthetic images, {number * synthesis.batch} of {synthesis.count}")
            random = torch.Generator().manual_seed(int(np.random.SeedSequence([synthesis.seed, number]).generate_state(1)[0]))
            classes = order[(number * synthesis.batch + torch.arange(synthesis.batch)) % count].to(device)
            pixels = _batch(model, statistics, classes, (low, high), (shape[2], shape[3]), synthesis, random)
            rounded = (255 * (pixels - low.cpu()) / (high - low).cpu()).round().clamp(0, 255).to(torch.uint8).numpy()
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(file, rounded.tobytes(), "synthetic images")
        batches.append(np.frombuffer(file.read_bytes(), np.uint8).reshape(synthesis.batch, *shape[1:]))
    statistics.close()
    levels = np.concatenate(batches)[: synthesis.count]
    images = low.cpu() + torch.from_numpy(levels).float() / 255 * (high - low).cpu()
    return [images[i : i + synthesis.batch] for i in range(0, len(images), synthesis.batch)]


def _levels(preprocessing: Preprocessing, level: float) -> torch.Tensor:
    """Return the network's input for a pixel level, such as the darkest or brightest one, (1, 3, 1, 1)."""
    mean, deviation = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
    return ((level - mean) / deviation).reshape(1, 3, 1, 1)


def _batch(
    model: nn.Module,
    statistics: _Statistics,
    classes: torch.Tensor,
    bounds: tuple[torch.Tensor, torch.Tensor],
    size: tuple[int, int],
    settings: Synthesis,
    random: torch.Generator,
) -> torch.Tensor:
    """Synthesise one image for each of the given classes, (n, 3, height, width), on the CPU."""
    low, high = bounds
    device = classes.device
    half = (size[0] // 2, size[1] // 2)
    pixels = torch.randn(len(classes), 3, *half, generator=random).to(device)

    def take(pixels: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, optimiser: torch.optim.Optimizer) -> None:
        optimiser.zero_grad()
        seen = pixels.index_select(2, rows).index_select(3, columns)
        with torch.enable_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
            loss = F.cross_entropy(model(seen).float(), classes)
            loss = loss + settings.statistics * statistics.take()
            loss = loss + settings.variation * _variation(pixels) + settings.size * pixels.square().sum((1, 2, 3)).mean()
        loss.backward()
        optimiser.step()
        pixels.detach().clamp_(low, high)

    coarse = round(settings.coarse * settings.steps)
    for shape, steps in ((half, coarse), (size, settings.steps - coarse)):
        if shape == size:
            pixels = F.interpolate(pixels, size, mode="bilinear", align_corners=False)
        pixels = pixels.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        optimiser, set_rate = scheduled_adam([pixels], settings.rate, betas=(0.5, 0.9), eps=1e-8)
        rows, columns = (torch.arange(side, device=device) for side in shape)
        step = ReplayedStep(partial(take, pixels, rows, columns, optimiser), device)
        for number in range(steps):
            set_rate(settings.rate * 0.5 * (1 + math.cos(math.pi * number / steps)))
            max_shift = shape[0] // SHIFTED
            down, across, mirrored = (int(shift) for shift in torch.randint(-max_shift, max_shift + 1, (3,), generator=random))
            rows.copy_(torch.arange(shape[0]).roll(down))
            shifted = torch.arange(shape[1]).roll(across)
            columns.copy_(shifted.flip(0) if mirrored > 0 else shifted)
            step()
    return pixels.detach().cpu()


def _reads(model: nn.Module, *shape: int) -> bool:
    """Return whether a network can also compute pictures of this shape; it cannot if it reshapes to a fixed number of pixels."""
    try:
        with torch.no_grad():
            model(torch.zeros(shape, device=next(model.parameters()).device))
    except RuntimeError:
        return False
    return True


def _variation(pixels: torch.Tensor) -> torch.Tensor:
    """Return the root of the squared differences between neighbouring pixels, averaged over the images, a scalar."""
    down, across = pixels[:, :, 1:] - pixels[:, :, :-1], pixels[:, :, :, 1:] - pixels[:, :, :, :-1]
    return (down.square().sum((1, 2, 3)).sqrt() + across.square().sum((1, 2, 3)).sqrt()).mean()
