"""Operators of a TFLite file on their way into a torch network: what a rule reads, in which order of axes, and how it writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from predictors.errors import StretchError
from predictors.registry import RuleTable
from stretch.models.builder import Builder, OperatorInputs, shape_of, turned
from stretch.models.onnx.site import RULES as ONNX
from stretch.models.onnx.site import OnnxSite

#: Version of ONNX's operators that rules call.
_OPSET = 22

#: Where each axis of N×H×W×C stands in N×C×H×W.
FIRST = {0: 0, 1: 2, 2: 3, 3: 1}


@dataclass(frozen=True)
class TfliteView:
    """A tensor of the running network."""

    node: fx.Node  # What gives it.
    #: ``plain``, as the file has it; ``image``, N×C×H×W of what is N×H×W×C in the file; ``row``, N×CHW of an image that is flattened to
    #: N×HWC in the file.
    form: str = "plain"
    size: tuple[int, ...] = ()  # Height, width and channels of that image.

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in the file."""
        current = shape_of(self.node)
        return (current[0], current[2], current[3], current[1]) if self.form == "image" else current

    def like(self, node: fx.Node) -> "TfliteView":
        """Another tensor in the same order."""
        return TfliteView(node, self.form, self.size)


#: What an operator reads: a tensor of the running network, a stored one, or nothing.
Value = TfliteView | np.ndarray | None


@dataclass(frozen=True)
class TfliteSite(OperatorInputs[TfliteView]):
    """One operator with what it reads."""

    code: str  # Its name.
    name: str  # Of what it writes.
    settings: Mapping[str, Any]  # Its settings; those that are left out are zero.
    results: int  # How many tensors it writes.
    builder: Builder  # What its rule writes into.
    kinds: Sequence[str] = field(default_factory=list)  # Element types of what it writes, by numpy's names.

    def seen(self, i: int) -> TfliteView:
        """Input `i` as a tensor of the network, a stored one among its parameters."""
        value = self.value(i)
        if value is None:
            raise StretchError(f"it has no input {i}")
        return value if isinstance(value, TfliteView) else TfliteView(self.builder.stored(value, f"{self.name}_{i}"))

    def shape(self, i: int = 0) -> tuple[int, ...]:
        """Of an input, in the file."""
        value = self.value(i)
        return tuple(value.shape) if isinstance(value, np.ndarray) else self.seen(i).shape

    def plain(self, i: int = 0) -> fx.Node:
        """Input `i` with its axes as in the file."""
        return plain(self.builder, self.seen(i))

    def image(self, i: int = 0) -> fx.Node:
        """Input `i`, N×H×W×C in the file, as N×C×H×W."""
        value = self.value(i)
        if isinstance(value, np.ndarray) and value.ndim == 4:
            return self.builder.stored(value.transpose(0, 3, 1, 2), f"{self.name}_{i}")
        seen = self.seen(i)
        if seen.form == "image":
            return seen.node
        if len(seen.shape) != 4:
            raise StretchError(f"it reads a tensor of shape {list(seen.shape)}, which is no image")
        return turned(self.builder, plain(self.builder, seen), (0, 3, 1, 2))

    def numbers(self, i: int, what: str) -> list[int]:
        """Whole numbers that the file stores."""
        return [int(n) for n in self.known(i, what).ravel()]

    def setting(self, name: str) -> int:
        """A setting that is a whole number."""
        return int(self.settings.get(name, 0))

    def onnx(self, op: str, inputs: Sequence[fx.Node | np.ndarray | None], results: int = 1, **attrs: Any) -> Any:
        """What an operator of ONNX makes of these."""
        return ONNX[op](OnnxSite(inputs, op, self.name, attrs, results, _OPSET, self.builder))

    def operands(self, values: Sequence[fx.Node | np.ndarray]) -> list[Any]:
        """Operands as functions of torch combine them: a single stored number is a number."""
        arrays = {i: value for i, value in enumerate(values) if isinstance(value, np.ndarray)}
        stored = {i: x.item() if x.size == 1 else self.builder.stored(x, f"{self.name}_{i}") for i, x in arrays.items()}
        return [stored.get(i, value) for i, value in enumerate(values)]

    def activated(self, node: fx.Node) -> fx.Node:
        """What is left of a result by the activation that is part of the operator."""
        function = ACTIVATIONS.get(self.setting("fused_activation_function"))
        if function is None:
            raise StretchError(f"its activation is number {self.setting('fused_activation_function')}, which torch has not")
        return function(self.builder, node)


def _of(function: Callable[..., Any], *more: Any) -> Callable[[Builder, fx.Node], fx.Node]:
    return lambda builder, x: builder.call(function, x, *more)


#: Activations by their number in the format.
ACTIVATIONS: dict[int, Callable[[Builder, fx.Node], fx.Node]] = {
    0: lambda builder, x: x,
    1: _of(torch.relu),
    2: _of(torch.clamp, -1.0, 1.0),
    3: _of(F.relu6),
    4: _of(torch.tanh),
}


def plain(builder: Builder, seen: TfliteView) -> fx.Node:
    """A tensor with its axes as in the file."""
    if seen.form == "image":
        return turned(builder, seen.node, (0, 2, 3, 1))
    if seen.form == "row":
        height, width, channels = seen.size
        image = builder.call(torch.reshape, seen.node, (shape_of(seen.node)[0], channels, height, width))
        last = builder.call(torch.permute, image, (0, 2, 3, 1))
        return builder.call(torch.reshape, last, shape_of(seen.node))
    return seen.node


def flattened(builder: Builder, image: fx.Node) -> TfliteView:
    """An image as one row, in the order that torch's networks have."""
    channels, height, width = shape_of(image)[1:]
    row = builder.call(torch.flatten, image, 1)
    return TfliteView(row) if height * width == 1 or channels == 1 else TfliteView(row, "row", (height, width, channels))


def aligned(site: TfliteSite, operands: Sequence[int]) -> tuple[list[Any], TfliteView]:
    """Inputs all in one order of axes, stored ones as arrays, and a tensor whose order the result has.

    Where one is an image all are, and axes that some lack stand before the others.
    """
    values = [site.value(i) for i in operands]
    seen = [value for value in values if isinstance(value, TfliteView)]
    if not seen:
        raise StretchError("it reads no tensor of the network")
    rank = max(len(item.shape) for item in seen)
    single = [isinstance(value, np.ndarray) and value.size == 1 and value.ndim <= rank for value in values]
    if all(item.form == "row" and item.size == seen[0].size for item in seen) and len(seen) + sum(single) == len(values):
        return [value.node if isinstance(value, TfliteView) else value for value in values], seen[0]
    images = [item for item in seen if item.form == "image"]
    if images and max(len(site.shape(i)) for i in operands) == 4:
        return [value if one else _as_image(site, i) for i, value, one in zip(operands, values, single, strict=True)], images[0]
    return [site.plain(i) if isinstance(value, TfliteView) else value for i, value in zip(operands, values, strict=True)], TfliteView(
        seen[0].node
    )


def _as_image(site: TfliteSite, i: int) -> Any:
    """An input with four axes, of which the channels are the second."""
    value, shape = site.value(i), site.shape(i)
    whole = (1,) * (4 - len(shape)) + shape
    if isinstance(value, np.ndarray):
        return value.reshape(whole).transpose(0, 3, 1, 2)
    return site.image(i) if len(shape) == 4 else turned(site.builder, site.builder.call(torch.reshape, site.plain(i), whole), (0, 3, 1, 2))


#: Writes what an operator computes, and gives its results.
Rule = Callable[[TfliteSite], TfliteView | list[TfliteView]]

#: Rules by the name of the operator; every file of this package adds its own.
RULES: RuleTable[Rule] = RuleTable()

#: Decorator for the rule of operators of these names.
rule = RULES.add


def module(site: TfliteSite, built: nn.Module, x: fx.Node) -> fx.Node:
    """A module under the name of what the operator writes."""
    return site.builder.module(built, x, site.name)
