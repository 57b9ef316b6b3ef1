"""Export of a bundle with a TFLite file: one signature per subgraph and join, each compared with its ONNX file."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from predictors.errors import MissingBackendError, StretchError, UsageError
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest, Tensor
from scheduler.bundle.tflite_file import METADATA, SCHEMA, TflitePlan, nhwc, parse_tflite
from scheduler.delegates.litert import INSTALL, LiteRtDelegate
from scheduler.progress import Progress, silent
from stretch.export.precision import MIN_COSINE as QUANTISED_MIN_COSINE
from stretch.export.precision import export_precision
from stretch.export.staging import check_target, copy_files, file_entry, staged, write_manifest
from stretch.export.tflite.compare import compare
from stretch.export.tflite.lower import join_to_tflite, to_tflite
from stretch.export.tflite.source import read_source
from stretch.formats.tflite.writer import Writer
from stretch.quantize.compare import Loss

Array = NDArray[Any]
#: Name of the file in a bundle.
FILE = "model.tflite"

#: Number of images for the comparison.
COMPARED = 16


@dataclass
class TfliteExport:
    """What `export_tflite` wrote."""

    manifest: Manifest  # Of the new bundle.
    losses: dict[str, Loss]  # Of each signature against its ONNX file, and of the ``output`` of all in sequence.
    kept: dict[str, str]  # Subgraphs that stay in fp32 because of their loss, with the reason.
    moved: dict[str, str]  # New processors of those that moved.


def export_tflite(
    bundle: Bundle,
    out: Path,
    images: Sequence[Array],
    images_source: str,
    *,
    precision: Mapping[str, str] | None = None,
    min_cosine: float = QUANTISED_MIN_COSINE,
    repair: bool = False,
    progress: Progress = silent,
) -> TfliteExport:
    """Write a copy of a bundle that adds a TFLite file to its ONNX files.

    Int8 subgraphs of the bundle are int8 in the file, with their
    calibrated scales; fp16 ones have weights in half precision and compute
    in single. Each signature reads the inputs of its ONNX file on `images`, and
    the two results are compared.

    Args:
        out: Folder of the new one; an earlier bundle there is replaced.
        images: Representative inputs of the model.
        precision: ``fp32``, ``fp16`` or ``int8`` by processor, for an fp32 bundle; None for the bundle's precisions.
        min_cosine: Minimum cosine with fp32, see `stretch.export.precision.export_precision`.
        repair: Keep subgraphs below it in fp32 instead of failing.
        progress: Called with the next signature.
    """
    if problem := LiteRtDelegate.unavailable():
        raise MissingBackendError(f"a TFLite file is compared with its ONNX files when it is written, and {problem}", INSTALL)
    if out.resolve() == bundle.path.resolve():
        raise UsageError(f"the new bundle cannot replace {bundle.path}, which it is made from", "choose another folder with --out")
    check_target(out)
    if not precision or set(precision.values()) == {"fp32"}:
        return _export(bundle, out, images, images_source, {}, {}, progress)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        lowered = export_precision(
            bundle, Path(folder) / "lower", precision, images, images_source, min_cosine=min_cosine, repair=repair, progress=progress
        )
        return _export(Bundle(Path(folder) / "lower", lowered.manifest), out, images, images_source, lowered.kept, lowered.moved, progress)


def _export(
    bundle: Bundle,
    out: Path,
    images: Sequence[Array],
    images_source: str,
    kept: dict[str, str],
    moved: dict[str, str],
    progress: Progress,
) -> TfliteExport:
    manifest = bundle.manifest
    content = write_tflite(bundle, progress=progress)
    with staged(out) as folder:
        # Code compiled from an earlier TFLite file may have other scales.
        files = copy_files(bundle, folder, leave=set(manifest.aot.values()))
        (folder / FILE).write_bytes(content)
        files[FILE] = file_entry(folder / FILE)
        new_manifest = msgspec.structs.replace(manifest, files=files, tflite=FILE, aot={})
        progress("comparison")
        comparison = compare(Bundle(folder, new_manifest), images[:COMPARED])
        comparison.refuse()
        record = {"images": {"source": images_source, "count": len(images[:COMPARED])}, **comparison.to_json()}
        new_manifest = msgspec.structs.replace(
            new_manifest, checks={key: value for key, value in manifest.checks.items() if key != "aot"} | {"tflite": record}
        )
        write_manifest(folder, new_manifest)
    return TfliteExport(new_manifest, comparison.losses, kept, moved)


def write_tflite(bundle: Bundle, *, progress: Progress = silent) -> bytes:
    """The TFLite file of a bundle: one signature per subgraph and join, and the plan as metadata."""
    manifest = bundle.manifest
    writer = Writer(f"{manifest.model.name}, branched for {manifest.device} by nn-stretch")
    shapes = {tensor.name: nhwc(tensor.shape) for tensor in manifest.tensors}
    for sub in manifest.subgraphs:
        progress(sub.name)
        try:
            to_tflite(writer, sub.name, read_source(bundle.file(sub.file)), half=sub.precision == "fp16")
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
        tuple(_last(tensor) for tensor in manifest.tensors),
        tuple(msgspec.structs.replace(sub, file=FILE) for sub in manifest.subgraphs),
        manifest.joins,
    )
    writer.metadata(METADATA, msgspec.json.encode(plan))
    content = bytes(writer.finish())
    parse_tflite(content, Path(FILE))
    return content


def _last(tensor: Tensor) -> Tensor:
    """A tensor with channels last."""
    return msgspec.structs.replace(tensor, shape=nhwc(tensor.shape), layout="NHWC") if len(tensor.shape) == 4 else tensor
