"""What a file that is a model reads and returns: names that Python can hold, shapes that are asked for, results by name."""

import contextlib
import hashlib
import keyword
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import fx

from predictors.errors import StretchError, UsageError, first_line
from predictors.shapes import Shape
from scheduler.formats.onnx.checks import MAX_ALIVE
from stretch.capture.inputs import InputShapes, checked_shape, is_shape, whole_numbers
from stretch.models.builder import plain_name

#: What the code that fx writes of a network calls so itself.
_TAKEN = frozenset({"self", "torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree", "slice", "getattr"})

#: Types that are reals of single precision here.
_REALS = ("float32", "float16", "bfloat16")

#: Numbers of a weight that is looked at for copies of it.
_LARGE = 1024

#: Names that a sentence lists.
_LISTED = 8

_ONE, _NAMED = "with --input 3x224x224", "with --input {}=1x3x224x224"


@dataclass(frozen=True)
class Size:
    """How long a file says that an axis of an input is."""

    usual: int  # How long it is where nobody asks; 0 where the file leaves that open.
    symbol: str = ""  # What the file calls it; axes of one name are equally long. Empty: nothing.
    fixed: bool = False  # Whether no other length may be asked for.


@dataclass(frozen=True)
class Stated:
    """What a file states of an input."""

    name: str  # Its name.
    #: Its axes in the order in which the network reads them; None where the file does not tell how many it has.
    sizes: Sequence[Size] | None
    kind: str = "float32"  # Its element type, by numpy's name; that of what it stands for where it is rounded.
    cast: bool = False  # Whether all that reads it first makes reals of it.

    @property
    def whole(self) -> bool:
        """Whether it is of whole numbers."""
        return self.kind.startswith(("int", "uint"))


@dataclass(frozen=True)
class End:
    """An input of a file."""

    name: str  # In the file.
    argument: str  # What the forward of the network calls it.
    sizes: tuple[Size, ...] | None  # Its axes, as in `Stated`.
    kind: str = ""  # Element type of the whole numbers in the file that are reals here; empty where the file has reals.


def named_ends(path: Path, stated: Sequence[Stated]) -> tuple[End, ...]:
    """The inputs of a file, each with the name of an argument."""
    if not stated:
        raise StretchError(f"{path} has no input", "export the network with what it reads")
    for item in stated:
        if item.whole and not item.cast:
            raise whole_numbers(str(path), f" as its input `{_cut(item.name)}`")
        if not item.whole and item.kind not in _REALS:
            raise StretchError(
                f"the input `{_cut(item.name)}` of {path} is of type {item.kind}, not of 32-bit reals", "export the part that reads reals"
            )
    return tuple(
        End(item.name, argument, None if item.sizes is None else tuple(item.sizes), item.kind if item.whole else "")
        for item, argument in zip(stated, arguments([item.name for item in stated]), strict=True)
    )


def arguments(names: Sequence[str]) -> list[str]:
    """A name that an argument in Python may have for each of a file's inputs, no two alike; one that is such a name stays."""
    plain = [plain_name(name) for name in names]
    plain = [f"{item}_" if keyword.iskeyword(item) or item in _TAKEN else item for item in plain]
    built: dict[int, str] = {}
    for i in sorted(range(len(names)), key=lambda i: plain[i] != names[i]):
        built[i] = _another(plain[i], set(built.values()))
    return [built[i] for i in range(len(names))]


def settled(path: Path, ends: Sequence[End], input_shapes: InputShapes | None) -> dict[str, Shape]:
    """The shape of each input in numbers, by its argument.

    The requested shapes come first: axes that the file calls by one name are as long as it says of one of them.

    Args:
        input_shapes: Shapes, batch first: of its one input, or of several in their order or by their names, those of the file or
            of the arguments; where some or all are left out, what the file states.
    """
    inputs = _asked(path, ends, input_shapes)
    known: dict[str, tuple[str, int]] = {}
    for end in ends:
        if end.argument in inputs:
            _check_asked(path, end, inputs[end.argument], known)
    result = {}
    for end in ends:
        shape = inputs.get(end.argument) or tuple(_usual(size, end, known) for size in end.sizes or ())
        hint = _ONE if len(ends) == 1 else _NAMED.format(end.argument)
        if not shape or any(n < 1 and not size.fixed for n, size in zip(shape, end.sizes or (), strict=False)):
            raise UsageError(f"the size of the input `{_cut(end.name)}` of {path} is open", f"give it {hint}")
        if min(shape) < 1 or math.prod(shape) > MAX_ALIVE:
            raise StretchError(f"the input `{_cut(end.name)}` of {path} has the shape {list(shape)}, which no network reads")
        result[end.argument] = shape
    return result


#: What Python, numpy and torch raise for settings and stored tensors of another kind or size than a rule expects.
_MISFITS = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RuntimeError, MemoryError)


@contextlib.contextmanager
def reading(path: Path, what: str, hint: str | None = None) -> Iterator[None]:
    """Whatever is raised while one operator of a file is read, as an error that names it."""
    try:
        yield
    except (StretchError, *_MISFITS) as error:
        reason = error.message if isinstance(error, StretchError) else f"its attributes are not understood ({first_line(error)[:160]})"
        stated = error.hint if isinstance(error, StretchError) else None
        raise StretchError(f"{what} of {path} cannot be read: {reason}", stated or hint) from error


def by_name(results: Sequence[tuple[str, Any]]) -> Any:
    """What a network returns for outputs that have names: one as it is, several in a dictionary.

    Args:
        results: Name and value of each, in order; a name that comes again gets a number.
    """
    if len(results) == 1:
        return results[0][1]
    built: dict[str, Any] = {}
    for name, value in results:
        built[_another(name, built)] = value
    return built


def finished(
    path: Path, network: fx.GraphModule, shapes: Mapping[str, Shape], ends: Sequence[End], warnings: Sequence[str]
) -> fx.GraphModule:
    """The network of a file, which says of itself what its inputs are.

    Its attribute `input_shape` is the shape of its input, batch first, or of several inputs a table of shapes by the names of its
    forward's arguments; its attribute `warnings` are sentences for the user.
    """
    (output,) = network.graph.find_nodes(op="output")
    if all(node.op in ("placeholder", "get_attr") for node in output.all_input_nodes):
        raise StretchError(f"{path} computes nothing from its input")
    network.input_shape = dict(shapes) if len(shapes) > 1 else next(iter(shapes.values()))
    network.warnings = [*_told(path, ends), *warnings, *_copied(path, network)]
    return network


def _copied(path: Path, network: fx.GraphModule) -> list[str]:
    """That weights which several operators share in the file are several here, where that makes the network larger by a tenth."""
    weights = [parameter.detach().numpy() for parameter in network.parameters() if parameter.numel() >= _LARGE]
    sizes: dict[bytes, int] = {}
    copies = 0
    for weight in weights:
        key = hashlib.sha256(np.ascontiguousarray(weight)).digest()
        copies += weight.size if key in sizes else 0
        sizes[key] = weight.size
    total = sum(parameter.numel() for parameter in network.parameters())
    if not copies or 10 * copies < total:
        return []
    return [
        f"operators of {path} share weights, and each has a copy of its own here: the network has {total:,} parameters, "
        f"{copies:,} of them copies"
    ]


def _told(path: Path, ends: Sequence[End]) -> list[str]:
    """Inputs that are called otherwise than in the file, where there are several, and those that are of other numbers."""
    other = [f"`{_cut(end.name)}` is `{end.argument}`" for end in ends if end.name != end.argument]
    rows = [f"inputs of {path} have other names here: {', '.join(other)}"] if other and len(ends) > 1 else []
    return rows + [
        f"the input `{_cut(end.name)}` of {path} is of type {end.kind} and becomes reals at once: here it is of reals"
        for end in ends
        if end.kind
    ]


def _asked(path: Path, ends: Sequence[End], input_shapes: InputShapes | None) -> dict[str, Shape]:
    """The shapes that are asked for, by argument."""
    if input_shapes is None:
        return {}
    if not isinstance(input_shapes, Mapping):
        shapes: Sequence[Any] = [input_shapes] if is_shape(input_shapes) else list(input_shapes)
        if len(shapes) != len(ends):
            count = "one shape is" if len(shapes) == 1 else f"{len(shapes)} shapes are"
            raise UsageError(f"{count} given, {path} has {_counted(ends)}", "give each its shape " + _NAMED.format(ends[0].argument))
        return {end.argument: checked_shape(end.name, shape) for end, shape in zip(ends, shapes, strict=True)}
    mapping: dict[str, Shape] = {}
    for name, shape in input_shapes.items():
        end = next((end for end in ends if end.name == name), None) or next((end for end in ends if end.argument == name), None)
        if end is None:
            raise UsageError(f"{path} has no input `{_cut(str(name))}`", f"it has {_counted(ends)}")
        if end.argument in mapping:
            raise UsageError(f"the input `{_cut(end.name)}` of {path} has two shapes", "give it one")
        mapping[end.argument] = checked_shape(end.name, shape)
    return mapping


def _check_asked(path: Path, end: End, shape: Shape, known: dict[str, tuple[str, int]]) -> None:
    """See that a shape fits the file; notes how long the axes are that have a name."""
    if end.sizes is None:
        return
    if len(shape) != len(end.sizes):
        raise UsageError(
            f"the input `{_cut(end.name)}` of {path} has {len(end.sizes)} axes, a shape of {len(shape)} is given",
            "give all of them, the batch first",
        )
    for axis, (size, n) in enumerate(zip(end.sizes, shape, strict=True)):
        if size.fixed and n != size.usual:
            raise UsageError(
                f"the input `{_cut(end.name)}` of {path} has {size.usual} along axis {axis}, {n} is given",
                "the file fixes that size: leave out --input, or export the file with another one or an open one",
            )
        if size.symbol:
            where, first = known.setdefault(size.symbol, (end.name, n))
            if first != n:
                raise UsageError(
                    f"the size `{_cut(size.symbol)}` of {path} is {first} in its input `{_cut(where)}` and {n} in `{_cut(end.name)}`",
                    "give one size for all axes of that name",
                )


def _usual(size: Size, end: End, known: dict[str, tuple[str, int]]) -> int:
    """How long an axis is that nobody asked for."""
    if not size.symbol or size.usual < 1:
        return known.get(size.symbol, ("", size.usual))[1]
    return known.setdefault(size.symbol, (end.name, size.usual))[1]


def _counted(ends: Sequence[End]) -> str:
    names = ", ".join(f"`{_cut(end.name)}`" for end in ends[:_LISTED]) + (" and others" if len(ends) > _LISTED else "")
    return f"one input, {names}" if len(ends) == 1 else f"{len(ends)} inputs, {names}"


def _another(name: str, used: Any) -> str:
    """The name, with a number where it is used already."""
    result, count = name, 1
    while result in used:
        result, count = f"{name}_{count}", count + 1
    return result


def _cut(name: str) -> str:
    return name[:80]
