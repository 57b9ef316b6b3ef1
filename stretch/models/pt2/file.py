"""An archive of torch.export, read without trust: its calls, its weights, and its inputs, each of a fixed shape."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from predictors.errors import StretchError
from predictors.shapes import Shape
from scheduler.formats.onnx.checks import MAX_PARTS
from stretch.capture.inputs import InputShapes
from stretch.models.ends import End, Size, Stated, named_ends, settled
from stretch.models.pt2.archive import Archive
from stretch.models.pt2.program import MAJOR, ExportedCall, ExportedGraph, GraphModule, Program, Tagged
from stretch.models.pt2.weights import HALF, TYPES, fixed, read_weights

#: How a size is written that was left open and has a name, alone.
_SYMBOL = re.compile(r"Symbol\('(\w+)'(?:, \w+=\w+)*\)")

#: Calls that give another element type, and those that only assert what they read.
_CASTS, _ASSERTED = ("torch.ops.aten.to.dtype", "torch.ops.aten._to_copy."), "torch.ops.aten._assert_"

#: What the calls read that is part of the network, and the key of its name in the network.
_STORED = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}


@dataclass(frozen=True)
class Stored:
    """A tensor of the network."""

    name: str  # In the network, such as ``layer1.0.conv1.weight``.
    value: torch.Tensor  # Its numbers; a parameter if it is trained.


@dataclass(frozen=True)
class ArchiveSource:
    """What an archive holds."""

    path: Path  # The file.
    nodes: Sequence[ExportedCall]  # Its calls, in order.
    stored: Mapping[str, Any]  # Weights and other stored tensors and numbers, by the name under which calls read them.
    ends: tuple[End, ...]  # Its inputs.
    shapes: Mapping[str, Shape]  # Of each, batch first, by its argument.
    outputs: Sequence[Tagged]  # What it returns, in order.
    structure: str  # What holds that, as `stretch.models.pt2.network.rebuilt` reads it.
    fields: Mapping[str, Sequence[str]]  # Names of what named tuples hold, by their kinds.


def read_source(path: Path, input_shape: InputShapes | None = None) -> ArchiveSource:
    """Read an archive.

    Args:
        input_shape: Of its input or of several, as `stretch.models.ends.settled` takes them; what the archive states if
            None, with a batch of 1 where it leaves that open.
    """
    archive = Archive(path)
    model = _model(path, archive.names)
    try:
        program = msgspec.json.decode(archive.read(f"models/{model}.json"), type=Program)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"{path} is damaged: {str(error)[:120]}", "save it again with torch.export.save") from error
    if program.schema_version.major != MAJOR:
        raise StretchError(
            f"{path} has version {program.schema_version.major} of torch.export's schema, version {MAJOR} is read",
            "save it again with torch.export.save of torch 2.9 or newer",
        )
    graph, signature = program.graph_module.graph, program.graph_module.signature
    if max(len(graph.nodes), len(signature.input_specs)) > MAX_PARTS:
        raise StretchError(f"{path} has more than {MAX_PARTS} calls or weights, which is no network that can be branched")
    try:
        stored, inputs = _inputs(signature.input_specs, read_weights(archive, model))
        outputs = _outputs(signature.output_specs)
    except StretchError as error:
        raise type(error)(f"{path} cannot be read: {error.message}", error.hint) from error
    ends = named_ends(path, [_stated(path, name, graph) for name in inputs])
    fields = {
        kind: treespec_namedtuple_field.field_names
        for kind, treespec_namedtuple_field in program.graph_module.treespec_namedtuple_fields.items()
    }
    shapes, structure = settled(path, ends, input_shape), _structure(program.graph_module)
    return ArchiveSource(path, graph.nodes, stored, ends, shapes, outputs, structure, fields)


def _model(path: Path, names: Sequence[str]) -> str:
    """Name of the model in an archive, which may hold several."""
    models = [name.removeprefix("models/").removesuffix(".json") for name in names if name.startswith("models/") and name.endswith(".json")]
    if "model" in models or len(models) == 1:
        return "model" if "model" in models else models[0]
    if any(name.startswith("data/aotinductor/") for name in names):
        raise StretchError(f"{path} holds code that was compiled, not a network", "save what torch.export.export returns")
    raise StretchError(f"{path} holds {len(models)} networks, one is taken", "save one with torch.export.save")


def _text(value: Any, *keys: str) -> str:
    """A word some keys deep in what JSON gave."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, str):
        raise StretchError(f"it states no {keys[-1].replace('_', ' ')} where one is needed")
    return value


def _inputs(specs: Sequence[Tagged], weights: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], list[str]]:
    """What calls read that is stored, and the names of what is not."""
    stored: dict[str, Any] = {}
    inputs: list[str] = []
    for spec in specs:
        ((kind, what),) = spec.items() if len(spec) == 1 else (("", None),)
        if kind == "user_input":
            arg = what.get("arg") if isinstance(what, dict) else None
            # Numbers beside the tensors are part of what was exported.
            if isinstance(arg, dict) and "as_tensor" in arg:
                inputs.append(_text(arg, "as_tensor", "name"))
        elif kind in _STORED:
            name = _text(what, _STORED[kind])
            if name not in weights:
                raise StretchError(f"it does not hold `{name[:80]}`")
            value = weights[name]
            stored[_text(what, "arg", "name")] = Stored(
                name, torch.nn.Parameter(value) if kind == "parameter" and value.is_floating_point() else value
            )
        elif kind == "constant_input":
            value = what.get("value") if isinstance(what, dict) else None
            stored[_text(what, "name")] = next(iter(value.values()), None) if isinstance(value, dict) and "as_none" not in value else None
        else:
            raise StretchError(f"it reads an input of the kind `{kind[:40]}`, which is no tensor", "export the part with one input")
    return stored, inputs


def _outputs(specs: Sequence[Tagged]) -> list[Tagged]:
    """What is returned; statistics that training changes are not."""
    outputs = [spec["user_output"] for spec in specs if "user_output" in spec]
    if not all(isinstance(output, dict) and isinstance(output.get("arg"), dict) for output in outputs):
        raise StretchError("it does not state what it returns")
    return [output["arg"] for output in outputs]


def _structure(module: GraphModule) -> str:
    """The structure that the network itself returns; empty where it is not stated."""
    return next((call.signature.out_spec for call in module.module_call_graph if not call.fqn and call.signature), "")


def _stated(path: Path, name: str, graph: ExportedGraph) -> Stated:
    """What the archive states of an input: exported calls hold sizes that were not left open."""
    meta = graph.tensor_values.get(name)
    if meta is None:
        raise StretchError(f"{path} does not state the shape of its input `{name[:80]}`")
    kind = str(TYPES.get(meta.dtype)).removeprefix("torch.")
    stated = []
    for axis, size in enumerate(meta.sizes):
        if "as_int" in size:
            stated.append(Size(fixed(size), fixed=True))
        else:
            # a batch that is open is 1
            stated.append(Size(1 if axis == 0 else _hinted(size), _symbol(size)))
    return Stated(name, stated, kind, kind not in ("float32", "float16", "bfloat16") and _cast(name, graph))


def _cast(name: str, graph: ExportedGraph) -> bool:
    """Whether all that reads a tensor first makes reals of it."""
    readers = [node for node in graph.nodes if not node.target.startswith(_ASSERTED) and _reads(node, {"name": name})]
    types = [_type(node, graph) for node in readers if node.target.startswith(_CASTS) and node.inputs]
    return bool(readers) and len(types) == len(readers) and set(types) <= {torch.float32, *HALF}


def _reads(node: ExportedCall, tensor: dict[str, str]) -> bool:
    """Whether a tensor is among the arguments of a call."""
    inputs = [value for item in node.inputs for value in item.arg.values()]
    return any(tensor == value or (isinstance(value, list) and tensor in value) for value in inputs)


def _type(node: ExportedCall, graph: ExportedGraph) -> torch.dtype | None:
    """Element type of what a call gives, if that is one tensor."""
    value = node.outputs[0].get("as_tensor") if len(node.outputs) == 1 else None
    meta = graph.tensor_values.get(str(value.get("name"))) if isinstance(value, dict) else None
    return None if meta is None else TYPES.get(meta.dtype)


def _hinted(size: Tagged) -> int:
    """The size that was there when it was left open."""
    expression = size.get("as_expr")
    if isinstance(expression, dict):
        hint = expression.get("hint")
        return fixed(hint if isinstance(hint, dict) else {"as_int": 1})
    return fixed(size)


def _symbol(size: Tagged) -> str:
    """The name of a size that was left open, if it has one of its own."""
    expression = size.get("as_expr")
    match = _SYMBOL.fullmatch(str(expression.get("expr_str"))) if isinstance(expression, dict) else None
    return match[1] if match else ""
