"""A torch network while it is built from a file: calls of torch with shapes computed without data, inputs, results and warnings."""

import contextlib
import hashlib
import keyword
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import pi, prod, sqrt
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.func import functional_call

from predictors.errors import StretchError, UsageError, first_line, need
from predictors.graph import unique_name
from predictors.shapes import Shape
from scheduler.bundle.manifest import SourceFile
from scheduler.formats.onnx.file import MAX_LIVE_ELEMENTS
from scheduler.runtime.own import SourceFileRunner
from stretch.network.capture.inputs import InputShapes, check_shape, is_shape, whole_numbers_error

#: Maximum number of elements of a tensor that is computed from stored tensors alone.
MAX_KNOWN = 1 << 26

#: Attributes by which a network from a file describes itself; no module or tensor of it may have these names.
_RESERVED_NAMES = ("input_shape", "own_file", "warnings")


class Builder:
    """A torch network under construction; shapes are computed on tensors without data.

    Args:
        shapes: Shape of the input, or of several inputs by the names of the forward's arguments, which are valid Python names.

    Attributes:
        inputs: Node of each input by its argument's name.
    """

    def __init__(self, shapes: Sequence[int] | Mapping[str, Sequence[int]]) -> None:
        self._root, self._graph = nn.Module(), fx.Graph()
        self.inputs: dict[str, fx.Node] = {}
        for name, shape in (shapes if isinstance(shapes, Mapping) else {"x": shapes}).items():
            self.inputs[name] = self._graph.placeholder(name)
            self.inputs[name].meta["val"] = torch.empty(tuple(shape), device="meta")

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Add a call of a function of torch, and return its node."""
        return self._record(self._graph.call_function(function, args, kwargs), lambda *a, **k: function(*a, **k))

    def method(self, name: str, x: fx.Node, *args: Any) -> fx.Node:
        """Add a call of a method of a tensor, and return its node."""
        return self._record(self._graph.call_method(name, (x, *args)), lambda self, *a: getattr(self, name)(*a))

    def module(self, module: nn.Module, x: fx.Node, name: str) -> fx.Node:
        """Add a module that reads one tensor, under a free name, and return its node."""
        current = self._free_name(name)
        self._root.add_module(current, module.eval())
        state = {key: item.to("meta") for key, item in module.state_dict().items()}
        return self._record(self._graph.call_module(current, (x,)), lambda tensor: functional_call(module, state, (tensor,)))

    def module_of(self, node: fx.Node) -> nn.Module | None:
        """Return the module that computes a node, if any."""
        return self._root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def value(self, node: Any) -> torch.Tensor | None:
        """Return the stored tensor of a node; None for any other node."""
        return attrgetter(str(node.target))(self._root) if isinstance(node, fx.Node) and node.op == "get_attr" else None

    def add_tensor(self, x: np.ndarray, name: str, *, learned: bool = True) -> fx.Node:
        """Add a stored tensor and return its node; a real tensor is a trainable parameter unless `learned` is false."""
        current, value = self._free_name(name), torch.from_numpy(np.array(x, order="C"))
        if learned and value.is_floating_point():
            self._root.register_parameter(current, nn.Parameter(value))
        else:
            self._root.register_buffer(current, value)
        node = self._graph.get_attr(current)
        node.meta["val"] = value.to("meta")
        return node

    def to_reals(self, node: fx.Node) -> fx.Node:
        """Convert a result to float32, the only data type that bundles return."""
        return node if node.meta["val"].is_floating_point() else self.method("to", node, torch.float32)

    def evaluate(self, node: fx.Node) -> np.ndarray:
        """Compute a node that depends on stored tensors alone."""
        need(prod(shape_of(node)) <= MAX_KNOWN, "it makes a stored tensor too large")
        with torch.no_grad():
            numbers: np.ndarray = self.finish(node, "Known")(torch.zeros(1)).numpy()
        return numbers

    def finish(self, result: Any, name: str) -> fx.GraphModule:
        """Build the network that returns these nodes within tuples, lists and dictionaries; unused nodes are removed."""
        self._graph.output(result)
        graph_module = fx.GraphModule(self._root, self._graph, name)
        graph_module.graph.eliminate_dead_code()
        graph_module.delete_all_unused_submodules()
        graph_module.recompile()
        return graph_module.eval()

    def _record(self, node: fx.Node, compute: Callable[..., Any]) -> fx.Node:
        try:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda item: item.meta["val"])
            with torch.no_grad():
                built = compute(*args, **kwargs)
        # Torch raises a different exception for each kind of invalid argument.
        except Exception as error:
            raise StretchError(f"torch does not take what it reads: {first_line(error)[:160]}") from error
        parts = built if isinstance(built, tuple | list) else (built,)
        sizes = [part.numel() for part in parts if isinstance(part, torch.Tensor)]
        if not all(0 < size <= MAX_LIVE_ELEMENTS for size in sizes):
            raise StretchError(f"it makes a tensor of {max(sizes):.1e} elements, 1 to {MAX_LIVE_ELEMENTS:.1e} are allowed")
        node.meta["val"] = built
        return node

    def _free_name(self, name: str) -> str:
        """Return a free name for a submodule or parameter, similar to the one in the file."""
        return unique_name(python_name(name), lambda x: hasattr(self._root, x) or hasattr(fx.GraphModule, x) or x in _RESERVED_NAMES)


def python_name(name: str) -> str:
    """Return a name that is valid in Python, because fx writes names into code."""
    cleaned = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return cleaned if cleaned and not cleaned[0].isdigit() else f"n_{cleaned}"


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's result."""
    return tuple(node.meta["val"].shape)


def permute_axes(builder: Builder, x: fx.Node, order: Sequence[int]) -> fx.Node:
    """Return a tensor with its axes in another order; a permutation of a permutation becomes one."""
    order = tuple(order)
    if order == tuple(range(len(order))):
        return x
    if x.op == "call_function" and x.target is torch.permute:
        args: tuple[Any, ...] = x.args
        earlier, first = args
        return permute_axes(builder, earlier, [first[i] for i in order])
    return builder.call(torch.permute, x, order)


def permute_shape(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with its axes in another order; an empty order keeps it."""
    return tuple(shape[axis] for axis in order) if order else tuple(shape)


def rearrange(builder: Builder, x: fx.Node, split: Sequence[int], order: Sequence[int], shape: Sequence[int]) -> fx.Node:
    """Reshape a tensor, permute its axes, and reshape it again."""
    return builder.call(torch.reshape, builder.call(torch.permute, builder.call(torch.reshape, x, split), order), shape)


def with_weights(module: nn.Module, **numbers: np.ndarray | None) -> nn.Module:
    """Set these parameters and statistics of a module, by name; None for one that the module does not have."""
    for name, number in numbers.items():
        current = getattr(module, name)
        if number is not None and tuple(current.shape) != number.shape:
            raise StretchError(f"its weights have the shape {list(number.shape)}, {list(current.shape)} are needed")
        if number is not None:
            # The file's array may be in read-only memory.
            value = torch.from_numpy(number.copy())
            setattr(module, name, nn.Parameter(value) if isinstance(current, nn.Parameter) else value)
    return module


#: Type by which a format's rules see a tensor of the network.
View = TypeVar("View")


@dataclass(frozen=True)
class Site(Generic[View]):
    """One operator of a file as its rule sees it."""

    inputs: Sequence[View | np.ndarray | None]  # Inputs in the file's order: tensors of the network, stored arrays, or None if left out.
    op: str  # Name of the operator's type.
    name: str  # Name of this operator, or of its output.
    attrs: Mapping[str, Any]  # Attributes of the operator; texts are strings.
    results: int  # Number of tensors that the operator writes.
    builder: Builder  # Builder to which the rule adds nodes.

    def value(self, i: int) -> View | np.ndarray | None:
        """Return input `i`; None if it is left out."""
        return self.inputs[i] if i < len(self.inputs) else None

    def require_stored(self, i: int, noun: str) -> np.ndarray:
        """Return input `i`, which the file must store."""
        value = self.value(i)
        if not isinstance(value, np.ndarray):
            raise StretchError(f"its {noun} depends on the network's inputs, or is left out")
        return value

    def numbers(self, i: int, noun: str) -> list[int]:
        """Return the whole numbers of input `i`, which the file must store."""
        return [int(n) for n in self.require_stored(i, noun).ravel()]

    def optional_stored(self, i: int, noun: str) -> np.ndarray | None:
        """Return input `i`, which the file must store unless it is left out."""
        return None if self.value(i) is None else self.require_stored(i, noun)

    def integer(self, name: str, usual: int = 0) -> int:
        """Return a whole-number attribute."""
        return int(self.attrs.get(name, usual))

    def real(self, name: str, usual: float = 0.0) -> float:
        """Return a real-number attribute."""
        return float(self.attrs.get(name, usual))

    def flag(self, name: str, usual: bool = False) -> bool:
        """Return a boolean attribute."""
        return bool(self.attrs.get(name, usual))

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Add a call of a function of torch, and return its node."""
        return self.builder.call(function, *args, **kwargs)

    def add_tensor(self, x: np.ndarray, noun: object) -> fx.Node:
        """Add a stored tensor that is named after the operator, and return its node."""
        return self.builder.add_tensor(x, f"{self.name}_{noun}")


#: Batch norms of torch by the number of axes of their input.
BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


# Inputs and results of a model file: names that are valid in Python, requested shapes, and results by name.


#: Names that fx writes into the code of a network.
_NAMES_IN_CODE = frozenset({"self", "torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree", "slice", "getattr"})


@dataclass(frozen=True)
class OwnNetwork:
    """Facts about the file that a network was read from."""

    own: SourceFile  # Inputs and outputs of the file; the network names them by the forward's arguments and the keys of its result.
    #: For each operator in order: its name in messages, and the tensors that it writes by their names in the file, each with
    #: the network's node that computes it, and the order of its axes in the file.
    operators: Sequence[tuple[str, Mapping[str, tuple[str, tuple[int, ...]]]]] = ()
    #: Opens a file in its own runtime, and returns a function from its inputs to its results.
    opener: Callable[[Path, SourceFile], Callable[[Mapping[str, Any]], dict[str, Any]]] = lambda path, own: SourceFileRunner(path, own).run


#: Data types that are read as single precision.
_REALS = ("float32", "float16", "bfloat16")

#: Minimum number of elements of a weight that is checked for copies.
_LARGE = 1024

#: Maximum number of names that a message lists.
_MAX_LISTED = 8

_INPUT_EXAMPLE = "with --input {}=1x3x224x224"
_BYTES = (
    "give the network of reals that was rounded, or its file with QuantizeLinear behind the input and DequantizeLinear before the output"
)


@dataclass(frozen=True)
class Size:
    """A file's statement about the length of one input axis."""

    usual: int  # Default length; 0 if the file leaves the length open.
    symbol: str = ""  # Name of the axis in the file; axes of one name have equal lengths. Empty if it has no name.
    fixed: bool = False  # Whether no other length may be requested.


@dataclass(frozen=True)
class End:
    """An input of a file."""

    name: str  # Name in the file.
    #: Axes in the order in which the network reads them; None if the file does not state their number.
    sizes: Sequence[Size] | None
    kind: str = "float32"  # Element type by numpy's name; for a quantised input the type of the reals that it represents.
    cast: bool = False  # Whether every operator that reads the input converts it to reals.
    argument: str = ""  # Name of the argument in the network's forward.

    @property
    def is_integer(self) -> bool:
        """Whether the input consists of whole numbers."""
        return self.kind.startswith(("int", "uint"))


def named_ends(path: Path, ends: Sequence[End]) -> tuple[End, ...]:
    """Give each input of a file the name of an argument; refuse inputs that are not real numbers."""
    need(bool(ends), f"{path} has no input", "export the network with what it reads")
    for end in ends:
        if end.is_integer and not end.cast:
            error = whole_numbers_error(str(path), f" as its input `{_cut(end.name)}`")
            error.hint = _BYTES if end.kind in ("int8", "uint8") else error.hint
            raise error
        need(
            bool(end.is_integer or end.kind in _REALS),
            f"the input `{_cut(end.name)}` of {path} is of type {end.kind}, not of 32-bit reals",
            "export the part that reads reals",
        )
    return tuple(replace(end, argument=argument) for end, argument in zip(ends, arguments([end.name for end in ends]), strict=True))


def arguments(names: Sequence[str]) -> list[str]:
    """Return a unique, valid argument name in Python for each of a file's inputs; valid names stay."""
    valid_names = [python_name(name) for name in names]
    valid_names = [f"{item}_" if keyword.iskeyword(item) or item in _NAMES_IN_CODE else item for item in valid_names]
    built: dict[int, str] = {}
    for i in sorted(range(len(names)), key=lambda i: valid_names[i] != names[i]):
        built[i] = unique_name(valid_names[i], set(built.values()).__contains__)
    return [built[i] for i in range(len(names))]


def resolve_input_shapes(path: Path, ends: Sequence[End], input_shapes: InputShapes | None) -> dict[str, Shape]:
    """Return the shape of each input in numbers, by its argument.

    Requested shapes come first: they set the lengths of all axes with the same name in the file.

    Args:
        input_shapes: Shapes, batch first: of the only input, or of several in their order or by their names, either the file's
            or the arguments'. Default for missing ones: the shapes in the file.
    """
    inputs = _requested_shapes(path, ends, input_shapes)
    known_axes: dict[str, tuple[str, int]] = {}
    for end in ends:
        if end.argument in inputs:
            _check_requested(path, end, inputs[end.argument], known_axes)
    result = {}
    for end in ends:
        shape = inputs.get(end.argument) or tuple(_axis_length(size, end, known_axes) for size in end.sizes or ())
        if (not shape and end.sizes is None) or any(n < 1 and not size.fixed for n, size in zip(shape, end.sizes or (), strict=False)):
            raise UsageError(
                f"the size of the input `{_cut(end.name)}` of {path} is open", f"give it with --input {_example(end, len(ends))}"
            )
        if min(shape, default=1) < 1 or math.prod(shape) > MAX_LIVE_ELEMENTS:
            raise StretchError(f"the input `{_cut(end.name)}` of {path} has the shape {list(shape)}, which no network reads")
        result[end.argument] = shape
    return result


def _example(end: End, count: int) -> str:
    """Return an example of a shape on the command line: an image without its batch, anything else with its name."""
    usual = (1, 3, 224, 224)
    sizes = [size.usual or (usual[axis] if len(end.sizes or ()) == len(usual) else 16) for axis, size in enumerate(end.sizes or ())]
    sizes = sizes or list(usual)
    alone = count == 1 and len(sizes) == len(usual) and sizes[0] == 1
    return "x".join(map(str, sizes[1:])) if alone else f"{end.argument}={'x'.join(map(str, sizes))}"


#: Exceptions of Python, numpy and torch for settings and stored tensors of an unexpected type or size.
_MISFITS = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RuntimeError, MemoryError)


@contextlib.contextmanager
def reading(path: Path, noun: str, hint: str | None = None, stated: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Turn any error while reading one operator of a file into one that names the operator and its attributes."""
    try:
        yield
    except (StretchError, *_MISFITS) as error:
        reason = error.message if isinstance(error, StretchError) else f"its attributes are not understood ({first_line(error)[:160]})"
        own_hint = error.hint if isinstance(error, StretchError) else None
        statements = ", ".join(f"{name[:40]} {str(value)[:40]}" for name, value in list((stated or {}).items())[:_MAX_LISTED])
        raise StretchError(
            f"{noun} of {path} cannot be read: {reason}{statements and f' (it states {statements})'}", own_hint or hint
        ) from error


def by_name(builder: Builder, results: Sequence[tuple[str, fx.Node]]) -> Any:
    """Return the results of a network with named outputs: a single one itself, several in a dictionary.

    Args:
        results: Names and values, in order; a repeated name gets a number, a repeated value is copied.
    """
    if len(results) == 1:
        return results[0][1]
    built: dict[str, fx.Node] = {}
    for name, value in results:
        again = value in built.values()
        built[unique_name(name, built.__contains__)] = builder.call(operator.mul, value, 1) if again else value
    return built


def finish_network(
    path: Path, network: fx.GraphModule, shapes: Mapping[str, Shape], ends: Sequence[End], warnings: Sequence[str], own: Any = None
) -> fx.GraphModule:
    """Finish the network of a file, and let it describe its own inputs.

    Its attribute `own_file` is an `OwnNetwork` if the file itself can be run as a reference.

    Its attribute `input_shape` is the shape of its input, batch first, or a table of several shapes by the names of its
    forward's arguments. Its attribute `warnings` holds sentences for the user.
    """
    (output,) = network.graph.find_nodes(op="output")
    need(any(node.op not in ("placeholder", "get_attr") for node in output.all_input_nodes), f"{path} computes nothing from its input")
    input_shape = dict(shapes) if len(shapes) > 1 else next(iter(shapes.values()))
    all_warnings = [*_input_warnings(path, ends), *warnings, *_copied_weights_warning(path, network)]
    vars(network).update(input_shape=input_shape, own_file=own, warnings=all_warnings)
    return network


def _copied_weights_warning(path: Path, network: fx.GraphModule) -> list[str]:
    """Return a warning if operators share weights in the file and the copies here make up at least a tenth of the network."""
    weights = [parameter.detach().numpy() for parameter in network.parameters() if parameter.numel() >= _LARGE]
    sizes: dict[bytes, int] = {}
    copies = 0
    for weight in weights:
        key = hashlib.sha256(weight.tobytes()).digest()
        copies += weight.size if key in sizes else 0
        sizes[key] = weight.size
    total = sum(parameter.numel() for parameter in network.parameters())
    if not copies or 10 * copies < total:
        return []
    return [
        f"operators of {path} share weights, and each has a copy of its own here: the network has {total:,} parameters, "
        f"{copies:,} of them copies"
    ]


def _input_warnings(path: Path, ends: Sequence[End]) -> list[str]:
    """Return warnings about inputs that are renamed or converted to floats."""
    renamed = [f"`{_cut(end.name)}` is `{end.argument}`" for end in ends if end.name != end.argument]
    rows = [f"inputs of {path} have other names here: {', '.join(renamed)}"] if renamed and len(ends) > 1 else []
    return rows + [
        f"the input `{_cut(end.name)}` of {path} is of type {end.kind} and becomes reals at once: here it is of reals"
        for end in ends
        if end.is_integer
    ]


def _requested_shapes(path: Path, ends: Sequence[End], input_shapes: InputShapes | None) -> dict[str, Shape]:
    """Return the requested shapes by argument."""
    if input_shapes is None:
        return {}
    if not isinstance(input_shapes, Mapping):
        shapes: Sequence[Any] = [input_shapes] if is_shape(input_shapes) else list(input_shapes)
        if len(shapes) != len(ends):
            count = "one shape is" if len(shapes) == 1 else f"{len(shapes)} shapes are"
            raise UsageError(
                f"{count} given, {path} has {_count_and_names(ends)}", "give each its shape " + _INPUT_EXAMPLE.format(ends[0].argument)
            )
        return {end.argument: check_shape(end.name, shape) for end, shape in zip(ends, shapes, strict=True)}
    mapping: dict[str, Shape] = {}
    for name, shape in input_shapes.items():
        end = next((end for end in ends if end.name == name), None) or next((end for end in ends if end.argument == name), None)
        if end is None:
            raise UsageError(f"{path} has no input `{_cut(str(name))}`", f"it has {_count_and_names(ends)}")
        if end.argument in mapping:
            raise UsageError(f"the input `{_cut(end.name)}` of {path} has two shapes", "give it one")
        mapping[end.argument] = check_shape(end.name, shape)
    return mapping


def _check_requested(path: Path, end: End, shape: Shape, known_axes: dict[str, tuple[str, int]]) -> None:
    """Check that a shape fits the file, and record the lengths of named axes."""
    if end.sizes is None:
        return
    if len(shape) != len(end.sizes):
        raise UsageError(
            f"the input `{_cut(end.name)}` of {path} has {len(end.sizes)} axes, a shape of {len(shape)} is given",
            f"give all of them, the batch first, as in --input {_example(end, 1)}",
        )
    for axis, (size, n) in enumerate(zip(end.sizes, shape, strict=True)):
        if size.fixed and n != size.usual:
            raise UsageError(
                f"the input `{_cut(end.name)}` of {path} has {size.usual} along axis {axis}, {n} is given",
                "the file fixes that size: leave out --input, or export the file with another one or an open one",
            )
        if size.symbol:
            owner, first = known_axes.setdefault(size.symbol, (end.name, n))
            if first != n:
                raise UsageError(
                    f"the size `{_cut(size.symbol)}` of {path} is {first} in its input `{_cut(owner)}` and {n} in `{_cut(end.name)}`",
                    "give one size for all axes of that name",
                )


def _axis_length(size: Size, end: End, known_axes: dict[str, tuple[str, int]]) -> int:
    """Return the length of an axis that was not requested."""
    if not size.symbol or size.usual < 1:
        return known_axes.get(size.symbol, ("", size.usual))[1]
    return known_axes.setdefault(size.symbol, (end.name, size.usual))[1]


def _count_and_names(ends: Sequence[End]) -> str:
    names = ", ".join(f"`{_cut(end.name)}`" for end in ends[:_MAX_LISTED]) + (" and others" if len(ends) > _MAX_LISTED else "")
    return f"one input, {names}" if len(ends) == 1 else f"{len(ends)} inputs, {names}"


def _cut(name: str) -> str:
    return name[:80]


def select_at(builder: Builder, x: fx.Node, sampled: list[np.ndarray], name: str) -> fx.Node:
    """Return the given rows and columns of an image, by torch's nearest-neighbour function if it selects the same ones."""
    sizes = [(len(positions), old) for positions, old in zip(sampled, shape_of(x)[2:], strict=True)]
    if all((positions == np.arange(new) * old // new).all() for positions, (new, old) in zip(sampled, sizes, strict=True)):
        return builder.call(F.interpolate, x, size=[new for new, _ in sizes])
    for axis, (positions, (new, old)) in enumerate(zip(sampled, sizes, strict=True), 2):
        if new != old or (positions != np.arange(old)).any():
            x = builder.call(torch.index_select, x, axis, builder.add_tensor(positions.astype(np.int64), f"{name}_{axis}"))
    return x


# Activations and layer norms that files write as several operators; found while the network is built.

#: Relative error of numbers that were written in half or single precision.
_CLOSE = 1e-3

#: A string is any operand, equal wherever it occurs; a number matches approximately; a tuple is a call with operands. Operands of
#: sums and products may be in either order, and a factor may be written as several.
Pattern = str | float | tuple[Any, ...]

_SHIFTED: Pattern = (F.relu6, (operator.add, "x", 3))
_CUBE: Pattern = (operator.mul, (operator.pow, "x", 3), 0.044715)

#: Activations x · gate(x): the number that multiplies both, the function, its options, and the gate. Both
#: forms of GELU are from Hendrycks and Gimpel, GELU, section 2.
_GATES: tuple[tuple[float, Callable[..., Any], dict[str, Any], Pattern], ...] = (
    (1, F.silu, {}, (torch.sigmoid, "x")),
    (1, F.hardswish, {}, (F.hardsigmoid, "x")),
    (1, F.hardswish, {}, (torch.clamp, (operator.add, (operator.mul, "x", 1 / 6), 0.5), 0.0, 1.0)),
    (1 / 6, F.hardswish, {}, _SHIFTED),
    (1, F.mish, {}, (torch.tanh, (F.softplus, "x"))),
    (0.5, F.gelu, {}, (operator.add, (torch.erf, (operator.mul, "x", 1 / sqrt(2))), 1)),
    (
        *(0.5, F.gelu, {"approximate": "tanh"}),
        (operator.add, (torch.tanh, (operator.mul, (operator.add, "x", _CUBE), sqrt(2 / pi))), 1),
    ),
)

_CENTRED: Pattern = (operator.sub, "x", (torch.mean, "x", "axes", "keep"))
_VARIANCE: Pattern = (torch.mean, (operator.pow, _CENTRED, 2), "axes", "keep")
#: (x − m) / √(v + eps) · weight with the mean m of x and the mean v of (x − m)².
_NORMED: Pattern = (operator.mul, (operator.truediv, _CENTRED, (torch.sqrt, (operator.add, _VARIANCE, "eps"))), "weight")


def combine(builder: Builder, function: Callable[..., Any], a: Any, b: Any) -> fx.Node:
    """Add a function of two operands, at least one of them a node; if it completes an activation, call that activation instead."""
    if function in (operator.mul, operator.truediv):
        for activation, x, options in _activations(function, a, b):
            return builder.call(activation, x, **options)
    return builder.call(function, a, b)


def layer_norm(builder: Builder, x: Any, bias: Any, name: str) -> fx.Node | None:
    """Return the layer norm over the last axis whose last step adds the stored `bias` to `x`; None if there is none."""
    found = _match(_NORMED, x, {}) if isinstance(bias, np.ndarray) else None
    weight = None if found is None else builder.value(found["weight"])
    if found is None or weight is None or not _is_number(found["eps"]):
        return None
    shape = shape_of(found["x"])[-1:]
    if not found["keep"] or list(found["axes"]) != [len(shape_of(found["x"])) - 1] or not bias.shape == tuple(weight.shape) == shape:
        return None
    module = nn.LayerNorm(shape, eps=float(found["eps"]))
    return builder.module(with_weights(module, weight=weight.detach().numpy(), bias=bias), found["x"], name)


def _activations(function: Any, a: Any, b: Any) -> Iterator[tuple[Callable[..., Any], fx.Node, dict[str, Any]]]:
    """Yield the activation that equals a product or quotient, with its input and its options."""
    factor, core = _factor_of(function, a, b)
    if core is not None and _near(factor, 1 / 6) and (found := _match(_SHIFTED, core, {})):
        yield F.hardsigmoid, found["x"], {}
    pair = _arguments(core, operator.mul) if core is not None else (a, b)
    if len(pair) != 2 or (core is None and function is not operator.mul):
        return
    for one, other in (pair, pair[::-1]):
        # A number may be written as either factor, or be part of the product.
        for (first, x), (second, gate) in product(((1.0, one), _scaled_node(one)), ((1.0, other), _scaled_node(other))):
            for constant, activation, options, pattern in _GATES:
                if isinstance(x, fx.Node) and _near(factor * first * second, constant) and _match(pattern, gate, {"x": x}):
                    yield activation, x, options


def _match(pattern: Pattern, value: Any, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Match a value with a pattern; return the operands by their strings, including the known ones, or None if it does not match."""
    if isinstance(pattern, str):
        named = {pattern: value, **found}
        return named if named[pattern] == value else None
    if not isinstance(pattern, tuple):
        return dict(found) if _is_number(value) and _near(value, pattern) else None
    function, *operands = pattern
    if function is operator.mul and _is_number(operands[1]):
        factor, core = _scaled_node(value)
        return _match(operands[0], core, found) if _near(factor, operands[1]) else None
    arguments = _arguments(value, function)
    for order in (arguments, arguments[::-1]) if function in (operator.add, operator.mul) else (arguments,):
        matched: dict[str, Any] | None = dict(found) if len(order) == len(operands) else None
        for operand, argument in zip(operands, order, strict=False):
            matched = None if matched is None else _match(operand, argument, matched)
        if matched is not None:
            return matched
    return None


def _factor_of(function: Any, a: Any, b: Any) -> tuple[float, fx.Node | None]:
    """Split a product or quotient into a number and a node; 1 and None if both operands are nodes."""
    if function is operator.mul and _is_number(a):
        a, b = b, a
    if not _is_number(b) or not isinstance(a, fx.Node) or (function is operator.truediv and not b):
        return 1.0, None
    factor, core = _scaled_node(a)
    return (factor * b if function is operator.mul else factor / b), core


def _scaled_node(x: Any) -> tuple[float, Any]:
    """Split a node into a number and the node that it multiplies; 1 and the node itself if there is none."""
    pair = _arguments(x, operator.mul, operator.truediv)
    factor, core = _factor_of(x.target, *pair) if len(pair) == 2 else (1.0, None)
    return (1.0, x) if core is None else (factor, core)


def _arguments(x: Any, *functions: Any) -> tuple[Any, ...]:
    """Return the inputs of a call of one of these functions; an empty tuple for any other node."""
    return tuple(x.args) if isinstance(x, fx.Node) and x.op == "call_function" and x.target in functions else ()


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _near(number: float, expected: float) -> bool:
    return abs(number - expected) <= _CLOSE * abs(expected)
