"""Image sets in the memory of the training device."""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from predictors.errors import StretchError

_T = TypeVar("_T")

#: Maximum number of elements of a synthetic set: four gigabytes during its creation.
MAX_SYNTHETIC = 1 << 30

#: Format of `load_arrays`.
_NEEDED = "an .npz holds train_images and test_images, uint8 of n×height×width×3, and train_labels and test_labels, n whole numbers"


class ImageSource(Protocol):
    """Where training images come from; `ImageSet` and `ImageStream` are two."""

    augmented: bool

    def __len__(self) -> int:
        """Number of images."""

    def to(self, device: torch.device) -> "ImageSource":
        """The source, its batches on that device."""

    def some(self, count: int) -> "ImageSource":
        """At most so many of the images, spread over all."""

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation of each colour, (3,) float32, in 0 to 255."""

    def epoch(
        self, number: int, batch: int, seed: int, skip: int = 0, share: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Full batches of one epoch in an order that depends on its number and the seed; of a share (k, n) part k of n of each batch."""

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All images in order, for evaluation."""


def epoch_order(count: int, number: int, batch: int, seed: int, skip: int, share: tuple[int, int]) -> tuple[torch.Tensor, list[range]]:
    """Order of the images of `ImageSource.epoch`, and the positions in it of each batch."""
    part, size = share[0], batch // share[1]
    starts = range(skip * batch + part * size, count - batch + part * size + 1, batch)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + number)), [range(s, s + size) for s in starts]


@dataclass(frozen=True)
class ImageSet:
    """Images of one size, packed."""

    images: torch.Tensor  # (n, 3, height, width) uint8.
    labels: torch.Tensor  # (n,) int64.

    @classmethod
    def of(cls, images: torch.Tensor, labels: torch.Tensor, classes: int) -> "ImageSet":
        """Create a validated set."""
        if images.dim() != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            raise StretchError(f"images are {images.dtype} of shape {tuple(images.shape)}, needed are uint8 of n×3×height×width")
        if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
            raise StretchError(f"{len(images)} images have labels of shape {tuple(labels.shape)} and type {labels.dtype}")
        if len(labels) == 0:
            raise StretchError("an image set is empty", "check the data folder")
        if int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise StretchError(
                f"labels go from {int(labels.min())} to {int(labels.max())}, the model has {classes} classes",
                f"--set classes={int(labels.max()) + 1} replaces the model's last layer, or correct the labels",
            )
        return cls(images, labels)

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    def to(self, device: torch.device) -> "ImageSet":
        """The set on another device."""
        return ImageSet(self.images.to(device), self.labels.to(device))

    def some(self, count: int) -> "ImageSet":
        """At most this many images, spread evenly."""
        if len(self) <= count:
            return self
        index = torch.arange(count, device=self.labels.device) * len(self) // count
        return ImageSet(self.images[index], self.labels[index])

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of each colour, (3,) float32, in 0 to 255."""
        # In parts: the whole set in float64 would be eight times its size.
        total, squares = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for part in self.images.split(4096):
            values = part.cpu().double()
            total += values.sum((0, 2, 3))
            squares += values.square().sum((0, 2, 3))
        count = len(self) * self.images.shape[2] * self.images.shape[3]
        mean = total / count
        return mean.float(), (squares / count - mean.square()).clamp_min(1e-12).sqrt().float()

    #: Whether images are already augmented.
    augmented = False

    def epoch(
        self, number: int, batch: int, seed: int, skip: int = 0, share: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Full batches of one epoch."""
        order, batches = epoch_order(len(self), number, batch, seed, skip, share)
        for places in batches:
            index = order[places.start : places.stop].to(self.labels.device)
            yield self.images[index], self.labels[index]

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Batches in order."""
        return zip(self.images.split(size), self.labels.split(size), strict=True)


def load_arrays(path: Path, classes: int) -> tuple[ImageSet, ImageSet]:
    """Training and test set from an ``.npz`` file.

    Args:
        path: With ``train_images``, ``train_labels``, ``test_images``,
            ``test_labels``; images (n, height, width, 3) uint8.
    """
    parts = _read(path, ("train_images", "train_labels", "test_images", "test_labels"))

    def make(split: str) -> ImageSet:
        images, labels = _packed(parts, split, path), parts[f"{split}_labels"]
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
            raise StretchError(f"`{split}_labels` of {path} is {labels.dtype} of shape {labels.shape}, for {len(images)} images", _NEEDED)
        return ImageSet.of(images, torch.from_numpy(labels.astype(np.int64)), classes)

    return make("train"), make("test")


def load_unlabelled(path: Path, share: float) -> tuple[ImageSet, ImageSet]:
    """Training and held-back images from an ``.npz`` file without labels."""
    parts = _read(path, ("train_images",), ("test_images",))
    train = _packed(parts, "train", path)
    if "test_images" in parts:
        held_back = _packed(parts, "test", path)
    else:
        train_index, others = divided(range(len(train)), share, path)
        train, held_back = train[train_index], train[others]
    return tuple(ImageSet.of(some, torch.zeros(len(some), dtype=torch.int64), 1) for some in (train, held_back))  # type: ignore[return-value]


def divided(items: Sequence[_T], share: float, where: Path) -> tuple[list[_T], list[_T]]:
    """Divide items into training and held-back ones, which are spread evenly."""
    if len(items) < 2:
        raise StretchError(
            f"{where} has {len(items) or 'no'} image{'s' * (len(items) != 1)}: training on some and holding others back takes at least two",
            "check data.path",
        )
    back = min(max(1, round(len(items) * share)), len(items) - 1)
    chosen = {i * len(items) // back for i in range(back)}
    return [item for i, item in enumerate(items) if i not in chosen], [items[i] for i in sorted(chosen)]


def _read(path: Path, needed: tuple[str, ...], more: tuple[str, ...] = ()) -> dict[str, np.ndarray[Any, Any]]:
    """Required and existing optional arrays of an ``.npz`` file."""
    try:
        if not zipfile.is_zipfile(path):
            # distinguishes a missing file from a damaged one
            path.open("rb").close()
            raise StretchError(f"{path} is no .npz file, or it is damaged", _NEEDED)
        with np.load(path, allow_pickle=False) as file:
            for key in needed:
                if key not in file:
                    raise StretchError(f"{path} has no `{key}`", _NEEDED)
            return {key: file[key] for key in (*needed, *more) if key in file}
    except OSError as error:
        raise StretchError(f"cannot read the images {path}: {error.strerror or error}", _NEEDED) from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise StretchError(f"the images {path} are damaged or no plain arrays: {error}", _NEEDED) from error


def _packed(parts: dict[str, np.ndarray[Any, Any]], split: str, path: Path) -> torch.Tensor:
    """Images of a split, (n, 3, height, width)."""
    images = parts[f"{split}_images"]
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        raise StretchError(f"`{split}_images` of {path} is {images.dtype} of shape {images.shape}", _NEEDED)
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def synthetic(classes: int, size: int, count: int, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """A synthetic, learnable set: each class has a colour with noise."""
    elements = (count + max(classes, count // 4)) * 3 * size * size
    if elements > MAX_SYNTHETIC:
        raise StretchError(
            f"{count} made-up images of {size} × {size} pixels and {classes} classes take {elements:.1e} numbers, {MAX_SYNTHETIC:.1e} are allowed",
            "choose a smaller data.size, data.count or classes",
        )
    generator = torch.Generator().manual_seed(seed)
    colours = torch.rand(classes, 3, 1, 1, generator=generator)

    def make(n: int) -> ImageSet:
        labels = torch.arange(n) % classes
        noise = torch.rand(n, 3, size, size, generator=generator)
        return ImageSet(((colours[labels] + noise) * 127.5).to(torch.uint8), labels)

    return make(count), make(max(classes, count // 4))
