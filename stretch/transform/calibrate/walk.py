"""A branch run operator by operator over all images, so that each can be changed before it computes."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from stretch.planning.design.scale import JOIN_CONV
from stretch.transform.model import Branch

Batches = Sequence[torch.Tensor]
#: What each operator computed, batch by batch.
Values = dict[str, list[torch.Tensor]]


def walk(
    branch: Branch, arriving: Batches, visit: Callable[[str, nn.Module, list[list[torch.Tensor]], Values], None]
) -> list[torch.Tensor]:
    """Run a branch over all batches, one operator after the other.

    Args:
        visit: Called with the name of each operator, its module, what it reads and all
            that is still read later, before it computes; it may change the module.

    Returns:
        What the branch computes before its own part of the join, batch by batch.
    """
    (source,), (result,) = branch.sources, branch.results
    values: Values = {source: list(arriving)}
    for name, reads, done in branch.steps:
        if name == JOIN_CONV:
            return values[reads[0]]
        layer, inputs = branch.get_submodule(name), [values[read] for read in reads]
        visit(name, layer, inputs, values)
        values[name] = [layer(*batch) for batch in zip(*inputs, strict=True)]
        for old in done:
            del values[old]
    return values[result]


def backbone_of(branch: Branch, x: torch.Tensor) -> torch.Tensor:
    """What a branch computes before its own part of the join, for one batch."""
    return walk(branch, [x], lambda *_: None)[0]
