"""Normalisation and augmentation of whole batches on the device that trains."""

import torch
import torch.nn.functional as F

from scheduler.bundle.preprocessing import Preprocessing
from stretch.train.data import ImageSource

#: Share of the shorter side that evaluation crops from images decoded on demand.
VIEW = 224 / 256


class Normalise:
    """uint8 images to floats of mean 0 and deviation 1 per colour (`mean`: (3,), in 0 to 255; `deviation`: (3,), in 0 to 255)."""

    def __init__(self, mean: torch.Tensor, deviation: torch.Tensor, device: torch.device) -> None:
        self.scale = (1 / deviation).to(device)[None, :, None, None]
        self.shift = (-mean / deviation).to(device)[None, :, None, None]

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """(n, 3, height, width) float32."""
        return images.float() * self.scale + self.shift


def preprocessing(images: ImageSource) -> Preprocessing:
    """Preprocessing that treats an image like the test images of the training."""
    mean, deviation = (moments.double() / 255 for moments in images.moments())
    # images of one colour have no deviation
    return Preprocessing(tuple(mean.tolist()), tuple(deviation.clamp_min(1e-6).tolist()), VIEW if images.augmented else 1.0)


def crop_and_flip(
    images: torch.Tensor, padding: int = 4, generator: torch.Generator | None = None, share: tuple[int, int] = (0, 1)
) -> torch.Tensor:
    """Each image shifted by up to `padding` pixels over zeros and mirrored half of the time.

    The usual augmentation for 32×32 images (He et al. 2016, section 4.2), one
    gather for the whole batch.
    """
    n, _, height, width = images.shape
    device = images.device
    part, parts = share
    rows_here = slice(part * n, (part + 1) * n)
    shifts = torch.randint(2 * padding + 1, (n * parts, 2), device=device, generator=generator)[rows_here]
    flipped = torch.rand(n * parts, 1, device=device, generator=generator)[rows_here] < 0.5
    rows = shifts[:, :1] + torch.arange(height, device=device)
    columns = shifts[:, 1:] + torch.arange(width, device=device)
    columns = torch.where(flipped, columns.flip(1), columns)
    padded = F.pad(images, (padding,) * 4)
    batch = torch.arange(n, device=device)
    # Index tensors apart by a slice put the gathered axes first.
    return padded[batch[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
