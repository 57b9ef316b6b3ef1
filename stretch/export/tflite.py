"""Export a bundle with a TFLite file: one NHWC signature per subgraph and join, compared with its ONNX file, and the plan as metadata."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from predictors.errors import InfeasibleError, MissingBackendError, StretchError
from predictors.graph import Op, OpGraph
from predictors.joins import meeting_of
from predictors.operators import kind_of
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import JoinEntry, SubgraphEntry, Tensor, TflitePlan
from scheduler.bundle.rows import rows_read_by
from scheduler.bundle.tflite_file import METADATA, SCHEMA, nhwc, parse_tflite
from scheduler.delegates.base import Compiled
from scheduler.delegates.litert import INSTALL, LiteRtDelegate
from scheduler.formats.int8_edges import Quant
from scheduler.formats.onnx import OnnxFile, is_quantiser
from scheduler.formats.tflite import MAX_FACTORS, MIN_SCALE
from scheduler.progress import Progress, silent
from stretch.export.onnx import NODELESS_PROPERTY, read_property, weights_of
from stretch.export.precision import DEFAULT_ACCEPTANCE, Acceptance, PrecisionExport, export_precision, worst_image_loss
from stretch.export.quantize.qdq import fold_batch_norms
from stretch.export.quantize.replay import Array, Loss, Run, as_tuple, least_snr_db, loss, replay, runner, session_of, with_outputs
from stretch.export.staging import check_target, copy_files, file_entry, stage_folder, write_manifest
from stretch.operators.formats.tflite import RoundedWeights, SubgraphBuilder, SubgraphPiece, SubgraphSource, Value, Writer, growth, to_nhwc
from stretch.operators.lowerings import lowerings

#: Minimum cosine of a signature with its ONNX file in fp32, and in int8 or half precision.
MIN_COSINE, MIN_COSINE_ROUNDED = 0.99999, 0.999

#: Two rounded results differ as much as each differs from fp32, which in deep subgraphs exceeds the limit. Such a signature
#: must be as close to fp32 as the ONNX file, within half a bit (in decibels).
MARGIN_DB = 3.0

#: Name of the model's output, which includes the errors of all signatures before it.
OUTPUT = "output"


@dataclass(frozen=True)
class SignatureLosses:
    """Losses of all signatures."""

    #: Loss against the ONNX file of the same subgraph on the same input, by signature, and of the ``output``. All losses are from the
    #: worst image.
    losses: dict[str, Loss]
    fp32: dict[str, Loss]  # Loss against the whole model in fp32 on its tensors, by signature, and of the ``output``.
    onnx_fp32: dict[str, Loss]  # Loss of the ONNX files against the whole model in fp32.
    least: dict[str, float]  # Required minimum cosine for each of `losses`.
    runtime: str  # LiteRT's package and version.

    def refuse(self) -> None:
        """Refuse a file with a signature that differs from its ONNX file."""
        for name, least in self.least.items():
            lost = self.losses[name]
            as_near = least < MIN_COSINE and self.fp32[name].snr_db >= self.onnx_fp32[name].snr_db - MARGIN_DB
            if lost.exceeds(least) and not as_near:
                raise InfeasibleError(
                    f"signature `{name}` of the TFLite file has a cosine of {lost.cosine:.5f} and {lost.snr_db:.1f} dB with ONNX Runtime, "
                    f"at least {least} and {least_snr_db(least):.1f} dB are required",
                    "keep this model in ONNX, and please report it with the model's name",
                )

    def to_json(self) -> dict[str, Any]:
        """Return the record for the bundle."""

        def losses_of(name: str) -> dict[str, Any]:
            exact = {"fp32": self.fp32[name].to_json(), "onnx_fp32": self.onnx_fp32[name].to_json()}
            return self.losses[name].to_json() | {"min_cosine": self.least[name], **exact}

        return {
            "reference": "the same subgraph on ONNX Runtime, int8 computed as the real numbers it represents; fp32: the whole model's tensors",
            "runtime": self.runtime,
            "signatures": {name: losses_of(name) for name in self.losses if name != OUTPUT},
            "output": losses_of(OUTPUT),
        }


def compare(bundle: Bundle, images: Sequence[Array]) -> SignatureLosses:
    """Compare every signature of a bundle's TFLite file with its ONNX file."""
    manifest = bundle.manifest
    steps: list[SubgraphEntry | JoinEntry] = [*manifest.subgraphs, *manifest.joins]
    delegate = LiteRtDelegate()
    compiled = {step.name: delegate.compile_from(bundle, step.name) for step in steps}
    runs = {sub.name: _run(compiled[sub.name]) for sub in manifest.subgraphs}
    files = {sub.name: runner(str(bundle.file(sub.file))) for sub in manifest.subgraphs}
    whole = _whole_model_runner(bundle)
    names = (*compiled, OUTPUT)
    lost: dict[str, dict[str, list[Loss]]] = {reference: {name: [] for name in names} for reference in ("onnx", "fp32", "onnx_fp32")}
    for image in images:
        through, rounded_tensors, exact = replay(manifest, runs, image), replay(manifest, files, image), whole(image)
        for reference, expected in (("onnx", rounded_tensors), ("fp32", exact)):
            for sub in manifest.subgraphs:
                lost[reference][sub.name].append(_lost(sub, expected, runs[sub.name]))
            for join in manifest.joins:
                joined = np.empty(expected[join.output].shape, np.float32)
                compiled[join.name].run([np.ascontiguousarray(expected[name]) for name in join.inputs], [joined])
                lost[reference][join.name].append(loss([(expected[join.output], joined)]))
            lost[reference][OUTPUT].append(loss([(expected[name], through[name]) for name in manifest.outputs]))
        for sub in manifest.subgraphs:
            lost["onnx_fp32"][sub.name].append(_lost(sub, exact, files[sub.name]))
        for join in manifest.joins:
            lost["onnx_fp32"][join.name].append(loss([]))
        lost["onnx_fp32"][OUTPUT].append(loss([(exact[name], rounded_tensors[name]) for name in manifest.outputs]))
    rounded = {sub.name for sub in manifest.subgraphs if sub.precision != "fp32"}
    least = {name: MIN_COSINE_ROUNDED if name in rounded or (rounded and name == OUTPUT) else MIN_COSINE for name in names}
    worst = {reference: {name: worst_image_loss(values) for name, values in losses.items()} for reference, losses in lost.items()}
    return SignatureLosses(worst["onnx"], worst["fp32"], worst["onnx_fp32"], least, delegate.version())


def _lost(sub: SubgraphEntry, expected: Mapping[str, Array], run: Run) -> Loss:
    """Return the loss of a subgraph that runs on the expected inputs."""
    written = as_tuple(run(*rows_read_by(sub, expected)))
    return loss(zip((expected[name] for name in sub.outputs), written, strict=True))


def _run(compiled: Compiled) -> Run:
    def run(*reads: Array) -> Any:
        written = tuple(np.empty(shape, np.float32) for shape in compiled.outputs.values())
        compiled.run([np.ascontiguousarray(x) for x in reads], list(written))
        return written if len(written) > 1 else written[0]

    return run


def _whole_model_runner(bundle: Bundle) -> Any:
    """Return a function from the model's input to the whole fp32 model's tensors between subgraphs."""
    file, image = bundle.file(bundle.manifest.whole), bundle.manifest.input
    model = onnx.load(file, load_external_data=False)
    passed_on = read_property(model, NODELESS_PROPERTY, dict[str, str], file, missing="{}")
    # a tensor that an identity passes on has another name in the file
    sources = {tensor.name: passed_on.get(tensor.name, tensor.name) for tensor in bundle.manifest.tensors}
    names = list(dict.fromkeys(name for name in sources.values() if name != image))
    session = session_of(with_outputs(model, names), weights=file.parent)

    def run(x: Array) -> dict[str, Array]:
        tensors = {image: x} | dict(zip(names, session.run(names, {image: x}), strict=True))
        return {name: tensors[source] for name, source in sources.items()}

    return run


def to_tflite(writer: Writer, name: str, source: SubgraphSource, *, half: bool = False) -> SubgraphPiece:
    """Lower a subgraph and add it to a file, with a signature of the same name.

    Its inputs and outputs are float, NHWC, with the tensors' names. An operator
    whose tensors have scales computes in int8; between two scales, and between
    int8 and float, the writer inserts a conversion.
    """
    piece = SubgraphPiece(writer, name)
    graph = source.graph
    builder = SubgraphBuilder(piece, source.scales, half=half)
    values: dict[str, Value] = {}
    starts = {op.name: builder.input(op.name, to_nhwc(op.shape)) for op in graph.inputs}
    values.update(starts)
    fused: dict[str, str] = {}
    for op in graph.ops:
        if op.kind == "input":
            continue
        ins = [values[i] for i in op.inputs]
        if kind_of(op.kind).identity:
            values[op.name] = _add_identity(builder, ins[0], op.name, source)
            continue
        if op.name in fused:
            values[op.name] = values[fused[op.name]]
            continue
        values[op.name] = _lower_subgraph(builder, source, op, ins)
        after = _activation(source, op)
        if after is not None:
            piece.operators[-1]["builtin_options"]["fused_activation_function"] = lowerings.get(after.kind).activation
            values[op.name].nonnegative = True
            fused[after.name] = op.name
    builder.rounded = False
    results: dict[str, int] = {}
    for name in graph.outputs:
        result = builder.real(values[name])
        if result in (*results.values(), *map(_index, starts.values())):  # one tensor cannot have two output names
            copied = builder.apply("RESHAPE", name, [values[name]], extra=[builder.indices(f"{name}.shape", values[name].shape)])
            result = builder.real(copied)
        piece.tensors[result]["name"] = name
        results[name] = result
    writer.add(piece, {name: _index(start) for name, start in starts.items()}, results)
    return piece


def join_to_tflite(
    writer: Writer, name: str, kind: str, inputs: Mapping[str, tuple[int, ...]], output: tuple[str, tuple[int, ...]]
) -> None:
    """Add a join as a separate float subgraph, NHWC."""
    piece = SubgraphPiece(writer, name)
    builder = SubgraphBuilder(piece, {})
    values = [builder.input(input_name, shape) for input_name, shape in inputs.items()]
    output_name, shape = output
    operator = meeting_of(kind).operator
    joined = Op(output_name, operator, tuple(inputs), shape=(shape[0], shape[-1], *shape[1:-1]))
    rule = lowerings.get(operator).tflite
    assert rule is not None
    result = rule(builder, SubgraphSource(OpGraph(name, (joined,), (output_name,)), {}), joined, values)
    writer.add(piece, {value.name: _index(value) for value in values}, {output_name: builder.real(result)})


def _index(value: Value) -> int:
    assert value.real is not None
    return value.real


def _add_identity(builder: SubgraphBuilder, value: Value, name: str, source: SubgraphSource) -> Value:
    """Return the result of an identity: the same value under another name, requantised for another scale.

    The quantiser replaces an activation at the start by an identity whose scale begins at zero.
    """
    quant = source.scales.get(name)
    if quant is not None and value.quant not in (None, quant):
        return Value(
            name, value.shape, quant, integer=builder.integer(value, quant), nonnegative=quant.zero_point == -128, flattened=value.flattened
        )
    return Value(name, value.shape, value.quant or quant, value.real, value.integer, value.nonnegative, value.flattened)


def _lower_subgraph(builder: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    lowering = lowerings.get(op.kind)
    assert lowering.tflite is not None
    scale = source.scales.get(op.name)
    several = lowering.pairwise and len(ins) > 2  # intermediate sums have no scale
    builder.rounded = lowering.int8 and scale is not None and all(value.quant for value in ins) and not several
    if builder.rounded and not kind_of(op.kind).weightless:
        builder.rounded = growth(source, op, ins[0], scale) <= MAX_FACTORS["weights"]
    result = lowering.tflite(builder, source, op, ins)
    result.name = op.name
    if builder.rounded and result.quant != scale:
        result = Value(
            op.name, result.shape, scale, integer=builder.integer(result, scale), nonnegative=result.nonnegative, flattened=result.flattened
        )
    result.quant = scale
    # with the lowest integer as zero point, no number is negative
    result.nonnegative = result.nonnegative or (builder.rounded and scale is not None and scale.zero_point == -128)
    return result


def _activation(source: SubgraphSource, op: Op) -> Op | None:
    """Return the activation to fuse into a float operator, its only reader; None without one."""
    graph = source.graph
    readers = graph.consumers[op.name]
    if not lowerings.get(op.kind).activates or len(readers) != 1 or op.name in graph.outputs or op.name in source.scales:
        return None
    reader = graph.by_name[readers[0]]
    return reader if lowerings.get(reader.kind).activation is not None else None


#: Name of the TFLite file in a bundle.
FILE = "model.tflite"

#: Maximum number of images for the comparison.
MAX_COMPARED = 16


def export_tflite(
    bundle: Bundle,
    out: Path,
    images: Sequence[Array],
    images_source: str,
    *,
    precision: Mapping[str, str] | None = None,
    acceptance: Acceptance = DEFAULT_ACCEPTANCE,
    progress: Progress = silent,
) -> PrecisionExport:
    """Write a copy of a bundle with an additional TFLite file.

    Int8 subgraphs of the bundle are int8 in the file, with their
    calibrated scales; fp16 subgraphs have weights in half precision and compute
    in single precision. Each signature reads the inputs of its ONNX file on `images`, and
    the two results are compared.

    Args:
        precision: ``fp32``, ``fp16`` or ``int8`` by processor, for an fp32 bundle; None for the bundle's precisions.
    """
    if problem := LiteRtDelegate.unavailable():
        raise MissingBackendError(f"a TFLite file is compared with its ONNX files when it is written, and {problem}", INSTALL)
    check_target(out, bundle)
    kept: dict[str, str] = {}
    moved: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
        if precision and set(precision.values()) != {"fp32"}:
            # conversion takes minutes, and changes no kind of operator
            check_lowerings(_sources(bundle))
            source = Path(temporary) / "lower"
            lowered = export_precision(bundle, source, precision, images, images_source, acceptance, progress)
            bundle, kept, moved = Bundle(source, lowered.manifest), lowered.kept, lowered.moved
        manifest, content = bundle.manifest, write_tflite(bundle, progress=progress)
        with stage_folder(out) as folder:
            # drop code that was compiled from an earlier TFLite file, because its scales may differ
            files = copy_files(bundle, folder, leave=set(manifest.aot.values()))
            (folder / FILE).write_bytes(content)
            files[FILE] = file_entry(folder / FILE)
            new_manifest = msgspec.structs.replace(manifest, files=files, tflite=FILE, aot={})
            progress("comparison")
            comparison = compare(Bundle(folder, new_manifest), images[:MAX_COMPARED])
            comparison.refuse()
            record = {"images": {"source": images_source, "count": len(images[:MAX_COMPARED])}, **comparison.to_json()}
            checks = {key: value for key, value in manifest.checks.items() if key != "aot"} | {"tflite": record}
            new_manifest = msgspec.structs.replace(new_manifest, checks=checks)
            write_manifest(folder, new_manifest)
    return PrecisionExport(new_manifest, comparison.losses, kept, moved)


def write_tflite(bundle: Bundle, *, progress: Progress = silent) -> bytes:
    """Return the TFLite file of a bundle: one signature per subgraph and join, and the plan as metadata."""
    manifest = bundle.manifest
    writer = Writer(f"{manifest.model.name}, branched for {manifest.device} by nn-stretch")
    shapes = {tensor.name: nhwc(tensor.shape) for tensor in manifest.tensors}
    sources = _sources(bundle)
    check_lowerings(sources)
    for sub in manifest.subgraphs:
        progress(sub.name)
        try:
            to_tflite(writer, sub.name, sources[sub.name], half=sub.precision == "fp16")
        except StretchError as error:
            raise StretchError(f"subgraph `{sub.name}`: {error.message}", error.hint) from error
    for join in manifest.joins:
        join_to_tflite(writer, join.name, join.kind, {name: shapes[name] for name in join.inputs}, (join.output, shapes[join.output]))
    plan = TflitePlan(
        SCHEMA,
        manifest.version,
        manifest.model.name,
        manifest.device,
        manifest.inputs,
        manifest.outputs,
        tuple(_channels_last(tensor) for tensor in manifest.tensors),
        tuple(msgspec.structs.replace(sub, file=FILE) for sub in manifest.subgraphs),
        manifest.joins,
    )
    writer.metadata(METADATA, msgspec.json.encode(plan))
    content = bytes(writer.finish())
    parse_tflite(content, Path(FILE))
    return content


def _sources(bundle: Bundle) -> dict[str, SubgraphSource]:
    """Return the contents of each subgraph's file."""
    return {sub.name: read_source(bundle.file(sub.file)) for sub in bundle.manifest.subgraphs}


def check_lowerings(sources: Mapping[str, SubgraphSource]) -> None:
    """Refuse operators without a TFLite lowering, all kinds in one sentence."""
    without: dict[str, str] = {}
    for name, source in sources.items():
        for op in source.graph.ops:
            if op.kind != "input" and not kind_of(op.kind).identity and lowerings.get(op.kind).tflite is None:
                without.setdefault(op.kind, f"`{op.name}` ({op.attrs.get('variant', op.kind)}) of subgraph `{name}`")
    if without:
        many = len(without) > 1
        problem = f"operator{'s' if many else ''} {', '.join(without.values())} {'have' if many else 'has'} no TFLite lowering"
        raise StretchError(problem, "keep this model in ONNX, or replace these operators in the network")


def _channels_last(tensor: Tensor) -> Tensor:
    """Return a tensor with channels last."""
    return msgspec.structs.replace(tensor, shape=nhwc(tensor.shape), layout="NHWC") if len(tensor.shape) == 4 else tensor


# Contents of a subgraph's ONNX file: operators, weights, scales.


def read_source(path: Path) -> SubgraphSource:
    """Read a subgraph's ONNX file that `stretch` wrote, in any precision."""
    try:
        model = onnx.load(str(path))
    except OSError as error:
        raise StretchError(f"cannot read {path}: {error.strerror}") from error
    # Versions of protobuf raise different errors for a damaged file.
    except Exception as error:
        raise StretchError(f"{path} is not an ONNX model", "write the bundle again with `stretch branch`") from error
    if not any(is_quantiser(node) for node in model.graph.node):
        folded = fold_batch_norms(model)
        file = OnnxFile(path, folded)
        return SubgraphSource(file.graph, weights_of(file))
    real, scales, integers = _reals(model, path)
    file = OnnxFile(path, real)
    rounded = {
        node.output[0]: integers[node.input[1]]
        for node in real.graph.node
        if node.op_type in ("Conv", "Gemm") and node.input[1] in integers
    }
    return SubgraphSource(file.graph, weights_of(file), scales, rounded)


def _reals(model: onnx.ModelProto, path: Path) -> tuple[onnx.ModelProto, dict[str, Quant], dict[str, RoundedWeights]]:
    """Convert an int8 or fp16 subgraph to float; return the float model, its scales and its integer weights."""
    reals = onnx.ModelProto()
    reals.CopyFrom(model)
    graph = reals.graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    scales: dict[str, Quant] = {}
    integers: dict[str, RoundedWeights] = {}
    constants = {name: value.astype(np.float32) if value.dtype == np.float16 else value for name, value in constants.items()}
    names: dict[str, str] = {}  # source of each quantised or cast tensor
    remaining = []
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            source = names.get(node.input[0], node.input[0])
            scales[source] = _quant(node, constants, path)
            names[node.output[0]] = source
        elif node.op_type == "DequantizeLinear" and node.input[0] in constants:
            real, rounded = _dequantize_constant(node, constants)
            constants[node.output[0]] = real
            if rounded is not None:
                integers[node.output[0]] = rounded
        elif is_quantiser(node):
            names[node.output[0]] = names.get(node.input[0], node.input[0])
        else:
            remaining.append(node)
    # the tensor before an output's conversion takes the output's name
    results = {names.get(value.name, value.name): value.name for value in graph.output}
    for node in remaining:
        node.input[:] = [results.get(names.get(name, name), names.get(name, name)) for name in node.input]
        node.output[:] = [results.get(name, name) for name in node.output]
    scales = {results.get(name, name): quant for name, quant in scales.items()}
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in remaining]
    used = {name for node in nodes for name in node.input}
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.initializer[:]
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name in used)
    return reals, scales, integers


def _quant(node: onnx.NodeProto, constants: Mapping[str, Array], path: Path) -> Quant:
    """Return the scale of an activation, with the zero point shifted from uint8 to int8."""
    try:
        scale, zero = constants[node.input[1]], constants[node.input[2]]
        number, point = float(scale.item()), int(zero.item())
    except (KeyError, IndexError, ValueError) as error:
        raise StretchError(
            f"`{node.name}` of {path} has no single scale and zero point", "write the bundle again with `stretch export`"
        ) from error
    if zero.dtype not in (np.uint8, np.int8):
        raise StretchError(
            f"`{node.name}` of {path} rounds to {zero.dtype}, a TFLite file has int8", "write the bundle again with `stretch export`"
        )
    # a tensor that is almost zero everywhere may become zero
    return Quant(max(number, MIN_SCALE), point - 128 if zero.dtype == np.uint8 else point)


def _dequantize_constant(node: onnx.NodeProto, constants: Mapping[str, Array]) -> tuple[Array, RoundedWeights | None]:
    """Return a constant as float, and as integers if it is symmetric int8 with output channels first."""
    values, scale = constants[node.input[0]], constants[node.input[1]]
    zero = constants[node.input[2]] if len(node.input) > 2 else np.zeros_like(scale, values.dtype)
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    shape = [1] * values.ndim
    if scale.size > 1:
        shape[axis] = -1
    real = (values.astype(np.float64) - zero.astype(np.float64).reshape(shape)) * scale.astype(np.float64).reshape(shape)
    symmetric = values.dtype == np.int8 and not zero.any() and (scale.size == 1 or axis == 0)
    return real.astype(np.float32), RoundedWeights(values, scale.reshape(-1)) if symmetric and values.ndim > 1 else None
