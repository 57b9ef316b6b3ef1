"""Augmentation: many views of few images, computed on the training device."""

import torch
import torch.nn.functional as F

#: Share of an image's area that a view shows, at least.
LEAST_AREA = 0.1
#: A view is at most so much wider than high in the image, or higher than wide.
STRETCHED = 4 / 3
#: Share of the views that have another one blended in, by up to a half.
BLENDED = 0.5
#: Share of the views that have a rectangle of another one in them, and its sides, over the view's (Yun et al. 2019, "CutMix").
PASTED, LEAST_SIDE, LARGEST_SIDE = 0.5, 0.3, 0.8
#: Standard deviation of what is added to each colour, and half the range of contrasts, over the deviation of the images.
LIGHT = 0.2


class Views:
    """Random crops of unlabelled images, mirrored half of the time, some with others blended or pasted in, in other light.

    They need not look natural: the original is asked what it computes for each of them (Beyer et al. 2022,
    "Knowledge distillation: a good teacher is patient and consistent"). No more is held than the images and one batch.

    Args:
        images: (n, channels, height, width), as the network reads them.
        seed: Of the random numbers, which are this object's own and the same on every device.

    Attributes:
        random: What the next views are drawn with.
    """

    def __init__(self, images: torch.Tensor, seed: int = 0) -> None:
        self.images = images
        self.random = torch.Generator().manual_seed(seed)
        self._deviation = float(images.std())

    def draw(self, count: int) -> torch.Tensor:
        """So many views, (count, channels, height, width)."""
        shown = self.images[self._to(torch.randint(len(self.images), (count,), generator=self.random))]
        seen = F.grid_sample(shown, F.affine_grid(self._windows(count), list(shown.shape), False), "bilinear", "reflection", False)
        blended = self._between(0, 0.5, count, 1, 1, 1) * (self._between(0, 1, count, 1, 1, 1) < BLENDED)
        seen = torch.lerp(seen, seen[self._to(torch.randperm(count, generator=self.random))], blended)
        shift = self._to(torch.randn(count, seen.shape[1], 1, 1, generator=self.random)) * (LIGHT * self._deviation)
        seen = seen * self._between(1 - LIGHT, 1 + LIGHT, count, 1, 1, 1) + shift
        other = seen[self._to(torch.randperm(count, generator=self.random))]
        return torch.where(self._rectangles(count, *seen.shape[2:]), other, seen).contiguous(memory_format=torch.channels_last)

    def _rectangles(self, count: int, height: int, width: int) -> torch.Tensor:
        """Which pixels are another view's, (count, 1, height, width); rectangles may reach over the border."""
        pasted = self._between(0, 1, count, 1, 1, 1) < PASTED
        size = self._between(LEAST_SIDE, LARGEST_SIDE, count, 1, 1, 1)
        top, left = (self._between(LEAST_SIDE - LARGEST_SIDE, 1, count, 1, 1, 1) for _ in range(2))
        down = self._to((torch.arange(height) + 0.5) / height).reshape(1, 1, height, 1)
        across = self._to((torch.arange(width) + 0.5) / width).reshape(1, 1, 1, width)
        return pasted & (down > top) & (down < top + size) & (across > left) & (across < left + size)

    def _windows(self, count: int) -> torch.Tensor:
        """Where each view lies in its image, as an affine map, (count, 2, 3)."""
        area, ratio = self._between(LEAST_AREA, 1, count), STRETCHED ** self._between(-1, 1, count)
        width, height = (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)
        across, down = ((1 - size) * self._between(-1, 1, count) for size in (width, height))
        mirrored = torch.where(self._between(0, 1, count) < 0.5, -1.0, 1.0)
        nothing = torch.zeros_like(width)
        return torch.stack([width * mirrored, nothing, across, nothing, height, down], 1).reshape(count, 2, 3)

    def _between(self, low: float, high: float, *shape: int) -> torch.Tensor:
        return self._to(low + (high - low) * torch.rand(*shape, generator=self.random))

    def _to(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.to(self.images.device, non_blocking=True)
