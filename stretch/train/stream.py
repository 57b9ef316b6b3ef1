"""Images that do not fit in memory: folders and tar shards, decoded by worker processes."""

import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from predictors.errors import StretchError
from scheduler.cores import available_cores
from stretch.train.augment import VIEW
from stretch.train.data import epoch_order

#: Colours of ImageNet, in 0 to 255, which every streamed set is normalised with.
MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
#: Images that may be unreadable one after the other.
_IN_A_ROW = 64
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


@dataclass(frozen=True)
class Item:
    """One encoded image."""

    path: Path  # File, or shard that holds it.
    label: int  # Its class.
    offset: int = 0  # First byte in the shard.
    size: int = 0  # Bytes; 0 for the whole file.

    def read(self) -> bytes:
        """The encoded bytes."""
        if not self.size:
            return self.path.read_bytes()
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            return stream.read(self.size)


def folder_items(folder: Path, classes: list[str] | None = None) -> tuple[list[Item], list[str]]:
    """Images of a folder with one folder a class, and the class names in order; what is hidden is neither."""
    if not folder.is_dir():
        raise StretchError(f"there is no folder of images {folder}", "it holds `train` and `val`, each with one folder a class")
    names = sorted(part.name for part in folder.iterdir() if part.is_dir() and not part.name.startswith("."))
    known = classes if classes is not None else names
    if not names:
        raise StretchError(f"{folder} has no folder for any class", "put the images of each class into a folder of its own")
    for name in names:
        if name not in known:
            raise StretchError(
                f"{folder} has the class `{name}`, the training images have not",
                f"classes are {', '.join(known[:5])}{' …' * (len(known) > 5)}",
            )
    numbers = {name: number for number, name in enumerate(known)}
    items = [Item(file, numbers[name]) for name in names for file in sorted((folder / name).rglob("*")) if is_image(file, folder)]
    return items, known


def is_image(file: Path, folder: Path) -> bool:
    """Whether it is named as an image is and lies in no hidden folder, such as an editor leaves behind."""
    return file.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in file.relative_to(folder).parts)


def shard_items(shards: Sequence[Path], *, labelled: bool = True) -> list[Item]:
    """Images of WebDataset shards: files ``KEY.jpg`` (or png …) beside ``KEY.cls``, the class as a number.

    The headers are read once; images are then read at random from where they are, so that
    order and resuming are those of any other set.
    """
    items = []
    for shard in shards:
        images: dict[str, tuple[int, int]] = {}
        labels: dict[str, int] = {}
        try:
            with tarfile.open(shard, "r:") as tar:
                for member in tar:
                    key, _, suffix = member.name.rpartition(".")
                    if f".{suffix.lower()}" in SUFFIXES:
                        images[key] = (member.offset_data, member.size)
                    elif labelled and suffix == "cls":
                        labels[key] = _label(tar, member)
        except (OSError, tarfile.TarError, ValueError) as error:
            raise StretchError(f"cannot read the shard {shard}: {error}", "shards are tar files with KEY.jpg beside KEY.cls") from error
        for key, (offset, size) in images.items():
            if labelled and key not in labels:
                raise StretchError(f"image `{key}` of the shard {shard} has no `{key}.cls`")
            items.append(Item(shard, labels[key] if labelled else 0, offset, size))
    return items


def other_classes(count: int) -> str:
    """The way out for images of other classes than the model's."""
    return f"--set classes={count} makes the model's last layer anew, or choose other images"


def _label(tar: tarfile.TarFile, member: tarfile.TarInfo) -> int:
    """What a ``KEY.cls`` says."""
    content = tar.extractfile(member)
    text = content.read(16).strip() if content is not None else b""
    if not text.isdigit():
        raise ValueError(f"{member.name} holds no class number")
    return int(text)


class _Decoded(Dataset[tuple[torch.Tensor, int, int]]):
    """Items by position of an epoch's order; the third value is the item that could not be read, or -1.

    The label is -1 where none can be read in many: an exception would come out of a worker
    process with a traceback for its message.
    """

    def __init__(self, items: Sequence[Item], order: Sequence[int], size: int, seeds: tuple[int, int] | None) -> None:
        self.items, self.order, self.size, self.seeds = items, order, size, seeds

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int, int]:
        index, bad = self.order[position], -1
        for _ in range(_IN_A_ROW):
            item = self.items[index]
            try:
                picture = Image.open(io.BytesIO(item.read())).convert("RGB")
            except Exception:
                # Whatever is wrong with the file, the next image that can be read takes its place. Each counts
                # where its own turn comes, so that many in a row are as many.
                bad, index = self.order[position], (index + 1) % len(self.items)
                continue
            image = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)
            return self._view(image, position), item.label, bad
        return torch.zeros(3, self.size, self.size, dtype=torch.uint8), -1, self.order[position]

    def _view(self, image: torch.Tensor, position: int) -> torch.Tensor:
        if self.seeds is None:
            short = round(self.size / VIEW)
            return F.center_crop(F.resize(image, [short], antialias=True), [self.size, self.size])
        # Seeded by what the image is, not by who decodes it: resuming and the number of workers change nothing.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash((*self.seeds, position)) & 0x7FFFFFFF)
            cut = RandomResizedCrop([self.size, self.size], antialias=True)(image)
            return F.horizontal_flip(cut) if torch.rand(()) < 0.5 else cut


@dataclass
class ImageStream:
    """Images decoded as they are needed: random crops while training, the middle for evaluation."""

    items: list[Item]  # The images.
    size: int  # Height and width.
    workers: int  # Processes that decode.
    bad_limit: int  # Images that may be unreadable before `epoch` stops.
    device: torch.device  # Where batches go.
    bad: set[int]  # Images found unreadable so far, by number.
    augmented: bool = True

    @classmethod
    def of(cls, items: list[Item], size: int, classes: int, workers: int = 0, bad_limit: int = 100) -> "ImageStream":
        """The set, checked."""
        if not items:
            raise StretchError("an image set is empty", "check the data folder")
        lowest, highest = min(item.label for item in items), max(item.label for item in items)
        if highest >= classes or lowest < 0:
            raise StretchError(
                f"images have classes from {lowest} to {highest}, the model has {classes}, from 0 to {classes - 1}",
                other_classes(highest + 1) if lowest >= 0 else "classes are numbers from 0",
            )
        return cls(items, size, workers, bad_limit, torch.device("cpu"), set())

    def __len__(self) -> int:
        """Number of images."""
        return len(self.items)

    def to(self, device: torch.device) -> "ImageStream":
        """The same set, its batches on another device."""
        return replace(self, device=device)

    def some(self, count: int) -> "ImageStream":
        """At most so many of the images, spread over all."""
        total = len(self.items)
        return self if total <= count else replace(self, items=[self.items[i * total // count] for i in range(count)], bad=set())

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation of ImageNet's colours."""
        return torch.tensor(MEAN), torch.tensor(DEVIATION)

    def epoch(
        self, number: int, batch: int, seed: int, skip: int = 0, share: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Full batches of one epoch."""
        order, batches = epoch_order(len(self.items), number, batch, seed, skip, share)
        return self._load(_Decoded(self.items, order.tolist(), self.size, (seed, number)), batches)

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All images in order, their middle."""
        count = len(self.items)
        # Whole images are larger than those of small sets: a quarter of the batch will do.
        size = max(1, size // 4)
        batches = [range(start, min(start + size, count)) for start in range(0, count, size)]
        return self._load(_Decoded(self.items, range(count), self.size, None), batches)

    def _load(self, data: _Decoded, batches: list[range]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        pinned = self.device.type == "cuda"
        # More processes than cores decode no faster, and torch complains of them.
        workers = min(self.workers, len(available_cores()))
        for images, labels, bad in DataLoader(data, batch_sampler=batches, num_workers=workers, pin_memory=pinned):
            self.bad.update(int(number) for number in bad if number >= 0)
            if bool((labels < 0).any()):
                first = self.items[int(bad[labels < 0][0])].path
                raise StretchError(f"{_IN_A_ROW} images in a row cannot be read, the first is {first}", "check the data folder")
            if len(self.bad) > self.bad_limit:
                raise StretchError(
                    f"{len(self.bad)} images cannot be read, such as {self.items[min(self.bad)].path}", "mend them, or raise data.bad_limit"
                )
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
