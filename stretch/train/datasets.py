"""Image sets by name."""

from pathlib import Path

import numpy as np
import torch

from predictors.errors import MissingBackendError, StretchError
from predictors.install import install_line
from stretch.train.data import ImageSet, load_arrays, load_unlabelled, synthetic
from stretch.train.recipe import DataConfig
from stretch.train.source import Source
from stretch.train.stream import SUFFIXES, ImageStream, folder_items, other_classes, shard_items
from stretch.train.unlabelled import unlabelled_items, unlabelled_shards


def load_data(config: DataConfig, classes: int, size: int) -> tuple[Source, Source]:
    """Training and test set of a recipe."""
    if config.name == "synthetic":
        return synthetic(classes, size, config.count)
    if not config.path:
        raise StretchError(f"the images `{config.name}` need a folder or a file", "give it with --set data.path=…")
    path = Path(config.path)
    labelled = config.labels != "none"
    if config.name == "arrays":
        return load_arrays(path, classes) if labelled else load_unlabelled(path, config.held_back)
    if config.name in ("cifar10", "cifar100"):
        return tuple(_cifar(path, config.name, classes if labelled else None, train=train) for train in (True, False))  # type: ignore[return-value]
    if not labelled:
        train, test = (unlabelled_shards if config.name == "shards" else unlabelled_items)(path, config.held_back)
    elif config.name == "shards":
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


def _cifar(path: Path, name: str, classes: int | None, *, train: bool) -> ImageSet:
    """CIFAR by torchvision, from existing files; its classes are not checked if `classes` is None."""
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
