"""Replace a bundle's weights; the graphs do not change and are checked against torch again."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from scheduler.bundle.agreement import Agreement
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import FileEntry, Manifest
from scheduler.formats.onnx import OnnxFile
from scheduler.progress import Progress, silent
from stretch.export.bundle import WEIGHTS
from stretch.export.checks import check_export
from stretch.export.lowering import RANGES, stated_ranges
from stretch.export.onnx import WeightFile, to_numpy
from stretch.export.staging import copy_files, derived_files, file_entry, stage_folder, without_derived, write_manifest
from stretch.network.capture import Captured
from stretch.operators.formats.onnx import Arrays
from stretch.operators.lowerings import lowerings
from stretch.transform.model import BranchedModel, op_weights


def export_reweighed(
    bundle: Bundle,
    out: Path,
    original: Captured,
    model: BranchedModel,
    ranges: Mapping[str, Mapping[str, tuple[float, int]]] | None = None,
    *,
    agreeing: Callable[[Bundle], Agreement | None],
    progress: Progress = silent,
) -> Manifest:
    """Write a copy of an fp32 bundle with new weights for its design, and check each changed file against torch.

    Controls and predictions do not change. Files compiled or converted from the old weights are dropped, as are int8 ranges
    trained with them; `ranges` are the new ones.

    Args:
        bundle: The bundle, in fp32; its manifest states the source of the new weights and the images that they were fitted to.
        out: Folder of the new bundle, possibly the same; an existing bundle is replaced atomically.
        model: The branched network with its new weights, on the CPU and in evaluation mode.
        ranges: Scale and zero point of the int8 refinement, by subgraph and tensor.
        agreeing: Measures the agreement with the original on the complete files, before they are moved into place.
    """
    manifest = bundle.manifest
    arrays = to_numpy(op_weights(model))
    properties = {sub.file: stated_ranges((ranges or {}).get(sub.name, {})) for sub in manifest.subgraphs} | {manifest.whole: {}}
    written = [*properties, *manifest.controls.values()]
    with stage_folder(out) as folder:
        files: dict[str, FileEntry] = copy_files(bundle, folder, leave={WEIGHTS, *written, *derived_files(manifest)})
        shared = WeightFile(folder / WEIGHTS)
        for name in written:
            progress(f"export {Path(name).stem}")
            path = bundle.file(name)
            shared.save(_replace_weights(path, arrays, properties[name]) if name in properties else onnx.load(str(path)), folder / name)
        files |= {name: file_entry(folder / name) for name in (*written, WEIGHTS) if (folder / name).exists()}
        new_manifest = msgspec.structs.replace(without_derived(manifest), files=files, agreement=None)
        if manifest.own is not None:
            # new weights change the outputs
            new_manifest = msgspec.structs.replace(new_manifest, own=msgspec.structs.replace(manifest.own, exact=False))
        progress("export checks")
        new_manifest = msgspec.structs.replace(new_manifest, checks=_checks(folder, new_manifest, original, model))
        new_manifest = msgspec.structs.replace(new_manifest, agreement=agreeing(Bundle(folder, new_manifest)))
        write_manifest(folder, new_manifest)
    return new_manifest


def _replace_weights(path: Path, weights: Arrays, ranges: Mapping[str, str]) -> onnx.ModelProto:
    """Return a file's model with other weights, and with the property for their ranges."""
    model = onnx.load(str(path))
    for part in OnnxFile(path, model).operators:
        arrays = weights.get(part.op.name, {})
        for key, name in zip(lowerings.get(part.op.kind).stored, part.weights, strict=False):
            if key in arrays:
                _put(model, name, arrays[key])
    properties = {entry.key: entry.value for entry in model.metadata_props if entry.key != RANGES}
    onnx.helper.set_model_props(model, {**properties, **ranges})
    return model


def _put(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    """Replace the values of an initialiser; it keeps its shape."""
    tensor = next(initializer for initializer in model.graph.initializer if initializer.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value, np.float32).reshape(tuple(tensor.dims)), name))


def _checks(folder: Path, manifest: Manifest, original: Captured, model: BranchedModel) -> dict[str, object]:
    """Return the numeric checks of the changed files, with the old checks of the unchanged controls."""
    kept = {name: value for name, value in manifest.checks.items() if name != "precision"}
    record = check_export(folder, msgspec.structs.replace(manifest, controls={}), original, model, {})
    before = kept.get("errors")
    controls = {name: error for name, error in before.items() if name in manifest.controls} if isinstance(before, dict) else {}
    errors = {**record["errors"], **controls}
    return {**kept, **record, "errors": errors, "max_error": max(errors.values())}
