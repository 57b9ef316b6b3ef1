"""Replacement of a network's head for another number of classes."""

import math

import torch
from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from stretch.capture import Captured, capture

#: Operators after the head that keep one number per class.
_AFTER = frozenset(
    {
        *("identity", "dropout", "stochastic_depth", "flatten", "unflatten", "softmax", "log_softmax", "relu", "relu6", "sigmoid"),
        *("global_avg_pool", "global_max_pool", "avg_pool", "max_pool"),
    }
)
_HINT = "leave `classes` out of the recipe, or give a model of your own that has them"


def replace_head(captured: Captured, classes: int, seed: int) -> Captured:
    """Change the number of classes of a network.

    The head is the layer whose outputs are the network's result, independent of the order of
    registration: the operator graph is followed backwards from its output. Its new weights
    are initialised as torch initialises a new layer, with a separate generator: they depend on
    the seed alone, and no other random state changes.
    """
    graph = captured.graph
    name, old = _module(captured, _head(graph))
    new = _fresh(old, classes, torch.Generator().manual_seed(seed))
    where, _, key = name.rpartition(".")
    setattr(captured.module.get_submodule(where), key, new)
    try:
        changed = capture(captured.module, graph.input.shape, graph.name)
    except StretchError as error:
        raise StretchError(f"`{graph.name}` does not work with {classes} classes in `{name}`: {error.message}", _HINT) from error
    output_shape = changed.graph.by_name[changed.graph.output].shape
    if output_shape[1] != classes:
        raise StretchError(f"`{graph.name}` gives {output_shape[1]} numbers an image with {classes} classes in `{name}`", _HINT)
    return changed


def _head(graph: OpGraph) -> Op:
    """The operator whose outputs are the classes."""
    op = graph.by_name[graph.output]
    while op.kind in _AFTER:
        op = graph.by_name[op.inputs[0]]
    if op.kind not in ("linear", "conv"):
        raise StretchError(f"the classes of `{graph.name}` come from `{op.name}` ({op.kind}), which cannot be given others", _HINT)
    return op


def _module(captured: Captured, head: Op) -> tuple[str, nn.Linear | nn.Conv2d]:
    """The layer that holds the head's weights, and its name."""
    weight = captured.weights[head.name]["weight"]
    for name, part in captured.module.named_modules():
        if isinstance(part, nn.Linear | nn.Conv2d) and part.weight is weight and name:
            if isinstance(part, nn.Conv2d) and part.groups != 1:
                break
            return name, part
    raise StretchError(f"the classes of `{captured.graph.name}` come from `{head.name}`, which is no plain layer", _HINT)


def _fresh(old: nn.Linear | nn.Conv2d, classes: int, generator: torch.Generator) -> nn.Linear | nn.Conv2d:
    """A layer like `old` with another number of outputs and torch's default initialisation."""
    has_bias = old.bias is not None
    if isinstance(old, nn.Linear):
        new: nn.Linear | nn.Conv2d = nn.utils.skip_init(nn.Linear, old.in_features, classes, bias=has_bias)
    else:
        new = nn.utils.skip_init(
            nn.Conv2d,
            old.in_channels,
            classes,
            old.kernel_size,
            stride=old.stride,
            padding=old.padding,
            dilation=old.dilation,
            bias=has_bias,
            padding_mode=old.padding_mode,
        )
    with torch.no_grad():
        nn.init.kaiming_uniform_(new.weight, a=math.sqrt(5), generator=generator)
        if new.bias is not None:
            bound = 1 / math.sqrt(new.weight[0].numel())
            nn.init.uniform_(new.bias, -bound, bound, generator=generator)
    return new.train(old.training)
