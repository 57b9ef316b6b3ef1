"""Image sets by name."""

from pathlib import Path

import numpy as np
import torch

from predictors.errors import MissingBackendError, StretchError
from predictors.install import install_line
from stretch.train.data import ImageSet, load_arrays, synthetic
from stretch.train.recipe import DataConfig
from stretch.train.source import Source
from stretch.train.stream import SUFFIXES, ImageStream, folder_items, other_classes, shard_items


def load_data(config: DataConfig, classes: int, size: int) -> tuple[Source, Source]:
    """Training and test set of a recipe.

    Args:
        config: Which images.
        classes: Classes of the model.
        size: Height and width of its input.

    Raises:
        StretchError: If images are missing, damaged, or of other classes than the model's.
    """
    if config.name == "synthetic":
        return synthetic(classes, size, config.count)
    if not config.path:
        raise StretchError(f"the images `{config.name}` need a folder or a file", "give it with --set data.path=…")
    path = Path(config.path)
    if config.name == "arrays":
        return load_arrays(path, classes)
    if config.name in ("cifar10", "cifar100"):
        return _cifar(path, config.name, classes, train=True), _cifar(path, config.name, classes, train=False)
    if config.name == "shards":
        parts = [sorted(path.glob(f"{split}*.tar")) for split in ("train", "val")]
        if not all(parts):
            raise StretchError(f"{path} has no shards train*.tar and val*.tar", "data.path is the folder that holds both")
        train, test = (shard_items(shards) for shards in parts)
    else:
        train, names = folder_items(path / "train")
        test, _ = folder_items(path / "val", names)
        if len(names) != classes:
            raise StretchError(f"{path / 'train'} has {len(names)} classes, the model has {classes}", other_classes(len(names)))
    for split, items in (("train", train), ("val", test)):
        if not items:
            raise StretchError(f"{path} has no images in `{split}`", f"images are files that end with {', '.join(SUFFIXES)}")
    return tuple(ImageStream.of(items, size, classes, config.workers, config.bad_limit) for items in (train, test))  # type: ignore[return-value]


def _cifar(path: Path, name: str, classes: int, *, train: bool) -> ImageSet:
    """CIFAR by torchvision, from files that are there already."""
    try:
        from torchvision.datasets import CIFAR10, CIFAR100
    except ModuleNotFoundError as error:
        raise MissingBackendError("CIFAR needs torchvision, which is not installed", install_line("torch")) from error
    kind = CIFAR10 if name == "cifar10" else CIFAR100
    try:
        found = kind(str(path), train=train, download=False)
    except RuntimeError as error:
        raise StretchError(
            f"{path} does not hold {name}, or it is damaged", f"download it with torchvision.datasets.{kind.__name__}(…, download=True)"
        ) from error
    own = len(found.classes)
    if own != classes:
        raise StretchError(f"{name} has {own} classes, the model has {classes}", other_classes(own))
    images = torch.from_numpy(np.ascontiguousarray(found.data.transpose(0, 3, 1, 2)))
    return ImageSet.of(images, torch.tensor(found.targets, dtype=torch.int64), classes)
