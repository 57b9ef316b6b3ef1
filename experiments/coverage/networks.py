"""The tried networks: torchvision's classifiers, segmentation networks and detectors, and the smallest one of each of timm's modules."""

import json
import sys
from pathlib import Path

SMALLEST = Path(__file__).parent / "smallest.json"


def torchvision() -> list[str]:
    """Return the names of torchvision's classifiers."""
    import torchvision.models

    return torchvision.models.list_models(module=torchvision.models)


def timm() -> list[str]:
    """Return one network of each of timm's modules, as selected by `write_smallest`."""
    return [f"timm:{name}" for name in json.loads(SMALLEST.read_text()).values()]


def segmentation() -> list[str]:
    """Return the names of torchvision's segmentation networks."""
    import torchvision.models

    return torchvision.models.list_models(module=torchvision.models.segmentation)


def detection() -> list[str]:
    """Return the names of torchvision's detectors."""
    import torchvision.models

    return torchvision.models.list_models(module=torchvision.models.detection)


SETS = {"torchvision": torchvision, "timm": timm, "segmentation": segmentation, "detection": detection}

#: Maximum side of the pictures in a set, if its networks' default pictures are so large that a run would take hours.
SIDES = {"segmentation": 224, "detection": 320}


def input_of(name: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    """Return the input shape with which a network is tried.

    Args:
        name: Name of the network.
        usual: Default input shape of the network.
    """
    side = next((side for key, side in SIDES.items() if name in SETS[key]()), None)
    return usual if side is None else (*usual[:2], min(side, usual[2]), min(side, usual[3]))


def write_smallest() -> None:
    """Write the network with the fewest parameters of each of timm's modules; no memory is allocated to count them."""
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
