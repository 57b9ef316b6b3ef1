"""Inputs of a network (one tensor, or several by the names of its forward's arguments), and hooks, which torch calls with its modules."""

import contextlib
import inspect
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import nn

from predictors.errors import UsageError, WholeNumbersError, need
from predictors.shapes import InputShapes as InputShapes
from predictors.shapes import Shape
from stretch.network.capture.results import tensors

#: Name of the input of a network with one.
SINGLE_INPUT = "input"


@dataclass(frozen=True)
class Inputs:
    """Shapes of a network's inputs."""

    shapes: Mapping[str, Shape]  # Shapes by name, batch first, in the order of the forward's arguments.
    #: Whether the names are those of the forward's arguments; if not, the only input is called `SINGLE_INPUT` and is its first argument.
    named: bool = False

    @classmethod
    def of(cls, input_shapes: "InputShapes | Inputs", module: nn.Module) -> "Inputs":
        """Return the inputs of a network from one shape, or from several."""
        if isinstance(input_shapes, Inputs):
            return input_shapes
        if is_shape(input_shapes):
            return cls({SINGLE_INPUT: check_shape(SINGLE_INPUT, input_shapes)})
        # a traced network, such as one of an ONNX file, has the signature of its own forward
        arguments = list(inspect.signature(module.forward).parameters.values())
        tensors = [argument for argument in arguments if argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY)]
        names = [tensor.name for tensor in tensors]
        name = type(module).__name__
        shapes: Mapping[str, Any] = input_shapes if isinstance(input_shapes, Mapping) else dict(zip(names, input_shapes, strict=False))
        if len(input_shapes) > len(names) and not isinstance(input_shapes, Mapping):
            valid = ", ".join(names) or "nothing"
            raise UsageError(f"there are {len(input_shapes)} input shapes, the forward of `{name}` takes {valid}", "give a shape for each")
        if unknown := [key for key in shapes if key not in names]:
            raise UsageError(f"`{name}` has no input `{unknown[0]}`", f"its forward takes {', '.join(names) or 'nothing'}")
        if missing := [tensor.name for tensor in tensors if tensor.default is tensor.empty and tensor.name not in shapes]:
            raise UsageError(f"`{name}` has no shape for its input `{missing[0]}`", _join_names(names))
        if not shapes:
            raise UsageError(f"there is no shape for any input of `{name}`", _join_names(names))
        return cls({name: check_shape(name, shapes[name]) for name in names if name in shapes}, named=True)

    def random(self, seed: int = 0, device: torch.device | str = "cpu") -> list[torch.Tensor]:
        """Return one tensor of normally distributed numbers per input, in order."""
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(tuple(shape), generator=generator).to(device) for shape in self.shapes.values()]

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        """Return the positional and keyword arguments with which the forward is called."""
        return ((), dict(zip(self.shapes, tensors, strict=True))) if self.named else (tuple(tensors), {})

    def call(self, module: nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        """Return a network's results for input tensors; the network may write into the tensors."""
        args, kwargs = self.arguments(tensors)
        return module(*args, **kwargs)

    def __str__(self) -> str:
        """Return the sizes as people write them, such as ``1×3×224×224``."""
        sizes = {name: "×".join(map(str, shape)) for name, shape in self.shapes.items()}
        return ", ".join(f"{name} {size}" for name, size in sizes.items()) if self.named or len(sizes) > 1 else sizes[SINGLE_INPUT]


def _join_names(names: Sequence[str]) -> str:
    """Return the hint for missing shapes."""
    return f"give each of {', '.join(names)} its shape, as a mapping or with --input {names[0]}=1x3x224x224" if names else "give it inputs"


def is_shape(arguments: Any) -> TypeGuard[Sequence[int]]:
    """Return whether the argument is the shape of one input, not a collection of several shapes."""
    return not isinstance(arguments, Mapping) and all(isinstance(argument, int) or hasattr(argument, "__index__") for argument in arguments)


def whole_numbers_error(name: str, where: str) -> WholeNumbersError:
    """Return the error for a network with whole-number inputs, such as word indices.

    Args:
        where: Which inputs, or where the network needs them, after a space.
    """
    return WholeNumbersError(
        f"`{name}` takes whole numbers{where}, and inputs are real numbers here",
        "fix that input to one value; where its numbers pick entries of an embedding, give the part after the embedding as `module:factory`",
    )


def check_shape(name: str, arguments: Any) -> Shape:
    """Return the shape of an input as a tuple; refuse sizes that are no whole numbers from 1."""
    try:
        shape = tuple(operator.index(size) for size in arguments)
    except TypeError:
        shape = (0,)
    # a scalar is no image; it is allowed only as one of several inputs
    if min(shape, default=int(name != SINGLE_INPUT)) < 1:
        raise UsageError(f"the input `{name}` has {arguments!r}, which is no shape", "give whole numbers from 1, such as (1, 3, 224, 224)")
    return shape


# Hooks of a network: functions that torch calls in addition to a module's own code, and that no operator represents.


#: Where `nn.Module` keeps its hooks.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks_of(module: nn.Module) -> list[dict[int, Any]]:
    """Return the non-empty hook tables of a network's modules."""
    return [getattr(part, kind) for part in module.modules() for kind in _HOOKS if getattr(part, kind)]


def check_hooks(module: nn.Module, shapes: InputShapes | Inputs, name: str) -> None:
    """Refuse a network whose hooks change its results."""
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
    need(bool(same), f"a hook of `{name}` changes its output", "write what the hook does into forward, and remove it")


def _output(module: nn.Module, inputs: Inputs) -> list[torch.Tensor] | None:
    """Return the network's result tensors for one input; None if it fails, because capturing reports that in full."""
    with torch.no_grad(), contextlib.suppress(Exception):
        return tensors(inputs.call(module, inputs.random()))
    return None
