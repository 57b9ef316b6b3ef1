"""What the loop asks of a set of training images, wherever they come from."""

from collections.abc import Iterator
from typing import Protocol

import torch


class ImageSource(Protocol):
    """Where training images come from; `ImageSet` and `ImageStream` are two."""

    augmented: bool

    def __len__(self) -> int:
        """Number of images."""
        ...

    def to(self, device: torch.device) -> "ImageSource":
        """The source, its batches on that device."""
        ...

    def some(self, count: int) -> "ImageSource":
        """At most so many of the images, spread over all."""
        ...

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation of each colour, in 0 to 255."""
        ...

    def epoch(
        self, number: int, batch: int, seed: int, skip: int = 0, share: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Batches of one epoch, see `ImageSet.epoch`."""
        ...

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All images in order, for evaluation."""
        ...
