"""Hooks of a network: functions that torch calls beside a module's own code, and that no operator stands for."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from predictors.errors import StretchError

#: Where `nn.Module` keeps its hooks.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks_of(module: nn.Module) -> list[dict[int, Any]]:
    """The tables of hooks of a network's modules that are not empty."""
    return [getattr(part, kind) for part in module.modules() for kind in _HOOKS if getattr(part, kind)]


def check_hooks(module: nn.Module, shape: Sequence[int], name: str) -> None:
    """Refuse a network whose hooks do more than look.

    Args:
        module: In evaluation mode; its hooks are called once, and stay.
        shape: Of its input.
        name: Its name, for the error.

    Raises:
        StretchError: If the output is another one without them.
    """
    hooked = [(hooks, dict(hooks)) for hooks in hooks_of(module)]
    if not hooked:
        return
    before = _output(module, shape)
    try:
        for hooks, _ in hooked:
            hooks.clear()
        after = _output(module, shape)
    finally:
        for hooks, kept in hooked:
            hooks.update(kept)
    if before is not None and after is not None and not torch.allclose(before, after, equal_nan=True):
        raise StretchError(f"a hook of `{name}` changes its output", "write what the hook does into forward, and remove it")


def _output(module: nn.Module, shape: Sequence[int]) -> torch.Tensor | None:
    """What it gives for one input; None if that is no tensor, or it fails, which capturing it says in full."""
    x = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), contextlib.suppress(Exception):
        found = module(x)
        return found if isinstance(found, torch.Tensor) else None
    return None
