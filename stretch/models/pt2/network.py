"""An archive of torch.export as a torch network, call by call.

`torch.export.load` unpickles sample inputs, evaluates expressions and looks functions up
by any name that a file states. Here a file is data: only operators of `torch.ops.aten` that
compute tensors from tensors are called, and its sample inputs are not read.
"""

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._ops import OpOverload

from predictors.errors import StretchError
from predictors.registry import RuleTable
from stretch.capture.inputs import InputShapes
from stretch.models.builder import MAX_KNOWN, Builder, shape_of
from stretch.models.ends import finished, reading
from stretch.models.pt2.file import HALF, TYPES, ArchiveSource, ExportedCall, Stored, Tagged, read_source
from stretch.opaque.calls import find_operator

# Calls of an exported network on their way into a torch network: what a rule reads, and how it writes.

#: What a call reads or gives: a tensor of the running network, a stored one, numbers, or several.
Value = Any

#: Arguments that say where and how tensors lie, not what they are.
PLACES = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "implicit"})


@dataclass(frozen=True)
class Pt2Site:
    """One call with what it reads."""

    operator: OpOverload  # Of torch's.
    arguments: Mapping[str, Value]  # Its arguments by name, those that are left out with their defaults.
    module: str  # Path of the module that it was called in, if that is torch's own; empty otherwise.
    builder: Builder  # What its rule writes into.

    @property
    def name(self) -> str:
        """Name of the operator without its overload."""
        return str(self.operator._overloadpacket.__name__)

    @property
    def x(self) -> fx.Node:
        """Its first argument as a tensor of the network."""
        return self.tensor(next(iter(self.arguments)))

    def tensor(self, name: str) -> fx.Node:
        """An argument as a tensor of the network, a stored one among its parameters."""
        written = self.written(self.arguments.get(name))
        if not isinstance(written, fx.Node):
            raise StretchError(f"its argument `{name}` is no tensor")
        return written

    def stored(self, name: str) -> Stored | None:
        """An argument that the archive stores; None where it is left out or computed."""
        value = self.arguments.get(name)
        return value if isinstance(value, Stored) else None

    def written(self, value: Value) -> Any:
        """An argument as it stands in a call: stored tensors become parameters."""
        if isinstance(value, Stored):
            return self.builder.tensor(value.value, value.name)
        if isinstance(value, list | tuple):
            return [self.written(item) for item in value]
        return value

    def called(self, module: nn.Module, name: str = "", x: str = "") -> fx.Node:
        """A module on one of its arguments, the first by default, under a name of its own or that of where it was called."""
        read = self.tensor(x) if x else self.x
        return self.builder.module(module, read, name or self.module or self.name)


#: Writes what a call computes; None where the call is not one that the rule knows, and stays as it is.
Rule = Callable[[Pt2Site], Value]

#: Rules by the name of the operator; every file of this package adds its own.
RULES: RuleTable[Rule] = RuleTable()

#: Decorator for the rule of operators of these names.
rule = RULES.add


def bound(operator: OpOverload, node: ExportedCall, value: Callable[[Tagged], Value]) -> dict[str, Value]:
    """Arguments of a call by name, in the order of torch's own, with the defaults of those that are left out."""
    schema = operator._schema
    stated = {item.name: value(item.arg) for item in node.inputs}
    first = schema.arguments[0].name
    # What is changed in place has another name than what a function reads.
    if "self" in stated and first not in stated:
        stated[first] = stated.pop("self")
    unknown = stated.keys() - {argument.name for argument in schema.arguments}
    if unknown or len(stated) != len(node.inputs):
        raise StretchError(f"`{operator}` has no argument `{next(iter(unknown), '')[:40]}`")
    arguments = {}
    for argument in schema.arguments:
        if argument.name not in stated and not argument.has_default_value():
            raise StretchError(f"its argument `{argument.name}` is missing")
        arguments[argument.name] = stated.get(argument.name, argument.default_value)
    return arguments


def plain_value(arg: Tagged) -> Value:
    """An argument that is no tensor: a number, a word, a type, or a list of those."""
    ((kind, value),) = arg.items() if len(arg) == 1 else (("", None),)
    if kind == "as_none" or kind in ("as_device", "as_layout", "as_memory_format"):
        return None
    if kind == "as_scalar_type":
        dtype = TYPES.get(value)
        if dtype is None:
            raise StretchError(f"it computes in element type {value}, which no network does")
        return torch.float32 if dtype in HALF else dtype
    if kind == "as_float":
        return _real(value)
    if kind == "as_floats" and isinstance(value, list):
        return [_real(item) for item in value]
    allowed = {"as_int": int, "as_bool": bool, "as_string": str}
    single = next((t for key, t in allowed.items() if kind in (key, f"{key}s")), None)
    values = value if kind.endswith("s") else [value]
    if single is None or not isinstance(values, list) or not all(isinstance(one, single) for one in values):
        raise StretchError(f"it has an argument of the kind `{kind[:40]}`, which no network of tensors has")
    return value


def _real(value: Any) -> float:
    """A number; those that JSON lacks are words."""
    words = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
    if isinstance(value, str) and value in words:
        return words[value]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise StretchError(f"it has {str(value)[:40]} where a number is needed")
    return float(value)


#: Nested deeper, a structure is refused.
_DEEPEST = 32

_LISTS = {"builtins.list": list, "builtins.tuple": tuple}
_TABLES = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")
_NAMED = "collections.namedtuple"

#: What a key of a table may be.
_KEYS = (str, int, float)


def rebuilt(spec: str, fields: Mapping[str, Sequence[str]], values: Sequence[Any]) -> tuple[Any, list[str]]:
    """What a network returns, with these values in it, and the kinds of containers that became something else.

    Lists, tuples and dictionaries are what they were. A class of somebody's is not looked up: what has names, such as a
    named tuple or a dataclass, becomes a dictionary, anything else a tuple.

    Args:
        spec: The structure, as `torch.utils._pytree.treespec_dumps` writes it; empty for one value, or a tuple of several.
    """
    if not spec:
        return (values[0] if len(values) == 1 else tuple(values)), []
    try:
        data = json.loads(spec)
    except (ValueError, RecursionError) as error:
        raise StretchError(f"the structure that it returns is no JSON: {str(error)[:80]}") from error
    if not isinstance(data, list) or len(data) != 2:
        raise StretchError("the structure that it returns is not understood")
    reader = _SpecReader(fields, iter(values))
    built = reader.structure(data[1], 0)
    if next(reader.values, reader) is not reader:
        raise StretchError(f"the structure that it returns holds fewer than its {len(values)} outputs")
    return built, list(dict.fromkeys(reader.other))


class _SpecReader:
    def __init__(self, fields: Mapping[str, Sequence[str]], values: Iterator[Any]) -> None:
        self._fields, self.values = fields, values
        self.other: list[str] = []

    def structure(self, spec: Any, depth: int) -> Any:
        """The part of the structure that this describes."""
        if not isinstance(spec, dict) or depth > _DEEPEST:
            raise StretchError("the structure that it returns is not understood, or nested too deep")
        kind, parts = spec.get("type"), spec.get("children_spec")
        if kind is None:
            if (value := next(self.values, self)) is self:
                raise StretchError("the structure that it returns holds more than its outputs")
            return value
        if not isinstance(kind, str) or not isinstance(parts, list):
            raise StretchError("the structure that it returns is not understood")
        held = [self.structure(part, depth + 1) for part in parts]
        if kind in _LISTS:
            return _LISTS[kind](held)
        names = self._names(kind, spec.get("context"), len(held))
        if kind not in _TABLES:
            self.other.append(str(spec.get("context")) if kind == _NAMED else kind)
        elif names is None:
            raise StretchError("a dictionary that it returns has no keys")
        return tuple(held) if names is None else dict(zip(names, held, strict=True))

    def _names(self, kind: str, context: Any, count: int) -> list[Any] | None:
        """What the parts of a container are called; None where they have no names."""
        if kind == _NAMED:
            return _keys(self._fields.get(str(context)), count)
        try:
            stated = json.loads(context) if isinstance(context, str) else None
        except (ValueError, RecursionError):
            return None
        # dataclasses state the names of what is None beside them, others a kind before them
        inner = stated if isinstance(stated, list) else []
        return next((result for value in (stated, *inner) if (result := _keys(value, count)) is not None), None)


def _keys(stated: Any, count: int) -> list[Any] | None:
    """So many different keys, if these are some."""
    fits = isinstance(stated, list | tuple) and len(stated) == count and all(isinstance(item, _KEYS) for item in stated)
    return list(stated) if fits and len(set(stated)) == count else None


__all__ = ["read_module"]

_ATEN = "torch.ops.aten."

#: What is asserted of sizes, which are numbers here.
_ASSERTED = ("_assert_", "sym_constrain_range", "_functional_sym_constrain", "_functional_assert", "_guards")

#: What networks compute with sizes.
_OF_SIZES: dict[str, Callable[..., Any]] = {
    **{
        f"_operator.{value.__name__}": value
        for value in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.neg)
    },
    **{f"_operator.{value.__name__}": value for value in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)},
    "math.trunc": int,
    "torch.sym_int": int,
    "torch.sym_float": float,
    "torch.sym_max": max,
    "torch.sym_min": min,
}

#: Make tensors of nothing but numbers, by name: what torch computes of sizes.
_MAKING = ("arange", "eye", "full", "linspace", "ones", "scalar_tensor", "zeros")


def read_module(path: str | Path, input_shape: InputShapes | None = None) -> fx.GraphModule:
    """The network in an archive that `torch.export.save` wrote, in evaluation mode; modules and weights have the names that they had.

    It returns what the exported network does, in lists, tuples and dictionaries; what it says of its inputs:
    `stretch.models.ends.finished`.
    """
    return _Pt2Lowering(read_source(Path(path), input_shape)).network()


class _Pt2Lowering:
    def __init__(self, source: ArchiveSource) -> None:
        self._source = source
        self._builder = Builder(source.shapes, nested=True)
        self._values: dict[str, Value] = {**source.stored, **{end.name: self._builder.inputs[end.argument] for end in source.ends}}
        #: Which memory a tensor lies in, and how often that was written to before the tensor was made.
        self._memory: dict[str, tuple[str, int]] = {}
        self._writes: dict[str, int] = {}

    def network(self) -> fx.GraphModule:
        """The network."""
        path = self._source.path
        for number, node in enumerate(self._source.nodes):
            name = next(iter(_names(node)), f"number {number}")
            with reading(path, f"call `{name[:80]}` ({node.target[:60]})"):
                self._lower(node)
        try:
            returned, other = rebuilt(
                self._source.structure, self._source.fields, [self._result(output) for output in self._source.outputs]
            )
        except StretchError as error:
            raise StretchError(f"{path} cannot be read: {error.message}", error.hint) from error
        warnings = [f"`{kind[:80]}`, which {path} returns, is a dictionary or a tuple here" for kind in other]
        return finished(path, self._builder, self._source.ends, returned, warnings)

    def _result(self, arg: Tagged) -> Any:
        """What the network returns in one place: a tensor, or what the file states."""
        try:
            value = self._value(arg)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise StretchError(f"it returns what is not understood ({str(error)[:80]})") from error
        if isinstance(value, Stored):
            return self._builder.tensor(value.value, value.name)
        if not isinstance(value, fx.Node | int | float | str | None):
            raise StretchError("it returns what is no tensor")
        return value

    def _lower(self, node: ExportedCall) -> None:
        target = node.target
        if target.startswith(_ATEN):
            name = target.removeprefix(_ATEN)
            if name.startswith(_ASSERTED):
                return
            size = self._size(name, node) if name.startswith("sym_") else self._call(name, node)
        elif target in _OF_SIZES:
            size = self._of_sizes(target, node)
        else:
            raise StretchError("it is no operator of torch", "call run_decompositions() before torch.export.save")
        for name, value in zip(_names(node), _several(size), strict=False):
            self._values[name] = value

    def _of_sizes(self, target: str, node: ExportedCall) -> Any:
        values = [self._value(item.arg) for item in node.inputs]
        if not 1 <= len(values) <= 2 or not all(isinstance(value, int | float) and abs(value) < 1 << 62 for value in values):
            raise StretchError("it computes with what is no size")
        return _OF_SIZES[target](*values)

    def _size(self, name: str, node: ExportedCall) -> int:
        """A number of the shape of a tensor."""
        values = [self._value(item.arg) for item in node.inputs]
        shape = tuple(_without_data(values[0]).shape)
        if name.startswith("sym_size.int"):
            return int(shape[values[1]])
        if name.startswith("sym_numel"):
            return prod(shape)
        raise StretchError("it asks how a tensor lies in memory")

    def _call(self, name: str, node: ExportedCall) -> Value:
        packet, _, overload = name.partition(".")
        if packet in _MAKING:
            target = _overload(packet, overload)
            return Stored(next(iter(_names(node)), packet), _of_stored(target, bound(target, node, self._value), created=True))
        changes = packet.endswith("_") and not packet.endswith("__")
        packet = packet.removesuffix("_") if changes else packet
        # What a rule writes down otherwise is not called itself, and may be more than a function of tensors.
        target = _overload(packet, overload) if packet in RULES else find_operator(f"{packet}.{overload}")
        arguments = bound(target, node, self._value)
        site = Pt2Site(target, arguments, _module_of(node), self._builder)
        self._follow(target, node, changes)
        if not any(isinstance(item, fx.Node) for item in _flat(list(arguments.values()))):
            return self._known(target, arguments)
        built = RULES[packet](site) if packet in RULES else None
        return self._as_it_is(site) if built is None else built

    def _as_it_is(self, site: Pt2Site) -> Value:
        """The operator itself; where it gives several tensors, each of them."""
        find_operator(_called(site.operator))
        if any(site.arguments.get(key) for key in ("train", "dropout_p")):
            raise StretchError("it was exported in training mode", "call eval() before torch.export.export")
        positional, options = _arguments(site.operator, site.arguments)
        options = {key: site.written(value) for key, value in options.items()}
        called = self._builder.call(site.operator, *site.written(positional), **options)
        if isinstance(called.meta["val"], torch.Tensor):
            return called
        return [self._builder.call(operator.getitem, called, i) for i in range(len(called.meta["val"]))]

    def _known(self, target: OpOverload, values: Mapping[str, Value]) -> Value:
        """What a call gives that reads stored tensors alone."""
        stored = [item for item in _flat(list(values.values())) if isinstance(item, Stored)]
        if not stored:
            raise StretchError("it reads no tensor")
        find_operator(_called(target))
        computed = _of_stored(target, values)
        learned = any(isinstance(item.value, torch.nn.Parameter) for item in stored)
        built = [
            Stored(stored[0].name, torch.nn.Parameter(item) if learned and item.is_floating_point() else item)
            for item in _several(computed)
        ]
        return built if isinstance(computed, tuple | list) else built[0]

    def _value(self, arg: Tagged) -> Value:
        """What an argument stands for."""
        ((kind, value),) = arg.items() if len(arg) == 1 else (("", None),)
        if kind in ("as_tensor", "as_optional_tensor") and isinstance(value, dict):
            inner = value.get("as_tensor", value)
            return None if "as_none" in inner else self._named(inner)
        if kind in ("as_tensors", "as_optional_tensors") and isinstance(value, list):
            return [None if "as_none" in item else self._named(item.get("as_tensor", item)) for item in value]
        if kind in ("as_sym_int", "as_sym_float", "as_sym_bool") and isinstance(value, dict):
            return self._number(value)
        if kind in ("as_sym_ints", "as_sym_floats", "as_sym_bools") and isinstance(value, list):
            return [self._number(item) for item in value]
        return plain_value(arg)

    def _number(self, value: Tagged) -> Any:
        named = self._named({"name": value["as_name"]}) if "as_name" in value else next(iter(value.values()), None)
        if not isinstance(named, int | float):
            raise StretchError("it reads a tensor where a size is needed")
        return named

    def _named(self, argument: Any) -> Value:
        name = argument.get("name") if isinstance(argument, dict) else None
        if not isinstance(name, str) or name not in self._values:
            raise StretchError(f"it reads `{str(name)[:80]}`, which nothing writes before it")
        memory, writes = self._memory.get(name, (name, 0))
        if self._writes.get(memory, 0) != writes:
            raise StretchError(
                f"it reads `{name[:80]}`, which was changed in place through another name",
                "call run_decompositions() before torch.export.save",
            )
        return self._values[name]

    def _follow(self, target: OpOverload, node: ExportedCall, changes: bool) -> None:
        """Note which memory the results lie in: that of what is read, if it is changed in place or seen in another way."""
        schema = target._schema
        views = any(item.alias_info is not None for item in schema.returns) or target._overloadpacket.__name__ in (
            "reshape",
            "flatten",
            "contiguous",
            "to",
        )
        first = node.inputs[0].arg.get("as_tensor") if node.inputs else None
        if not (views or changes) or not isinstance(first, dict):
            return
        name = str(first.get("name"))
        memory, _ = self._memory.get(name, (name, 0))
        if changes:
            self._writes[memory] = self._writes.get(memory, 0) + 1
        for built in _names(node):
            self._memory[built] = (memory, self._writes.get(memory, 0))


def _overload(packet: str, overload: str) -> OpOverload:
    value = getattr(getattr(torch.ops.aten, packet), overload, None)
    if not isinstance(value, OpOverload) or value._schema.is_mutable:
        raise StretchError("torch has no such operator that changes nothing")
    return value


def _arguments(target: OpOverload, values: Mapping[str, Value]) -> tuple[list[Value], dict[str, Value]]:
    """Arguments by position and by name, without those that say where tensors lie."""
    known = [argument for argument in target._schema.arguments if argument.name not in PLACES]
    options = {item.name: values[item.name] for item in known if item.kwarg_only and values[item.name] is not None}
    return [values[item.name] for item in known if not item.kwarg_only], options


def _of_stored(target: OpOverload, values: Mapping[str, Value], *, created: bool = False) -> Any:
    """What is computed of stored tensors, or made of numbers alone, once it is sure how large it gets."""

    def computed(device: str) -> Any:
        def tensor(value: Any) -> Any:
            return value.value.detach().to(device) if isinstance(value, Stored) else value

        args, options = fx.node.map_aggregate(_arguments(target, values), tensor)
        return target(*args, **options, **({"device": device} if created else {}))

    with torch.no_grad():
        if any(item.numel() > MAX_KNOWN for item in _several(computed("meta"))):
            raise StretchError("it makes a stored tensor too large")
        return computed("cpu")


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _called(target: OpOverload) -> str:
    return f"{target._overloadpacket.__name__}.{target._overloadname}"


def _names(node: ExportedCall) -> list[str]:
    """Names of what a call gives, in order."""
    names = []
    for output in node.outputs:
        ((kind, value),) = output.items() if len(output) == 1 else (("", None),)
        for one in value if isinstance(value, list) else [value]:
            inner = one.get("as_tensor", one) if isinstance(one, dict) else {}
            name = inner.get("as_name" if kind.startswith("as_sym") else "name") if isinstance(inner, dict) else None
            names.append(str(name))
    return names


def _module_of(node: ExportedCall) -> str:
    """Path of the module that a call was recorded in, if that is one of torch's own layers."""
    last = node.metadata.get("nn_module_stack", "").rpartition(";")[2].split(",")
    return last[1] if len(last) == 3 and last[2].startswith("torch.nn.modules.") and ".container." not in last[2] else ""


def _flat(values: Any) -> list[Any]:
    return [one for value in values for one in (_flat(value) if isinstance(value, list | tuple) else [value])]


def _without_data(value: Value) -> torch.Tensor:
    if isinstance(value, fx.Node) and isinstance(value.meta["val"], torch.Tensor):
        return value.meta["val"]
    if isinstance(value, Stored):
        return value.value
    raise StretchError("it asks for the size of what is no tensor")


# Calls without weights as torch's modules and functions that `stretch.capture` sees single channels through.

#: Modules of one tensor, made of the arguments behind it: named like their operators, and those that are not.
_ALIKE = (nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh, nn.GELU)
_MODULES: dict[str, Callable[..., nn.Module]] = {
    **{make.__name__.lower(): make for make in _ALIKE},
    "leaky_relu": nn.LeakyReLU,
    **dict.fromkeys(("adaptive_avg_pool2d", "_adaptive_avg_pool2d"), nn.AdaptiveAvgPool2d),
}

#: Functions with the arguments of the operator.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{value.__name__: value for value in (torch.cat, torch.flatten, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze)},
    **{value.__name__: value for value in (torch.clamp, torch.mean, torch.softmax, torch.log_softmax, F.pixel_shuffle)},
    **dict.fromkeys(("reshape", "view", "_unsafe_view"), torch.reshape),
    "_softmax": torch.softmax,
    "_log_softmax": torch.log_softmax,
}

_PAIRS: dict[str, Callable[..., Any]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}


def _module(make: Callable[..., nn.Module]) -> Rule:
    return lambda site: site.called(make(*list(site.arguments.values())[1:]))


def _function(function: Callable[..., Any]) -> Rule:
    def apply(site: Pt2Site) -> Value:
        arguments = dict(site.arguments)
        # in another type it is no call that capture knows
        if any((arguments.pop("dtype", None), arguments.pop("half_to_float", None))):
            return None
        return site.builder.call(function, *site.written(list(arguments.values())))

    return apply


def _pair(function: Callable[..., Any]) -> Rule:
    def combine(site: Pt2Site) -> Value:
        x, other = site.arguments["self"], site.arguments["other"]
        if site.arguments.get("alpha", 1) != 1 or site.arguments.get("rounding_mode") is not None:
            return None
        # decompositions write SiLU as a product with the sigmoid of the same tensor
        gated = function is operator.mul and isinstance(other, fx.Node) and isinstance(site.builder.behind(other), nn.Sigmoid)
        return site.called(nn.SiLU()) if gated and other.args[0] is x else site.builder.call(function, *site.written([x, other]))

    return combine


RULES.update({name: _module(make) for name, make in _MODULES.items()})
RULES.update({name: _function(function) for name, function in _FUNCTIONS.items()})
RULES.update({name: _pair(function) for name, function in _PAIRS.items()})


@rule("contiguous", "clone", "detach", "alias", "lift_fresh_copy", "to", "_to_copy", "type_as")
def _pass(site: Pt2Site) -> Value:
    """What it reads, unless its type changes."""
    to = site.arguments.get("dtype")
    if isinstance(site.arguments.get("other"), fx.Node):
        to = site.arguments["other"].meta["val"].dtype
    return site.x if to is None or to == site.x.meta["val"].dtype else None


@rule("dropout", "feature_dropout", "alpha_dropout", "native_dropout")
def _drop(site: Pt2Site) -> Value:
    """Nothing is dropped once a network is trained."""
    return site.called(nn.Dropout(float(site.arguments["p"])), x="input")


@rule("elu")
def _elu(site: Pt2Site) -> Value:
    if site.arguments["scale"] != 1 or site.arguments["input_scale"] != 1:
        return None
    return site.called(nn.ELU(float(site.arguments["alpha"])))


@rule("max_pool2d", "max_pool2d_with_indices", "avg_pool2d")
def _pool(site: Pt2Site) -> Value:
    options = {key: _two(value) for key, value in list(site.arguments.items())[1:]}
    make = nn.AvgPool2d if site.name == "avg_pool2d" else nn.MaxPool2d
    return site.called(make(**options | {"stride": options["stride"] or options["kernel_size"]}))


def _two(value: Any) -> Any:
    """A pair, which torch's modules do not make of a list of one."""
    return tuple(value) * (2 if len(value) == 1 else 1) if isinstance(value, list | tuple) else value


@rule("split", "split_with_sizes", "chunk")
def _split(site: Pt2Site) -> Value:
    parts = site.builder.call(torch.chunk if site.name == "chunk" else torch.split, *site.written(list(site.arguments.values())[:3]))
    return [site.builder.call(operator.getitem, parts, i) for i in range(len(parts.meta["val"]))]


@rule("slice")
def _slice(site: Pt2Site) -> Value:
    shape = shape_of(site.x)
    axis, step = int(site.arguments["dim"]) % len(shape), int(site.arguments["step"])
    if step < 1:
        raise StretchError(f"it slices with a step of {step}")
    first, last, _ = slice(site.arguments["start"], site.arguments["end"], step).indices(shape[axis])
    if (first, last, step) == (0, shape[axis], 1):
        return site.x
    items = [slice(None)] * axis + [slice(first, last, step if step != 1 else None)]
    return site.builder.call(operator.getitem, site.x, tuple(items))


@rule("select")
def _select(site: Pt2Site) -> Value:
    axis = int(site.arguments["dim"]) % len(shape_of(site.x))
    return site.builder.call(operator.getitem, site.x, (*[slice(None)] * axis, int(site.arguments["index"])))


@rule("expand")
def _expand(site: Pt2Site) -> Value:
    return site.builder.method("expand", site.x, *site.arguments["size"])


@rule("constant_pad_nd", "pad")
def _pad(site: Pt2Site) -> Value:
    mode, value = str(site.arguments.get("mode", "constant")), site.arguments["value"]
    return site.builder.call(F.pad, site.x, list(site.arguments["pad"]), mode, value or 0.0)


@rule("upsample_nearest2d")
def _enlarge(site: Pt2Site) -> Value:
    """By whole factors; torch rounds those of others in ways of its own."""
    x, out = shape_of(site.x), site.arguments["output_size"]
    factors = site.arguments.get("scale_factors") or [site.arguments.get("scales_h"), site.arguments.get("scales_w")]
    size = [int(n) for n in out] if out is not None else [int(n * factor) for n, factor in zip(x[2:], factors, strict=True)]
    exact = all(new % old == 0 and factor in (None, new / old) for new, old, factor in zip(size, x[2:], factors, strict=True))
    return site.builder.call(F.interpolate, site.x, size=size) if exact else None


# Calls that have weights as torch's modules, under the names that the weights have.

_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def _stored(site: Pt2Site, *names: str) -> dict[str, Stored | None]:
    """Arguments that the archive stores, None for one that is left out; none at all where one is computed."""
    stored = {name: site.stored(name) for name in names}
    return stored if all(item or site.arguments.get(name) is None for name, item in stored.items()) else {}


def _holding(site: Pt2Site, module: nn.Module, tensors: Mapping[str, Stored | None], x: str = "input") -> Value:
    """The module with these very parameters and statistics, in their place; None for one that it has not."""
    home = ""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        current, value = getattr(module, name), tensor.value
        if current.shape != value.shape or not value.is_floating_point():
            raise StretchError(f"`{tensor.name[:80]}` has the shape {list(value.shape)}, {list(current.shape)} are needed")
        if isinstance(current, nn.Parameter):
            setattr(module, name, value if isinstance(value, nn.Parameter) else nn.Parameter(value))
        else:
            setattr(module, name, value.detach())
        home = home or tensor.name.rpartition(".")[0] or tensor.name
    return site.called(module, home, x)


def _each(value: Any, axes: int) -> Any:
    """A number for each axis of a window; torch takes one for all, or a word."""
    if isinstance(value, str):
        return value
    numbers = [int(n) for n in value] if isinstance(value, list | tuple) else [int(value)]
    return numbers * axes if len(numbers) == 1 else numbers


@rule("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _convolution(site: Pt2Site) -> Value:
    tensors = _stored(site, "weight", "bias")
    weight = tensors.get("weight")
    if weight is None or weight.value.dim() not in (3, 4, 5) or len(shape_of(site.x)) != weight.value.dim():
        return None
    (first, second, *kernel), groups = weight.value.shape, int(site.arguments["groups"])
    if groups < 1:
        raise StretchError(f"it has {groups} groups")
    transposed = bool(site.arguments.get("transposed", "transpose" in site.name))
    windows = ("stride", "padding", "dilation", *(["output_padding"] if transposed else []))
    module = getattr(nn, f"Conv{'Transpose' if transposed else ''}{len(kernel)}d")(
        *((first, second * groups) if transposed else (second * groups, first)),
        tuple(kernel),
        groups=groups,
        bias=tensors["bias"] is not None,
        device="meta",
        **{name: _each(site.arguments[name], len(kernel)) for name in windows},
    )
    return _holding(site, module, tensors)


@rule("batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional", "native_batch_norm", "cudnn_batch_norm")
def _batch_norm(site: Pt2Site) -> Value:
    """With the statistics that the archive holds, whichever mode the network was exported in."""
    names = ("weight", "bias", "running_mean", "running_var")
    tensors = _stored(site, *names)
    if not all(tensors.get(name) for name in names[2:]) or (tensors["weight"] is None) != (tensors["bias"] is None):
        return None
    shape, eps, momentum = shape_of(site.x), site.arguments.get("eps", site.arguments.get("epsilon")), site.arguments.get("momentum", 0.1)
    return _holding(site, _BATCH_NORMS[len(shape)](shape[1], float(eps), float(momentum), tensors["weight"] is not None), tensors)


@rule("linear")
def _linear(site: Pt2Site) -> Value:
    tensors = _stored(site, "weight", "bias")
    return _layer(site, "input", tensors["weight"], tensors["bias"]) if tensors else None


@rule("addmm", "mm")
def _linear_decomposed(site: Pt2Site) -> Value:
    """Bias + x · weight, or that product alone, where the weight was turned before."""
    weight, biased = site.stored("mat2"), site.name == "addmm"
    bias = site.stored("self") if biased else None
    if weight is None or any(site.arguments.get(name, 1) != 1 for name in ("beta", "alpha")):
        return None
    if biased and (bias is None or bias.value.shape != weight.value.shape[1:]):
        return None
    turned = nn.Parameter(weight.value.detach().t().contiguous())
    return _layer(site, "mat1" if biased else "self", Stored(weight.name, turned), bias)


def _layer(site: Pt2Site, x: str, weight: Stored | None, bias: Stored | None) -> Value:
    if weight is None or weight.value.dim() != 2:
        return None
    module = nn.Linear(weight.value.shape[1], weight.value.shape[0], bias is not None, device="meta")
    return _holding(site, module, {"weight": weight, "bias": bias}, x)


@rule("layer_norm", "native_layer_norm")
def _layer_norm(site: Pt2Site) -> Value:
    tensors = _stored(site, "weight", "bias")
    if not tensors or (tensors["bias"] is not None and tensors["weight"] is None):
        return None
    shape, has = [int(n) for n in site.arguments["normalized_shape"]], [tensor is not None for tensor in tensors.values()]
    return _holding(site, nn.LayerNorm(shape, float(site.arguments["eps"]), *has), tensors)


@rule("group_norm")
def _group_norm(site: Pt2Site) -> Value:
    tensors = _stored(site, "weight", "bias")
    if not tensors or (tensors["weight"] is None) != (tensors["bias"] is None):
        return None
    groups, channels = int(site.arguments["num_groups"]), shape_of(site.x)[1]
    if groups < 1 or channels % groups:
        raise StretchError(f"it has {groups} groups of {channels} channels")
    return _holding(site, nn.GroupNorm(groups, channels, float(site.arguments["eps"]), tensors["weight"] is not None), tensors)


@rule("prelu", "_prelu_kernel")
def _prelu(site: Pt2Site) -> Value:
    weight = site.stored("weight")
    return None if weight is None else _holding(site, nn.PReLU(weight.value.numel()), {"weight": weight}, "self")
