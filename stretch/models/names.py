"""Names of models without importing torch, for the shell's completion: `stretch.models.families` has the rest."""

import importlib.util
import re
from pathlib import Path

#: The small networks of `stretch.models.tiny`.
TINY = ("tiny_bottleneck", "tiny_efficientnet", "tiny_mobilenet", "tiny_regnet", "tiny_resnet", "tiny_vgg")

#: Layers and data sets of the networks of `stretch.models.cifar`.
CIFAR_DEPTHS = (20, 32, 44, 56, 110)
CIFAR_CLASSES = {"cifar10": 10, "cifar100": 100}

#: How torchvision and timm mark a function that builds a model.
_MARKED = re.compile(r"^@register_model\b.*\n(?:@.*\n|[ )].*\n)*def (\w+)\(", re.MULTILINE)


def cifar_names() -> list[str]:
    """``resnet<layers>_<dataset>``."""
    return sorted(f"resnet{depth}_{data}" for depth in CIFAR_DEPTHS for data in CIFAR_CLASSES)


def quick_names(start: str = "") -> list[str]:
    """Names of this package's and torchvision's models, and of timm's where its prefix is asked for.

    Those of the last two are read from their source, which takes milliseconds where importing takes seconds.
    """
    prefix = "timm:"
    known = [*TINY, *cifar_names(), *_marked("torchvision")]
    known += [prefix + name for name in _marked("timm")] if start.startswith(prefix) else [prefix]
    return sorted(name for name in known if name.startswith(start))


def _marked(package: str) -> list[str]:
    """Functions that a package's files mark as builders of models."""
    spec = importlib.util.find_spec(package)
    folders = [Path(place) / "models" for place in (spec.submodule_search_locations or [])] if spec else []
    files = [file for folder in folders for file in folder.glob("*.py")]
    return [name for file in files for name in _MARKED.findall(file.read_text(encoding="utf-8", errors="replace"))]
