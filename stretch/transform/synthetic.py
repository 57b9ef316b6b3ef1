"""Images made from a trained network itself: what its batch-norms and its classifier remember of the images it was trained on.

Yin et al. 2020, "Dreaming to distill: data-free knowledge transfer via DeepInversion": noise is optimised until the network
is sure of a class and each batch-norm sees the mean and variance that it saw in training. Half of the steps are at half the
size, as the paper's for ImageNet are.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError
from predictors.files import cache_folder, write_whole
from scheduler.bundle.preprocessing import Preprocessing
from scheduler.progress import Progress, silent
from stretch.capture import Captured
from stretch.planning.design.branch_design import BranchDesign
from stretch.transform.build import build
from stretch.transform.calibrate.run import whole_design
from stretch.transform.calibrate.statistics import norms
from stretch.transform.refine import Replayed, fingerprint, scheduled_adam


@dataclass(frozen=True)
class Synthesis:
    """Settings of a synthesis."""

    count: int  # Images.
    steps: int = 200  # Of Adam, for each batch; half of them at half the size.
    batch: int = 128  # Images at a time, whose statistics are compared.
    rate: float = 0.1  # Of Adam; it falls to zero with the cosine of the steps.
    statistics: float = 1.0  # Weight of the distance between statistics of batch-norms.
    first: float = 10.0  # Weight of the first of them over the others, which sees colours and edges.
    variation: float = 1e-3  # Weight of the differences between neighbouring pixels.
    size: float = 1e-5  # Weight of the squared pixels.
    seed: int = 0  # Of noise, classes and shifts.


class _Statistics:
    """How far the statistics of what batch-norms read are from those that they keep."""

    def __init__(self, layers: Sequence[nn.Module], first: float) -> None:
        self._values: list[torch.Tensor] = []
        self._first = first
        self._handles = [layer.register_forward_pre_hook(self._note) for layer in layers]

    def take(self) -> torch.Tensor:
        """The weighted sum since it was last taken, a scalar."""
        values, self._values = self._values, []
        return self._first * values[0] + sum(values[1:], values[0].new_zeros(()))

    def close(self) -> None:
        """Look at the layers no longer."""
        for handle in self._handles:
            handle.remove()

    def _note(self, layer: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        x = inputs[0].float()
        axes = [0, *range(2, x.ndim)]
        mean, variance = x.mean(axes), x.var(axes, unbiased=False)
        assert isinstance(layer.running_mean, torch.Tensor)
        assert isinstance(layer.running_var, torch.Tensor)
        self._values.append((mean - layer.running_mean).norm() + (variance - layer.running_var).norm())


def synthesise(
    captured: Captured, design: BranchDesign, preprocessing: Preprocessing, how: Synthesis, progress: Progress = silent
) -> list[torch.Tensor]:
    """Images that a network sees as its training images, in equal numbers of its classes.

    On a GPU where there is one. Each batch is kept in the cache once it is made, so that an interrupted synthesis goes on where it was,
    and more images are more batches.

    Args:
        captured: The trained network, of one input (1, 3, height, width) and one output of class scores.
        design: A design of it, whose segments say where its tensors are cut.
        preprocessing: What a picture goes through before the network reads it: it bounds the pixels.

    Returns:
        Batches of what the network reads, (n, 3, height, width), on the CPU.

    Raises:
        StretchError: If the network has no class scores, no colours, or no batch-norms with statistics.
    """
    shape, outputs = captured.graph.input.shape, captured.graph.outputs
    if len(shape) != 4 or shape[1] != 3 or len(outputs) > 1 or len(captured.graph.by_name[outputs[0]].shape) != 2:
        raise StretchError(
            "images can be made only from a network that reads a picture and answers with class scores", "leave synthetic out"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(captured, whole_design(captured, design)).to(device, memory_format=torch.channels_last).eval().requires_grad_(False)
    layers = [layer for layer in norms(model) if isinstance(layer.running_mean, torch.Tensor)]
    if not layers:
        raise StretchError(
            "images can be made only from a network with batch-norms, whose statistics say what its images were like", "leave synthetic out"
        )
    weights = {f"{op}.{key}": tensor for op, tensors in captured.weights.items() for key, tensor in tensors.items()}
    how = replace(how, batch=min(how.batch, how.count))
    settings = f"{replace(how, count=0)} {preprocessing} {shape}"
    folder = cache_folder("synthetic") / hashlib.sha256((fingerprint(weights) + settings).encode()).hexdigest()
    low, high = (_levels(preprocessing, end).to(device) for end in (0.0, float(preprocessing.range)))
    count, batches = captured.graph.by_name[outputs[0]].shape[1], []
    statistics = _Statistics(layers, how.first)
    for number in range(math.ceil(how.count / how.batch)):
        file = folder / f"{number}.uint8"
        if not file.exists():
            progress(f"synthetic images, {number * how.batch} of {how.count}")
            random = torch.Generator().manual_seed((how.seed << 32) + number)
            classes = torch.randperm(count, generator=random)[torch.arange(how.batch) % count].to(device)
            pixels = _batch(model, statistics, classes, (low, high), (shape[2], shape[3]), how, random)
            rounded = (255 * (pixels - low.cpu()) / (high - low).cpu()).round().clamp(0, 255).to(torch.uint8).numpy()
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(file, rounded.tobytes(), "synthetic images")
        batches.append(np.frombuffer(file.read_bytes(), np.uint8).reshape(how.batch, *shape[1:]))
    statistics.close()
    levels = np.concatenate(batches)[: how.count]
    images = low.cpu() + torch.from_numpy(levels).float() / 255 * (high - low).cpu()
    return [images[i : i + how.batch] for i in range(0, len(images), how.batch)]


def _levels(preprocessing: Preprocessing, level: float) -> torch.Tensor:
    """What the network reads of the darkest or brightest pixel, (1, 3, 1, 1)."""
    mean, deviation = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
    return ((level - mean) / deviation).reshape(1, 3, 1, 1)


def _batch(
    model: nn.Module,
    statistics: _Statistics,
    classes: torch.Tensor,
    bounds: tuple[torch.Tensor, torch.Tensor],
    size: tuple[int, int],
    how: Synthesis,
    random: torch.Generator,
) -> torch.Tensor:
    """One image of each of some classes, (n, 3, height, width), on the CPU."""
    low, high = bounds
    device = classes.device
    pixels = torch.randn(len(classes), 3, size[0] // 2, size[1] // 2, generator=random).to(device)
    rows, columns = (torch.arange(side, device=device) for side in size)

    def take(pixels: torch.Tensor, optimiser: torch.optim.Optimizer, half: bool) -> None:
        optimiser.zero_grad()
        seen = pixels if not half else F.interpolate(pixels, size, mode="nearest")
        seen = seen.index_select(2, rows).index_select(3, columns)
        with torch.enable_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
            loss = F.cross_entropy(model(seen).float(), classes)
            loss = loss + how.statistics * statistics.take()
            loss = loss + how.variation * _variation(pixels) + how.size * pixels.square().sum((1, 2, 3)).mean()
        loss.backward()
        optimiser.step()
        pixels.detach().clamp_(low, high)

    for half in (True, False):
        if not half:
            pixels = F.interpolate(pixels, size, mode="bilinear", align_corners=False)
        pixels = pixels.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        optimiser, set_rate = scheduled_adam([pixels], how.rate, betas=(0.5, 0.9), eps=1e-8)
        step = Replayed(partial(take, pixels, optimiser, half), device)
        steps = how.steps // 2
        for number in range(steps):
            set_rate(how.rate * 0.5 * (1 + math.cos(math.pi * number / steps)))
            down, across, mirrored = (int(shift) for shift in torch.randint(-16, 17, (3,), generator=random))
            rows.copy_(torch.arange(size[0]).roll(down))
            shifted = torch.arange(size[1]).roll(across)
            columns.copy_(shifted.flip(0) if mirrored > 0 else shifted)
            step()
    return pixels.detach().cpu()


def _variation(pixels: torch.Tensor) -> torch.Tensor:
    """Root of the squared differences between neighbours, over the images, a scalar."""
    down, across = pixels[:, :, 1:] - pixels[:, :, :-1], pixels[:, :, :, 1:] - pixels[:, :, :, :-1]
    return (down.square().sum((1, 2, 3)).sqrt() + across.square().sum((1, 2, 3)).sqrt()).mean()
