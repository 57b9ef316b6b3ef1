"""Training without labels: supported recipes, and sources of images."""

from pathlib import Path

from predictors.errors import StretchError, UsageError
from stretch.train.data import divided
from stretch.train.recipe import Recipe
from stretch.train.stream import SUFFIXES, Item, is_image, shard_items

#: The folders of a set that is divided already.
SPLITS = ("train", "val")


def check_unlabelled(recipe: Recipe) -> None:
    """Refuse what a recipe without labels cannot do, before anything is loaded."""
    if recipe.data.labels != "none":
        return
    train = recipe.train
    wrong = (
        (recipe.supernet is not None, "a supernet", "leave out [supernet], or set data.labels = given"),
        (recipe.classes > 0, f"a last layer of {recipe.classes} new classes", "leave out `classes`, or set data.labels = given"),
        (train.distill_kind == "weighted", "train.distill_kind = weighted", "set train.distill_kind = soft"),
        (train.label_smoothing > 0, "train.label_smoothing", "leave it out"),
    )
    for violated, what, hint in wrong:
        if violated:
            raise UsageError(f"{what} needs labels, and the recipe has data.labels = none", hint)
    if train.distill == 0 and train.features == 0:
        raise UsageError(
            "without labels there is only the original to learn from, and the recipe asks for nothing of it",
            "set train.distill = 1, train.features, or both",
        )


def unlabelled_items(folder: Path, share: float) -> tuple[list[Item], list[Item]]:
    """Images of a folder, whatever folders they are in, to train on and held back; what is hidden is no image.

    Where the folder has folders `train` and `val`, these are the two parts.
    """
    if not folder.is_dir():
        raise StretchError(f"there is no folder of images {folder}", "data.path is a folder of images, flat or of folders")
    if all((folder / split).is_dir() for split in SPLITS):
        train, held_back = (_images(folder / split) for split in SPLITS)
        for split, items in zip(SPLITS, (train, held_back), strict=True):
            if not items:
                raise StretchError(f"{folder} has no images in `{split}`", f"images are files that end with {', '.join(SUFFIXES)}")
        return train, held_back
    return divided(_images(folder), share, folder)


def unlabelled_shards(folder: Path, share: float) -> tuple[list[Item], list[Item]]:
    """Images of tar files, to train on and held back: those of ``train*.tar`` and ``val*.tar`` where there are both."""
    parts = [shard_items(sorted(folder.glob(f"{split}*.tar")), labelled=False) for split in SPLITS]
    if all(parts):
        return parts[0], parts[1]
    return divided(shard_items(sorted(folder.glob("*.tar")), labelled=False), share, folder)


def _images(folder: Path) -> list[Item]:
    return [Item(file, 0) for file in sorted(folder.rglob("*")) if is_image(file, folder) and file.is_file()]
