"""Copies and checks of the caller's modules, without changes to the caller's objects."""

import contextlib
import copy
import gc
import operator
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from predictors.errors import StretchError, UsageError
from predictors.graph import OpGraph
from stretch.network.capture.inputs import Inputs, InputShapes, check_hooks, hooks_of
from stretch.transform.model import BranchedModel


@contextlib.contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the global random state of Python, NumPy and torch afterwards."""
    python, cpu = random.getstate(), torch.get_rng_state()
    numpy = np.random.get_state()  # noqa: NPY002 - the global generator is the one to be kept
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002 - as above
        torch.set_rng_state(cpu)
        torch.cuda.set_rng_state_all(cuda)


@contextlib.contextmanager
def freeze_garbage() -> Iterator[None]:
    """Exclude existing objects, such as torch's modules, from repeated garbage collection; no effect if the caller froze objects."""
    if ours := not gc.get_freeze_count():
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


@contextlib.contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause garbage collection for a short step that builds many lasting objects; no effect if the caller paused it."""
    if ours := gc.isenabled():
        gc.disable()
    try:
        yield
    finally:
        if ours:
            gc.enable()


def full_shape(shape: InputShapes) -> InputShapes:
    """Add a batch of 1 to the shape of one image; return shapes of several inputs unchanged."""
    if isinstance(shape, Mapping):
        return shape
    try:
        parts: list[Any] = list(shape)
        if parts and not any(hasattr(part, "__index__") for part in parts):
            return [tuple(map(operator.index, part)) for part in parts]
        sizes = tuple(map(operator.index, parts))
    except TypeError:
        sizes = ()
    # three numbers are the shape of one image
    full = (1, *sizes) if len(sizes) == 3 else sizes
    if len(full) != 4 or min(full) < 1:
        raise UsageError(
            f"input_shape {shape!r} is no shape of one image",
            "give channels, height and width, such as (3, 224, 224), the batch before them, as (4, 3, 224, 224), or a shape for each input by name",
        )
    return full


def copy_module(module: nn.Module, shape: InputShapes | Inputs) -> nn.Module:
    """Return a copy of a module on the CPU, in float32, in evaluation mode and without hooks."""
    name = type(module).__name__
    _check_weights(module, name)
    # weight norm and pruning leave computed tensors on a module, which torch does not deep-copy
    computed = [v for part in module.modules() for v in vars(part).values() if isinstance(v, torch.Tensor) and not v.is_leaf]
    try:
        copied = copy.deepcopy(module, {id(tensor): tensor.detach().clone() for tensor in computed})
        copied.to("cpu", torch.float32).eval()
    except Exception as error:
        raise StretchError(
            f"`{name}` cannot be copied: {type(error).__name__}: {error}", "give a function that makes it, as `package.module:function`"
        ) from error
    check_hooks(copied, shape, name)
    for hooks in hooks_of(copied):
        hooks.clear()
    return copied


def other_weight_types(module: nn.Module) -> str | None:
    """Return the types of a module's weights other than float32, such as ``float16``; None without any."""
    kinds = {str(p.dtype).removeprefix("torch.") for p in module.parameters() if p.is_floating_point() and p.dtype != torch.float32}
    return ", ".join(sorted(kinds)) or None


def _check_weights(module: nn.Module, name: str) -> None:
    """Refuse missing weights and unsupported types."""
    for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise StretchError(f"`{name}` has no weights yet: `{key}` waits for a first input", "run the module once before you branch it")
        if tensor.is_meta:
            raise StretchError(f"`{name}` has no weights: `{key}` is on the device `meta`", "load its weights before you branch it")
        if tensor.is_complex():
            raise StretchError(f"`{name}` has complex weights: `{key}`", "branches support real weights only")


def materialize(model: nn.Module, graph: OpGraph) -> BranchedModel:
    """Return a copy of a branched network for export: on the CPU, in float32 and evaluation mode; refuse changed layers."""
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


def _check_layers(model: BranchedModel, graph: OpGraph) -> None:
    """Refuse a network whose layers or weight shapes differ from its design."""
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
    """Return the class of every module and the shape of every weight."""
    layers = {name: type(part).__name__ for name, part in model.named_modules()}
    return layers | {key: "×".join(map(str, tensor.shape)) or "a number" for key, tensor in model.state_dict().items()}
