"""Training images, in the memory of the training device or decoded on demand, and normalisation and augmentation of whole batches."""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import RandomResizedCrop
from torchvision.transforms.v2 import functional as transforms

from predictors.errors import MissingBackendError, StretchError, install_line
from scheduler.bundle.preprocessing import Preprocessing
from scheduler.cores import available_cores
from stretch.train.recipe import MAX_SIZE, DataConfig

_T = TypeVar("_T")

#: Maximum number of elements of a synthetic set, whose creation then takes four gigabytes.
MAX_SYNTHETIC = 1 << 30

#: Format of `load_arrays`, as a hint for the user.
_NPZ_FORMAT = "an .npz holds train_images and test_images, uint8 of n×height×width×3, and train_labels and test_labels, n whole numbers"


def epoch_order(count: int, number: int, batch: int, seed: int, skip: int, share: tuple[int, int]) -> tuple[torch.Tensor, list[range]]:
    """Return the order of the images in an epoch of `ImageSource.epoch`, and each batch's range of positions in this order."""
    part, size = share[0], batch // share[1]
    starts = range(skip * batch + part * size, count - batch + part * size + 1, batch)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + number)), [range(s, s + size) for s in starts]


@dataclass(frozen=True)
class ImageSet:
    """Images of one size in one tensor."""

    images: torch.Tensor  # Images, (n, 3, height, width) uint8.
    labels: torch.Tensor  # Labels, (n,) int64.

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
        """Return the number of images."""
        return len(self.labels)

    def to(self, device: torch.device) -> "ImageSet":
        """Return the set on another device."""
        return ImageSet(self.images.to(device), self.labels.to(device))

    def subset(self, count: int) -> "ImageSet":
        """Return at most this many images, spread evenly."""
        if len(self) <= count:
            return self
        index = torch.arange(count, device=self.labels.device) * len(self) // count
        return ImageSet(self.images[index], self.labels[index])

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and standard deviation of each colour, (3,) float32, in 0 to 255."""
        # In parts, because the whole set in float64 would be eight times as large.
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
        """Yield the full batches of an epoch, in an order set by its number and the seed; of share (k, n) only part k of n of each one."""
        order, batches = epoch_order(len(self), number, batch, seed, skip, share)
        for places in batches:
            index = order[places.start : places.stop].to(self.labels.device)
            yield self.images[index], self.labels[index]

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the batches in order."""
        return zip(self.images.split(size), self.labels.split(size), strict=True)


def load_arrays(path: Path, classes: int) -> tuple[ImageSet, ImageSet]:
    """Load the training and test set from an ``.npz`` file.

    Args:
        path: File with the arrays ``train_images``, ``train_labels``, ``test_images``,
            ``test_labels``; images are (n, height, width, 3) uint8.
    """
    parts = _read(path, ("train_images", "train_labels", "test_images", "test_labels"))

    def make(split: str) -> ImageSet:
        images, labels = _stack_images(parts, split, path), parts[f"{split}_labels"]
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
            raise StretchError(
                f"`{split}_labels` of {path} is {labels.dtype} of shape {labels.shape}, for {len(images)} images", _NPZ_FORMAT
            )
        return ImageSet.of(images, torch.from_numpy(labels.astype(np.int64)), classes)

    return make("train"), make("test")


def load_unlabelled(path: Path, share: float) -> tuple[ImageSet, ImageSet]:
    """Load the training and held-back images from an ``.npz`` file without labels."""
    parts = _read(path, ("train_images",), ("test_images",))
    train = _stack_images(parts, "train", path)
    if "test_images" in parts:
        held_back = _stack_images(parts, "test", path)
    else:
        train_index, others = split_items(range(len(train)), share, path)
        train, held_back = train[train_index], train[others]
    train_set, test_set = (ImageSet.of(images, torch.zeros(len(images), dtype=torch.int64), 1) for images in (train, held_back))
    return train_set, test_set


def split_items(items: Sequence[_T], share: float, where: Path) -> tuple[list[_T], list[_T]]:
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
    """Read the required arrays of an ``.npz`` file, and the optional ones that exist."""
    try:
        if not zipfile.is_zipfile(path):
            # this distinguishes a missing file from a damaged one
            path.open("rb").close()
            raise StretchError(f"{path} is no .npz file, or it is damaged", _NPZ_FORMAT)
        with np.load(path, allow_pickle=False) as file:
            for key in needed:
                if key not in file:
                    raise StretchError(f"{path} has no `{key}`", _NPZ_FORMAT)
            return {key: file[key] for key in (*needed, *more) if key in file}
    except OSError as error:
        raise StretchError(f"cannot read the images {path}: {error.strerror or error}", _NPZ_FORMAT) from error
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise StretchError(f"the images {path} are damaged or no plain arrays: {error}", _NPZ_FORMAT) from error


def _stack_images(parts: dict[str, np.ndarray[Any, Any]], split: str, path: Path) -> torch.Tensor:
    """Return the images of a split, (n, 3, height, width)."""
    images = parts[f"{split}_images"]
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        raise StretchError(f"`{split}_images` of {path} is {images.dtype} of shape {images.shape}", _NPZ_FORMAT)
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def synthetic(classes: int, size: int, count: int) -> tuple[ImageSet, ImageSet]:
    """Create a synthetic, learnable set: each class has a colour with noise."""
    elements = (count + max(classes, count // 4)) * 3 * size * size
    if elements > MAX_SYNTHETIC:
        raise StretchError(
            f"{count} made-up images of {size} × {size} pixels and {classes} classes take {elements:.1e} numbers, {MAX_SYNTHETIC:.1e} are allowed",
            "choose a smaller data.size, data.count or classes",
        )
    generator = torch.Generator().manual_seed(0)
    colours = torch.rand(classes, 3, 1, 1, generator=generator)

    def make(n: int) -> ImageSet:
        labels = torch.arange(n) % classes
        noise = torch.rand(n, 3, size, size, generator=generator)
        return ImageSet(((colours[labels] + noise) * 127.5).to(torch.uint8), labels)

    return make(count), make(max(classes, count // 4))


#: Ratio of the crop in evaluation to the shorter side, for images that are decoded on demand.
VIEW = 224 / 256


class Normalise:
    """Converts uint8 images to floats of mean 0 and deviation 1 per colour (`mean` and `deviation`: (3,), in 0 to 255)."""

    def __init__(self, mean: torch.Tensor, deviation: torch.Tensor, device: torch.device) -> None:
        self.scale = (1 / deviation).to(device)[None, :, None, None]
        self.shift = (-mean / deviation).to(device)[None, :, None, None]

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return the normalised images, (n, 3, height, width) float32."""
        return images.float() * self.scale + self.shift


def preprocessing(images: "ImageSource") -> Preprocessing:
    """Return the preprocessing that treats a picture like the test images of the training."""
    mean, deviation = (moments.double() / 255 for moments in images.moments())
    # images with a constant colour have no deviation
    return Preprocessing(tuple(mean.tolist()), tuple(deviation.clamp_min(1e-6).tolist()), VIEW if images.augmented else 1.0)


def crop_and_flip(
    images: torch.Tensor, padding: int = 4, generator: torch.Generator | None = None, share: tuple[int, int] = (0, 1)
) -> torch.Tensor:
    """Shift each image by up to `padding` pixels over zeros, and mirror half of them.

    This is the usual augmentation for 32×32 images (He et al. 2016, section 4.2), as one
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
    # Index tensors that a slice separates put the gathered axes first.
    return padded[batch[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


#: Mean and deviation of ImageNet's colours, in 0 to 255, by which every streamed set is normalised.
MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
#: Maximum number of consecutive unreadable images.
_IN_A_ROW = 64
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


@dataclass(frozen=True)
class Item:
    """An encoded image."""

    path: Path  # Path of the file, or of the shard that holds it.
    label: int  # Number of its class.
    offset: int = 0  # First byte in the shard.
    size: int = 0  # Size in bytes; 0 for the whole file.

    def read(self) -> bytes:
        """Return the encoded bytes."""
        if not self.size:
            return self.path.read_bytes()
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            return stream.read(self.size)


def folder_items(folder: Path, classes: list[str] | None = None) -> tuple[list[Item], list[str]]:
    """Return the images of a folder with one subfolder per class, and the class names in order; hidden files and folders are skipped."""
    if not folder.is_dir():
        raise StretchError(f"there is no folder of images {folder}", "it holds `train` and `val`, each with one folder a class")
    names = sorted(part.name for part in folder.iterdir() if part.is_dir() and not part.name.startswith("."))
    class_names = classes if classes is not None else names
    if not names:
        raise StretchError(f"{folder} has no folder for any class", "put the images of each class into a folder of its own")
    for name in names:
        if name not in class_names:
            raise StretchError(
                f"{folder} has the class `{name}`, the training images have not",
                f"classes are {', '.join(class_names[:5])}{' …' * (len(class_names) > 5)}",
            )
    numbers = {name: number for number, name in enumerate(class_names)}
    items = [Item(file, numbers[name]) for name in names for file in sorted((folder / name).rglob("*")) if is_image(file, folder)]
    return items, class_names


def is_image(file: Path, folder: Path) -> bool:
    """Return whether a file has the suffix of an image and is in no hidden folder, such as those of editors."""
    return file.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in file.relative_to(folder).parts)


def shard_items(shards: Sequence[Path], *, labelled: bool = True) -> list[Item]:
    """Return the images of WebDataset shards: files ``KEY.jpg`` (or png …) with ``KEY.cls``, which holds the class number.

    The headers are read once. Images are then read at random positions, so that
    order and resuming work as for any other set.
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
            raise StretchError(f"cannot read the shard {shard}: {error}", "shards are tar files with KEY.jpg and KEY.cls") from error
        for key, (offset, size) in images.items():
            if labelled and key not in labels:
                raise StretchError(f"image `{key}` of the shard {shard} has no `{key}.cls`")
            items.append(Item(shard, labels[key] if labelled else 0, offset, size))
    return items


def other_classes(count: int) -> str:
    """Return the hint for images with different classes than the model's."""
    return f"--set classes={count} replaces the model's last layer, or choose other images"


def _label(tar: tarfile.TarFile, member: tarfile.TarInfo) -> int:
    """Return the class number in a ``KEY.cls`` file."""
    content = tar.extractfile(member)
    text = content.read(16).strip() if content is not None else b""
    if not text.isdigit():
        raise ValueError(f"{member.name} holds no class number")
    return int(text)


class _DecodedImages(Dataset[tuple[torch.Tensor, int, int]]):
    """Decoded items in the order of an epoch; the third value is the index of an unreadable item, or -1.

    The label is -1 after too many consecutive unreadable items, because an exception in a
    worker process would reach the user as a traceback.
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
                # If a file is unreadable for any reason, the next readable image replaces it. Each file is counted
                # at its own position, so that consecutive ones are all counted.
                bad, index = self.order[position], (index + 1) % len(self.items)
                continue
            image = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)
            return self._view(image, position), item.label, bad
        return torch.zeros(3, self.size, self.size, dtype=torch.uint8), -1, self.order[position]

    def _view(self, image: torch.Tensor, position: int) -> torch.Tensor:
        if self.seeds is None:
            short = round(self.size / VIEW)
            cut: torch.Tensor = transforms.center_crop(transforms.resize(image, [short], antialias=True), [self.size, self.size])
            return cut
        # Seeded by the image, not by the process that decodes it, so that resuming and the number of workers have no effect.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash((*self.seeds, position)) & 0x7FFFFFFF)
            cut = RandomResizedCrop([self.size, self.size], antialias=True)(image)
            if torch.rand(()) < 0.5:
                cut = transforms.horizontal_flip(cut)
            return cut


@dataclass
class ImageStream:
    """Images that are decoded on demand: random crops in training, the centre in evaluation."""

    items: list[Item]  # The images.
    size: int  # Height and width in pixels.
    workers: int  # Number of processes that decode.
    bad_limit: int  # Maximum number of unreadable images, after which `epoch` stops.
    device: torch.device  # Device of the batches.
    bad: set[int]  # Indices of the images found unreadable so far.
    augmented: bool = True

    @classmethod
    def of(cls, items: list[Item], size: int, classes: int, workers: int = 0, bad_limit: int = 100) -> "ImageStream":
        """Create a validated set."""
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
        """Return the number of images."""
        return len(self.items)

    def to(self, device: torch.device) -> "ImageStream":
        """Return the same set with its batches on another device."""
        return replace(self, device=device)

    def subset(self, count: int) -> "ImageStream":
        """Return at most this many images, spread evenly."""
        total = len(self.items)
        return self if total <= count else replace(self, items=[self.items[i * total // count] for i in range(count)], bad=set())

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and deviation of ImageNet's colours, (3,) each, in 0 to 255."""
        return torch.tensor(MEAN), torch.tensor(DEVIATION)

    def epoch(
        self, number: int, batch: int, seed: int, skip: int = 0, share: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the full batches of an epoch, in an order set by its number and the seed; of share (k, n) only part k of n of each one."""
        order, batches = epoch_order(len(self.items), number, batch, seed, skip, share)
        return self._load(_DecodedImages(self.items, order.tolist(), self.size, (seed, number)), batches)

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the centres of all images in order."""
        count = len(self.items)
        # Whole images are larger than those of small sets, so a quarter of the batch size suffices.
        size = max(1, size // 4)
        batches = [range(start, min(start + size, count)) for start in range(0, count, size)]
        return self._load(_DecodedImages(self.items, range(count), self.size, None), batches)

    def _load(self, data: _DecodedImages, batches: list[range]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        pinned = self.device.type == "cuda"
        # More processes than cores do not decode faster, and torch warns about them.
        workers = min(self.workers, len(available_cores()))
        for images, labels, bad in DataLoader(data, batch_sampler=map(list, batches), num_workers=workers, pin_memory=pinned):
            self.bad.update(int(number) for number in bad if number >= 0)
            if bool((labels < 0).any()):
                first = self.items[int(bad[labels < 0][0])].path
                raise StretchError(f"{_IN_A_ROW} images in a row cannot be read, the first is {first}", "check the data folder")
            if len(self.bad) > self.bad_limit:
                raise StretchError(
                    f"{len(self.bad)} images cannot be read, such as {self.items[min(self.bad)].path}", "mend them, or raise data.bad_limit"
                )
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


#: Source of training images.
ImageSource = ImageSet | ImageStream

#: Folders of a set that is already divided.
SPLITS = ("train", "val")


def unlabelled_items(folder: Path, share: float) -> tuple[list[Item], list[Item]]:
    """Return the training and held-back images of a folder and its subfolders; hidden files are skipped.

    If the folder has subfolders `train` and `val`, these are the two parts.
    """
    if not folder.is_dir():
        raise StretchError(f"there is no folder of images {folder}", "data.path is a folder of images, flat or of folders")
    if all((folder / split).is_dir() for split in SPLITS):
        return _images(folder / SPLITS[0]), _images(folder / SPLITS[1])
    return split_items(_images(folder), share, folder)


def unlabelled_shards(folder: Path, share: float) -> tuple[list[Item], list[Item]]:
    """Return the training and held-back images of tar files: ``train*.tar`` and ``val*.tar`` if both exist, else a split of all files."""
    parts = [shard_items(sorted(folder.glob(f"{split}*.tar")), labelled=False) for split in SPLITS]
    if all(parts):
        return parts[0], parts[1]
    return split_items(shard_items(sorted(folder.glob("*.tar")), labelled=False), share, folder)


def _images(folder: Path) -> list[Item]:
    return [Item(file, 0) for file in sorted(folder.rglob("*")) if is_image(file, folder) and file.is_file()]


def stored_size(config: DataConfig) -> tuple[int, int] | None:
    """Return the height and width of a set whose images have one size, or None for files, which are cut to any size."""
    if config.name in ("cifar10", "cifar100"):
        return 32, 32
    if config.name != "arrays":
        return None
    try:
        with zipfile.ZipFile(config.path) as file, file.open("train_images.npy") as stream:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, _ = read(stream)
    except (OSError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return None  # `load_arrays` names the fault
    return (int(shape[1]), int(shape[2])) if len(shape) == 4 and all(0 < n <= MAX_SIZE for n in shape[1:]) else None


def load_data(config: DataConfig, classes: int, size: int) -> tuple[ImageSource, ImageSource]:
    """Load the training and test set of a recipe."""
    if config.name == "synthetic":
        return synthetic(classes, size, config.count)
    if not config.path:
        raise StretchError(f"the images `{config.name}` need a folder or a file", "give it with --set data.path=…")
    path = Path(config.path)
    labelled = config.labels != "none"
    if config.name == "arrays":
        return load_arrays(path, classes) if labelled else load_unlabelled(path, config.held_back)
    if config.name in ("cifar10", "cifar100"):
        known_classes = classes if labelled else None
        return _cifar(path, config.name, known_classes, train=True), _cifar(path, config.name, known_classes, train=False)
    if not labelled:
        train, test = (unlabelled_shards if config.name == "shards" else unlabelled_items)(path, config.held_back)
    elif config.name == "shards":
        parts = [sorted(path.glob(f"{split}*.tar")) for split in SPLITS]
        if not all(parts):
            raise StretchError(f"{path} has no shards train*.tar and val*.tar", "data.path is the folder that holds both")
        train, test = (shard_items(shards) for shards in parts)
    else:
        train, names = folder_items(path / "train")
        test, _ = folder_items(path / "val", names)
        if len(names) != classes:
            raise StretchError(f"{path / 'train'} has {len(names)} classes, the model has {classes}", other_classes(len(names)))
    for split, items in zip(SPLITS, (train, test), strict=True):
        if not items:
            raise StretchError(f"{path} has no images in `{split}`", f"images are files that end with {', '.join(SUFFIXES)}")
    train_set, test_set = (ImageStream.of(items, size, classes, config.workers, config.bad_limit) for items in (train, test))
    return train_set, test_set


def _cifar(path: Path, name: str, classes: int | None, *, train: bool) -> ImageSet:
    """Load CIFAR from existing files by torchvision; its classes are not checked if `classes` is None."""
    try:
        from torchvision.datasets import CIFAR10, CIFAR100
    except ModuleNotFoundError as error:
        raise MissingBackendError("CIFAR needs torchvision, which is not installed", install_line("torch")) from error
    kind = CIFAR10 if name == "cifar10" else CIFAR100
    try:
        dataset = kind(str(path), train=train, download=False)
    except RuntimeError as error:
        raise StretchError(
            f"{path} does not hold {name}, or it is damaged", f"download it with torchvision.datasets.{kind.__name__}(…, download=True)"
        ) from error
    class_count = len(dataset.classes)
    if classes is not None and class_count != classes:
        raise StretchError(f"{name} has {class_count} classes, the model has {classes}", other_classes(class_count))
    images = torch.from_numpy(np.ascontiguousarray(dataset.data.transpose(0, 3, 1, 2)))
    return ImageSet.of(images, torch.tensor(dataset.targets, dtype=torch.int64), class_count)
