"""A branched network as it is now, whatever its user did since it was built."""

import hashlib

import torch
from torch import nn

from predictors.errors import StretchError
from predictors.graph import OpGraph
from stretch.api.arguments import copy_module
from stretch.capture.inputs import Inputs
from stretch.transform.model import BranchedModel, op_weights


def as_it_is(model: nn.Module, graph: OpGraph) -> BranchedModel:
    """A copy that can be exported: on the CPU, in float32 and evaluation mode."""
    if not isinstance(model, BranchedModel):
        raise StretchError(
            f"the network is {type(model).__name__}, no longer the BranchedModel that was built", "leave `model` as it was made"
        )
    _check_layers(model, graph)
    copied = copy_module(model, Inputs({op.name: op.shape for op in graph.inputs}))
    assert isinstance(copied, BranchedModel)
    for key, tensor in copied.state_dict().items():
        if not tensor.isfinite().all():
            raise StretchError(f"`{key}` is not finite, so the network computes nothing", "did training diverge? lower the learning rate")
    return copied


def fingerprint(model: BranchedModel) -> str:
    """SHA-256 of weights and statistics; equal for equal networks."""
    digest = hashlib.sha256()
    for name, weights in sorted(op_weights(model).items()):
        for key, tensor in sorted(weights.items()):
            digest.update(f"{name}.{key}".encode())
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _check_layers(model: BranchedModel, graph: OpGraph) -> None:
    """Compare kinds of layers and shapes of weights with those that the design gives."""
    with torch.device("meta"):
        built = _layers(BranchedModel(graph, model.design))
    present = _layers(model)
    for name in dict.fromkeys((*built, *present)):
        if present.get(name) != built.get(name):
            raise StretchError(
                f"the network is no longer the one that was built: `{name}` is {present.get(name, 'gone')}, it was {built.get(name, 'not there')}",
                "train its weights, and leave its layers as they are",
            )


def _layers(model: BranchedModel) -> dict[str, str]:
    """The class of every module and the shape of every weight."""
    layers = {name: type(part).__name__ for name, part in model.named_modules()}
    return layers | {key: "×".join(map(str, tensor.shape)) or "a number" for key, tensor in model.state_dict().items()}
