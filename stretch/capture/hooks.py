"""Hooks of a network: functions that torch calls beside a module's own code, and that no operator stands for."""

import contextlib
from typing import Any

import torch
from torch import nn

from predictors.errors import StretchError
from stretch.capture.inputs import Inputs, InputShapes
from stretch.capture.results import tensors

#: Where `nn.Module` keeps its hooks.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks_of(module: nn.Module) -> list[dict[int, Any]]:
    """The tables of hooks of a network's modules that are not empty."""
    return [getattr(part, kind) for part in module.modules() for kind in _HOOKS if getattr(part, kind)]


def check_hooks(module: nn.Module, shapes: InputShapes | Inputs, name: str) -> None:
    """Refuse a network whose hooks do more than look."""
    hooked = [(hooks, dict(hooks)) for hooks in hooks_of(module)]
    if not hooked:
        return
    arguments = Inputs.of(shapes, module)
    before = _output(module, arguments)
    try:
        for hooks, _ in hooked:
            hooks.clear()
        after = _output(module, arguments)
    finally:
        for hooks, kept in hooked:
            hooks.update(kept)
    if before is None or after is None:
        return
    same = len(before) == len(after) and all(torch.allclose(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))
    if not same:
        raise StretchError(f"a hook of `{name}` changes its output", "write what the hook does into forward, and remove it")


def _output(module: nn.Module, inputs: Inputs) -> list[torch.Tensor] | None:
    """The tensors it gives for one input; None if it fails, which capturing it says in full."""
    with torch.no_grad(), contextlib.suppress(Exception):
        return tensors(inputs.call(module, inputs.random()))
    return None
