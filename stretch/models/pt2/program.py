"""What an archive of torch.export says of its network: data alone, as msgspec checks it.

Source: `torch/_export/serde/schema.py`, schema version 8. Fields that are not needed are not read.
"""

from typing import Any

import msgspec

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
