"""TFLite files written by nn-stretch: untrusted reading, their plan, and single signatures."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from predictors.errors import StretchError
from predictors.files import read_bytes
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import JoinEntry, Manifest, SubgraphEntry, Tensor, TflitePlan
from scheduler.bundle.rows import Rows, cut_shape
from scheduler.formats.tflite import OPERATORS, TFLITE, check_model

#: Name of the metadata that holds the plan.
METADATA = "nn_stretch.plan"
SCHEMA = 2
MAX_BYTES = (1 << 31) - 1

_HINT = "write it again with `stretch export BUNDLE --format tflite --out NEW_BUNDLE`"

_CODES = {kind.number: name for name, kind in OPERATORS.items()}


@dataclass(frozen=True)
class TfliteFile:
    """A checked TFLite file."""

    path: Path  # Path of the file, for messages.
    model: Mapping[str, Any]  # Tables of the file.
    plan: TflitePlan  # Plan of the file.

    def ends(self, signature: str) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """Return names and shapes (NHWC) of a signature's inputs and outputs."""
        definition = self._definition(signature)
        tensors = self.model["subgraphs"][definition["subgraph_index"]]["tensors"]
        inputs, outputs = (
            {end["name"]: tuple(tensors[end["tensor_index"]]["shape"].tolist()) for end in definition[key]} for key in ("inputs", "outputs")
        )
        return inputs, outputs

    def single_signature_file(self, signature: str) -> bytes:
        """Return a file with a single signature.

        A runtime prepares all subgraphs of a file, including repacked weights;
        with one interpreter per signature it would do so for each interpreter.
        """
        definition = self._definition(signature)
        graph = self.model["subgraphs"][definition["subgraph_index"]]
        buffers: list[Mapping[str, Any]] = [{}]
        tensors: list[dict[str, Any]] = []
        for tensor in graph["tensors"]:
            content = self.model["buffers"][tensor["buffer"]]
            tensors.append({**tensor, "buffer": len(buffers) if content else 0})
            if content:
                buffers.append(content)
        common = {key: value for key, value in self.model.items() if key != "metadata"}
        single = {"subgraphs": [{**graph, "tensors": tensors}], "buffers": buffers, "signature_defs": [{**definition, "subgraph_index": 0}]}
        return bytes(TFLITE.encode(common | single))

    def operators(self, signature: str) -> list[tuple[str, str]]:
        """Return for each operator of a signature the name of the tensor that it writes, and its name in the schema."""
        graph = self.model["subgraphs"][self._definition(signature)["subgraph_index"]]
        codes = [_CODES[code["builtin_code"]] for code in self.model["operator_codes"]]
        return [(graph["tensors"][op["outputs"][0]]["name"], codes[op["opcode_index"]]) for op in graph["operators"]]

    def _definition(self, signature: str) -> dict[str, Any]:
        for definition in self.model["signature_defs"]:
            if definition["signature_key"] == signature:
                return dict(definition)
        names = ", ".join(signature_def["signature_key"] for signature_def in self.model["signature_defs"][:12])
        raise StretchError(f"{self.path} has no signature `{signature}`", f"it has {names}")


def load_tflite(path: Path) -> TfliteFile:
    """Read a TFLite file and check it."""
    return parse_tflite(read_bytes(path, "TFLite file", MAX_BYTES, _HINT), path)


def parse_tflite(data: bytes, path: Path) -> TfliteFile:
    """Parse and check the content of a TFLite file."""
    try:
        model = TFLITE.decode(data)
        check_model(model)
    except StretchError as error:
        raise StretchError(f"{path} is no TFLite file that nn-stretch wrote: {error.message}", _HINT) from error
    entries = [entry for entry in model.get("metadata", []) if entry.get("name") == METADATA]
    if len(entries) != 1:
        raise StretchError(f"{path} has no plan in its metadata, so it is no TFLite file of a bundle", _HINT)
    try:
        content = model["buffers"][entries[0].get("buffer", 0)].get("data", b"")
        plan = msgspec.json.decode(bytes(content), type=TflitePlan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"the plan in the metadata of {path} is damaged: {error}", _HINT) from error
    if plan.schema != SCHEMA:
        raise StretchError(f"the plan in the metadata of {path} has schema {plan.schema}, this nn-stretch reads {SCHEMA}", _HINT)
    file = TfliteFile(path, model, plan)
    _check_plan(file)
    return file


def bundle_tflite(bundle: Bundle) -> tuple[bytes, TfliteFile]:
    """Return a bundle's TFLite file after checking that it is unchanged and matches the bundle, because runtimes trust its content."""
    name = bundle.manifest.tflite
    if name is None:
        raise StretchError(
            f"{bundle.path} has no TFLite file", f"write one with `stretch export {bundle.path} --format tflite --out NEW_BUNDLE`"
        )
    path = bundle.file(name)
    data = read_bytes(path, "TFLite file", MAX_BYTES, _HINT)
    if hashlib.sha256(data).hexdigest() != bundle.manifest.files[name].sha256:
        raise StretchError(f"{path} was changed after the bundle was written: its SHA-256 differs", "write the bundle again")
    file = parse_tflite(data, path)
    check_same_plan(file, bundle.manifest)
    return data, file


def check_same_plan(file: TfliteFile, manifest: Manifest) -> None:
    """Raise StretchError unless a file's plan has the steps, tensors and precisions of the bundle."""

    def steps(tensors: tuple[Tensor, ...], subgraphs: tuple[SubgraphEntry, ...], joins: tuple[JoinEntry, ...]) -> Any:
        return (
            {t.name: nhwc(t.shape) if t.layout == "NCHW" else t.shape for t in tensors},
            {s.name: (s.inputs, s.outputs, s.rows, s.precision) for s in subgraphs},
            {j.name: (j.kind, j.inputs, j.output) for j in joins},
        )

    plan = file.plan
    if steps(plan.tensors, plan.subgraphs, plan.joins) != steps(manifest.tensors, manifest.subgraphs, manifest.joins):
        raise StretchError(f"{file.path} was written for another bundle", _HINT)


def nhwc(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape N×C×H×W as N×H×W×C; return other shapes unchanged."""
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape


def _check_plan(file: TfliteFile) -> None:
    """Raise StretchError unless the file has a signature with the right tensors for each step of the plan."""
    plan = file.plan
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    no_rows: dict[str, Rows] = {}
    steps = {s.name: (s.inputs, s.outputs, s.rows) for s in plan.subgraphs}
    steps |= {j.name: (j.inputs, (j.output,), no_rows) for j in plan.joins}
    keys = {definition["signature_key"] for definition in file.model["signature_defs"]}
    if keys != steps.keys():
        raise StretchError(f"the signatures of {file.path} are not the subgraphs and joins of its plan", _HINT)
    for step, (reads, writes, rows) in steps.items():
        inputs, outputs = file.ends(step)
        expected = {name: cut_shape(shapes[name], rows.get(name), "NHWC") if name in shapes else None for name in reads}
        if inputs != expected or outputs != {name: shapes.get(name) for name in writes}:
            raise StretchError(f"signature `{step}` of {file.path} does not have the tensors that its plan states", _HINT)
