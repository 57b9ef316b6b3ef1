"""Branches of channels as views of the whole segment's weights."""

from collections.abc import Mapping

import torch
from torch import nn

from stretch.planning.design.channels import Taken

#: Statistics without a channel axis: a batch norm's number of batches.
_COUNTER = "num_batches_tracked"


def share_slices(whole: nn.Module, branch: nn.Module, taken: Mapping[str, Taken]) -> None:
    """Replace weights and statistics of a branch of channels by views of the whole segment's.

    They are views: whatever changes the whole's numbers in place changes the
    branch's. They are neither parameters nor part of a state dict, and have no
    gradients.
    """
    owners = dict(whole.named_children())
    for name, module in branch.named_children():
        if name not in taken:
            continue
        owner = owners[name]
        for key, tensor in {**owner._parameters, **owner._buffers}.items():
            if tensor is None or (module._parameters.get(key) is None and module._buffers.get(key) is None):
                continue
            if key == _COUNTER:
                module._buffers[key] = tensor
                continue
            module._parameters.pop(key, None)
            module._buffers.pop(key, None)
            module.register_buffer(key, _part(tensor.detach(), key, taken[name]), persistent=False)


def _part(tensor: torch.Tensor, key: str, taken: Taken) -> torch.Tensor:
    """The rows, and of a projection's matrix the columns, that a branch has."""
    rows = taken.rows(len(tensor))
    part = tensor[rows.start : rows.stop]
    if key in taken.zeros:
        return torch.zeros_like(part)
    if key == "weight" and taken.columns is not None:
        return part[:, taken.columns.start : taken.columns.stop]
    return part
