"""An archive of torch.export, read without trust: its calls, its weights, and its inputs, each of a fixed shape."""

import io
import math
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from predictors.errors import StretchError, first_line
from predictors.files import read_bytes
from predictors.shapes import Shape
from scheduler.formats.onnx.checks import MAX_PARTS
from stretch.capture.inputs import InputShapes
from stretch.models.ends import End, Size, Stated, named_ends, settled

#: The version of the schema whose meaning is known here.
MAJOR = 8

#: An argument or a size: one key says what it is, such as ``{"as_int": 3}``.
Tagged = dict[str, Any]


class TensorMeta(msgspec.Struct):
    """What is known of a tensor."""

    dtype: int
    sizes: list[Tagged]
    strides: list[Tagged]
    storage_offset: Tagged


class NamedArgument(msgspec.Struct):
    """An argument of a call."""

    name: str
    arg: Tagged
    kind: int | None = None


class ExportedCall(msgspec.Struct):
    """A call."""

    target: str
    inputs: list[NamedArgument]
    outputs: list[Tagged]
    metadata: dict[str, str] = {}


class ExportedGraph(msgspec.Struct):
    """The calls, in order."""

    nodes: list[ExportedCall]
    tensor_values: dict[str, TensorMeta]


class ExportedSignature(msgspec.Struct):
    """What the graph reads and returns: ``{"parameter": {...}}``, ``{"user_input": {...}}`` and so on."""

    input_specs: list[Tagged]
    output_specs: list[Tagged]


class CallSignature(msgspec.Struct):
    """How a module is called: the structure of what it returns, as JSON in a string."""

    out_spec: str = ""


class ModuleCall(msgspec.Struct):
    """A module within the network; that of no name is the network itself."""

    fqn: str
    signature: CallSignature | None = None


class NamedTuple(msgspec.Struct):
    """A kind of named tuple."""

    field_names: list[str]


class GraphModule(msgspec.Struct):
    """A graph and what it reads and returns."""

    graph: ExportedGraph
    signature: ExportedSignature
    module_call_graph: list[ModuleCall] = []
    treespec_namedtuple_fields: dict[str, NamedTuple] = {}


class SchemaVersion(msgspec.Struct):
    """Version of all this."""

    major: int


class Program(msgspec.Struct):
    """A network."""

    graph_module: GraphModule
    schema_version: SchemaVersion


class Payload(msgspec.Struct):
    """Where a weight lies."""

    path_name: str
    use_pickle: bool
    tensor_meta: TensorMeta | None = None


class Payloads(msgspec.Struct):
    """Where all of them lie, by name."""

    config: dict[str, Payload]


#: Largest archive, as of an ONNX file.
MAX_BYTES = (1 << 31) - 1

#: Records of an archive: a weight is one.
MAX_RECORDS = 100_000

FORMAT, VERSION = b"pt2", b"0"

_AGAIN = "save it again with torch.export.save of torch 2.9 or newer"


class Archive:
    """The records of a file by name, without the folder that they all lie in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        content = read_bytes(path, "model", MAX_BYTES)
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(content))
            entries = self._zip.infolist()
        # zipfile raises whatever its own reading of a damaged file runs into.
        except Exception as error:
            raise StretchError(f"{path} is no archive of torch.export: {first_line(error)[:120]}", _AGAIN) from error
        if len(entries) > MAX_RECORDS:
            raise StretchError(f"{path} has more than {MAX_RECORDS} records, which is no network that can be branched")
        self._entries: dict[str, zipfile.ZipInfo] = {}
        for entry in entries:
            name = entry.filename.partition("/")[2]
            if name in self._entries:
                raise StretchError(f"{path} is damaged: it has two records `{name[:80]}`", _AGAIN)
            self._entries[name] = entry
        # Torch stores records as they are; compressed ones could be of any size.
        if sum(entry.file_size for entry in entries) > len(content):
            raise StretchError(f"{path} is damaged: its records are larger than the file", _AGAIN)
        mapping = {name: self.read(name).strip() if name in self._entries else b"" for name in ("archive_format", "archive_version")}
        if mapping["archive_format"] != FORMAT:
            raise StretchError(f"{path} is no archive of torch.export", _AGAIN)
        if mapping["archive_version"] != VERSION:
            raise StretchError(f"{path} has version {mapping['archive_version'][:20]!r} of the format, version 0 is read", _AGAIN)

    @property
    def names(self) -> list[str]:
        """Names of its records."""
        return list(self._entries)

    def read(self, name: str) -> bytes:
        """The content of a record."""
        entry = self._entries.get(name)
        if entry is None:
            raise StretchError(f"{self._path} has no record `{name[:80]}`", _AGAIN)
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise StretchError(f"record `{name[:80]}` of {self._path} is compressed or encrypted, which torch does not do", _AGAIN)
        try:
            return self._zip.read(entry)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError) as error:
            raise StretchError(f"record `{name[:80]}` of {self._path} is damaged: {first_line(error)[:120]}", _AGAIN) from error


#: Element types by their number in the format.
TYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}

#: Types of half precision, which is computed in single.
HALF = (torch.float16, torch.bfloat16)


def read_weights(archive: Archive, model: str) -> dict[str, torch.Tensor]:
    """Parameters, buffers and constants of a model by name."""
    weights: dict[str, torch.Tensor] = {}
    records: dict[str, bytes] = {}
    left = MAX_BYTES
    for folder, kind in (("data/weights", "weights"), ("data/constants", "constants")):
        for name, payload in _payloads(archive, f"{folder}/{model}_{kind}_config.json").items():
            record = f"{folder}/{payload.path_name}"
            if payload.use_pickle or payload.tensor_meta is None:
                raise StretchError(f"`{name[:80]}` is pickled, and pickles can execute anything", "save a network of plain tensors")
            if record not in records:
                records[record] = archive.read(record)
            tensor = _tensor(name, payload.tensor_meta, records[record])
            left -= tensor.numel() * tensor.element_size()
            if left < 0:
                raise StretchError(f"it has more than {MAX_BYTES / 1e9:.1f} GB of weights", "save a smaller network")
            weights[name] = tensor.float().contiguous() if tensor.dtype in HALF else tensor.contiguous()
    return weights


def _payloads(archive: Archive, name: str) -> Mapping[str, Payload]:
    try:
        return msgspec.json.decode(archive.read(name), type=Payloads).config
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"its list of weights is damaged: {str(error)[:120]}") from error


def _tensor(name: str, meta: TensorMeta, record: bytes) -> torch.Tensor:
    """A weight as it lies in a record, which several may share."""
    dtype = TYPES.get(meta.dtype)
    if dtype is None:
        raise StretchError(f"`{name[:80]}` has element type {meta.dtype}, which no network computes with")
    sizes, strides = [fixed(size) for size in meta.sizes], [fixed(stride) for stride in meta.strides]
    offset, elements = fixed(meta.storage_offset), math.prod(sizes)
    if len(sizes) != len(strides) or len(sizes) > 8 or min([offset, *sizes, *strides]) < 0:
        raise StretchError(f"`{name[:80]}` has sizes {sizes[:8]}, strides {strides[:8]} and offset {offset}")
    if not elements:
        return torch.empty(sizes, dtype=dtype)
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if (last + 1) * dtype.itemsize > len(record) or elements * dtype.itemsize > MAX_BYTES:
        raise StretchError(f"`{name[:80]}` reads beyond its {len(record)} bytes")
    # torch warns of memory that must not be written
    flat = torch.frombuffer(bytearray(record[: len(record) // dtype.itemsize * dtype.itemsize]), dtype=dtype)
    return flat.as_strided(sizes, strides, offset)


def fixed(size: Tagged) -> int:
    """A size that is a number."""
    number = size.get("as_int")
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > 1 << 40:
        raise StretchError(f"it has the size {str(size)[:80]}, which is no number")
    return number


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
