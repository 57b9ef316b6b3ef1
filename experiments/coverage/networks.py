"""Which networks are tried: all of torchvision's classifiers, segmentation networks and detectors, and of each of timm's modules the smallest network."""

import json
import sys
from pathlib import Path

SMALLEST = Path(__file__).parent / "smallest.json"


def torchvision() -> list[str]:
    """Torchvision's classifiers by name."""
    import torchvision.models

    return torchvision.models.list_models(module=torchvision.models)


def timm() -> list[str]:
    """Return one network of each of timm's modules, as `write_smallest` found them."""
    return [f"timm:{name}" for name in json.loads(SMALLEST.read_text()).values()]


def segmentation() -> list[str]:
    """Torchvision's networks for segmentation by name."""
    import torchvision.models

    return torchvision.models.list_models(module=torchvision.models.segmentation)


def detection() -> list[str]:
    """Torchvision's detectors by name."""
    import torchvision.models

    return torchvision.models.list_models(module=torchvision.models.detection)


SETS = {"torchvision": torchvision, "timm": timm, "segmentation": segmentation, "detection": detection}

#: Side of the pictures of a set, where its networks' usual ones are so large that a run would take hours.
SIDES = {"segmentation": 224, "detection": 320}


def input_of(name: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    """Return the input's shape that a network is tried with.

    Args:
        name: Of the network.
        usual: Its usual one.
    """
    side = next((side for key, side in SIDES.items() if name in SETS[key]()), None)
    return usual if side is None else (*usual[:2], min(side, usual[2]), min(side, usual[3]))


def write_smallest() -> None:
    """Write the network with the fewest parameters of each of timm's modules; no data is allocated to count them."""
    import timm
    import torch

    smallest = {}
    for module in timm.list_modules():
        sizes = {}
        for name in timm.list_models(module=module):
            try:
                with torch.device("meta"):
                    sizes[name] = sum(parameter.numel() for parameter in timm.create_model(name).parameters())
            except Exception as error:
                sys.stderr.write(f"{name}: {type(error).__name__}: {str(error)[:80]}\n")
        if sizes:
            smallest[module] = min(sizes, key=lambda name: (sizes[name], name))
            sys.stderr.write(f"{module}: {smallest[module]}, {sizes[smallest[module]] / 1e6:.1f} M\n")
    SMALLEST.write_text(json.dumps(smallest, indent=1) + "\n")
