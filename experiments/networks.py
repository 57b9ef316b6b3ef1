"""Operator graphs of the networks in experiments, and requests in a profile's own precisions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from predictors.devices import DeviceProfile
from predictors.graph import OpGraph

#: Networks of paper 003 by the names that load them, all at 224×224.
MODELS = {
    "resnet34": "ResNet-34",
    "resnet50": "ResNet-50",
    "regnet_x_1_6gf": "RegNetX-1.6GF",
    "timm:regnetx_040": "RegNetX-4GF",
    "timm:efficientnet_lite4": "EfficientNet-Lite4",
    "efficientnet_b5": "EfficientNet-B5",
}
INPUT = (1, 3, 224, 224)


def graph_of(model: str, shape: tuple[int, ...] | None = INPUT) -> OpGraph:
    """Return the operator graph of a network without weights; at its default input size if `shape` is None."""
    from stretch.stages.network import read_network

    return read_network(model, shape, weights="none", fit_statistics=False).graph


def largest_difference(bundle: Path, module: Callable[[Any], Any], shape: tuple[int, ...]) -> float:
    """Return the maximum difference of a bundle's output by the scheduler from a module's for one random input, over the largest output."""
    import numpy as np
    import torch

    from scheduler.runtime.session import Session

    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        want = module(x).numpy()
    with Session(bundle) as session:
        got = session(x.numpy())
    return float(f"{np.abs(got - want).max() / np.abs(want).max():.1e}")


def own_precisions(device: DeviceProfile, processors: str) -> dict[str, Any]:
    """Return the options of a request for processors (names with commas) in the profile's default precisions, which may be int8."""
    names = tuple(processors.split(","))
    return {"processors": names, "precision": {name: device.processor(name).default_precision for name in names}}
