"""The registry of model families; no torch is imported before a family is used."""

import importlib
import importlib.util
import re
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from predictors.registry import Registry
from stretch.plugins import describe, load_plugins

if TYPE_CHECKING:
    from torch import Tensor, nn

    from scheduler.bundle.preprocessing import Preprocessing

#: Entry-point group for families of other packages.
GROUP = "nn_stretch.families"

#: Families of this package by their registered names, each with its file and the prefix of its models' names.
#: A name is looked up in this order; files that take long to import come last.
BUILT_IN = {
    **dict.fromkeys(("tiny", "cifar"), ("tiny", "")),
    **dict.fromkeys(("torchvision", "segmentation", "detection"), ("torchvision", "")),
    "timm": ("timm", "timm:"),
}


class Family(Protocol):
    """Models that are built in the same way.

    A family is a class without constructor arguments, registered by
    ``@families.register("<name>")``. The names of its models have
    no prefix if `prefix` is empty; otherwise they are ``<prefix>NAME``.
    """

    prefix: ClassVar[str]

    def names(self) -> list[str]:
        """Return the names of the family's models, without the prefix."""
        ...

    def build(self, name: str) -> "nn.Module":
        """Build one model with freshly initialised weights, drawn from torch's global generator."""
        ...

    def input_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the model's default input, batch 1 first."""
        ...

    def preprocessing(self, name: str) -> "Preprocessing":
        """Return the preprocessing of pictures for a model.

        A family may leave this method out; the default is then the module's own statement,
        as an attribute ``preprocessing`` or in timm's form, or else ImageNet's preprocessing.
        """
        ...

    def default_weights(self, name: str) -> "tuple[dict[str, Tensor], str] | None":
        """Return the trained weights and their name, or None if there are none."""
        ...

    def checked(self) -> frozenset[str]:
        """Return the names of the models that the project's tests branch, export and run."""
        ...


families: Registry[type[Family]] = Registry("model family")


def each_family(only: str | None = None) -> Iterator[tuple[str, Family]]:
    """Yield name and family, each imported only when it is reached; families of other packages come last.

    Other packages register families by the entry point ``nn_stretch.families``.

    Args:
        only: A model's name; families of this package that cannot contain it are left out. None for all families.
    """
    for name, (file, prefix) in BUILT_IN.items():
        # a name in a family without a prefix has no colon
        if only is None or (only.startswith(prefix) if prefix else ":" not in only):
            importlib.import_module(f"stretch.network.models.{file}")
            yield name, families.get(name)()
    load_plugins(GROUP)
    for name in families:
        if name not in BUILT_IN:
            try:
                family = families.get(name)()
            except Exception as error:
                _warn(name, error)
            else:
                yield name, family


def model_names(pattern: str = "*") -> list[tuple[str, str]]:
    """Return name and family of the models whose name matches a wildcard pattern, sorted by name."""
    result = [(prefix + name, key) for key, family in each_family() for prefix, names in [_names(key, family)] for name in names]
    return sorted((name, key) for name, key in result if fnmatchcase(name, pattern))


def find_family(name: str) -> tuple[Family, str] | None:
    """Return the family that builds `name` and the name without its prefix, or None."""
    for key, family in each_family(name):
        prefix, names = _names(key, family)
        if name.startswith(prefix) and name.removeprefix(prefix) in names:
            return family, name.removeprefix(prefix)
    return None


def _names(key: str, family: Family) -> tuple[str, list[str]]:
    """Return the prefix and names of a family; if a family of another package fails, warn and return none."""
    try:
        return family.prefix, list(family.names())
    except Exception as error:
        if key in BUILT_IN:
            raise
        _warn(key, error)
        return "", []


def _warn(key: str, error: Exception) -> None:
    plugins = [describe(point) for point in entry_points(group=GROUP) if point.module == families.get(key).__module__]
    author = plugins[0] if plugins else f"`{families.get(key).__module__}`"
    warnings.warn(f"the model family `{key}` of {author} is left out: {type(error).__name__}: {error}", stacklevel=3)


# Names of models for the shell's completion, without importing torch.


#: The small networks of `stretch.network.models.tiny`.
TINY = ("tiny_bottleneck", "tiny_efficientnet", "tiny_mobilenet", "tiny_regnet", "tiny_resnet", "tiny_vgg")

#: Numbers of layers and data sets of the networks of `stretch.network.models.tiny`.
CIFAR_DEPTHS = (20, 32, 44, 56, 110)
CIFAR_CLASSES = {"cifar10": 10, "cifar100": 100}

#: Decorated functions by which torchvision and timm register the builders of models.
_REGISTERED = re.compile(r"^@register_model\b.*\n(?:@.*\n|[ )].*\n)*def (\w+)\(", re.MULTILINE)


def quick_names(start: str = "") -> list[str]:
    """Return the names of this package's and torchvision's models, and of timm's if `start` has its prefix.

    The names of torchvision and timm are read from their source: that takes milliseconds, importing takes seconds.
    """
    prefix = "timm:"
    names = [*TINY, *(f"resnet{depth}_{data}" for depth in CIFAR_DEPTHS for data in CIFAR_CLASSES), *_registered_models("torchvision")]
    names += [prefix + name for name in _registered_models("timm")] if start.startswith(prefix) else [prefix]
    return sorted(name for name in names if name.startswith(start))


def _registered_models(package: str) -> list[str]:
    """Return the names of the functions that a package's files register as builders of models."""
    spec = importlib.util.find_spec(package)
    folders = [Path(location) / "models" for location in (spec.submodule_search_locations or [])] if spec else []
    files = [file for folder in folders for file in folder.glob("*.py")]
    return [name for file in files for name in _REGISTERED.findall(file.read_text(encoding="utf-8", errors="replace"))]
