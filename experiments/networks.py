"""The networks that experiments plan for, as operators, and requests in a profile's own precisions."""

from typing import Any

from predictors.devices import DeviceProfile
from predictors.graph import OpGraph

#: The networks of paper 003 by the names that load them, all at 224×224.
MODELS = {
    "resnet34": "ResNet-34",
    "resnet50": "ResNet-50",
    "regnet_x_1_6gf": "RegNetX-1.6GF",
    "timm:regnetx_040": "RegNetX-4GF",
    "timm:efficientnet_lite4": "EfficientNet-Lite4",
    "efficientnet_b5": "EfficientNet-B5",
}
INPUT = (1, 3, 224, 224)


def graph_of(model: str) -> OpGraph:
    """A network as operators, weights left out."""
    from stretch.network.capture import capture
    from stretch.network.models.load import load_model

    return capture(load_model(model, weights="none").module, INPUT, model).graph


def own_precisions(device: DeviceProfile, processors: str) -> dict[str, Any]:
    """Options of a request for some processors, names with commas, in the profile's default precisions, int8 among them."""
    names = tuple(processors.split(","))
    return {"processors": names, "precision": {name: device.processor(name).default_precision for name in names}}
