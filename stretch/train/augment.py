"""Normalisation and augmentation of whole batches on the device that trains."""

import torch
import torch.nn.functional as F


class Normalise:
    """uint8 images to floats of mean 0 and deviation 1 per colour.

    Args:
        mean: (3,), in 0 to 255.
        deviation: (3,), in 0 to 255.
        device: Where the images are.
    """

    def __init__(self, mean: torch.Tensor, deviation: torch.Tensor, device: torch.device) -> None:
        self.scale = (1 / deviation).to(device)[None, :, None, None]
        self.shift = (-mean / deviation).to(device)[None, :, None, None]

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """(n, 3, height, width) float32."""
        return images.float() * self.scale + self.shift


def crop_and_flip(images: torch.Tensor, padding: int = 4) -> torch.Tensor:
    """Each image shifted by up to `padding` pixels over zeros and mirrored half of the time.

    The usual augmentation for 32×32 images (He et al. 2016, section 4.2), one
    gather for the whole batch; randomness is torch's generator of the device.

    Args:
        images: (n, 3, height, width), already normalised, so that zero is the mean.
        padding: Largest shift.
    """
    n, _, height, width = images.shape
    device = images.device
    padded = F.pad(images, (padding,) * 4)
    rows = torch.randint(2 * padding + 1, (n, 1), device=device) + torch.arange(height, device=device)
    columns = torch.randint(2 * padding + 1, (n, 1), device=device) + torch.arange(width, device=device)
    flipped = torch.rand(n, 1, device=device) < 0.5
    columns = torch.where(flipped, columns.flip(1), columns)
    batch = torch.arange(n, device=device)
    # Index tensors apart by a slice put the gathered axes first.
    return padded[batch[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
