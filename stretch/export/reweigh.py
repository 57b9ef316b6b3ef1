"""A bundle with other weights: the same graphs, checked against torch again."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from scheduler.bundle.agreement import Agreement
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import FileEntry, Manifest, WeightsInfo
from scheduler.formats.onnx import OnnxFile
from scheduler.progress import Progress, silent
from stretch.capture import Captured
from stretch.export.checks import check_export
from stretch.export.lowering import RANGES
from stretch.export.onnx import Arrays, save_onnx, to_numpy
from stretch.export.staging import copy_files, file_entry, staged, write_manifest
from stretch.operators.forms import forms
from stretch.transform.model import BranchedModel, op_weights

#: Results of checks that are not of the float files, which alone have the new weights.
_DERIVED = ("precision", "tflite", "aot", "contexts")


def export_reweighed(
    bundle: Bundle,
    out: Path,
    original: Captured,
    model: BranchedModel,
    weights: WeightsInfo,
    calibrated_on: Sequence[str] = (),
    *,
    agreeing: Callable[[Bundle], Agreement | None],
    progress: Progress = silent,
) -> Manifest:
    """Write a float bundle again with the weights of a network of its design, each changed file checked against torch.

    Controls and predictions stay. What was compiled or converted from the old weights is left out, as are ranges of int8
    that they were trained with.

    Args:
        bundle: The bundle; in fp32.
        out: Folder of the new one, its own among them; a bundle there is replaced in one step.
        model: The branched network with its new weights, on the CPU and in evaluation mode.
        calibrated_on: Fingerprints of the images that the new weights were fitted to.
        agreeing: Gives the agreement with the original from the complete files, before they are put in place.
        progress: Called with a few words for what comes next.

    Raises:
        StretchError: If a file differs from torch, or the folder cannot be written.
    """
    manifest = bundle.manifest
    arrays = to_numpy(op_weights(model))
    changed = [sub.file for sub in manifest.subgraphs] + [manifest.whole]
    with staged(out) as folder:
        kept = copy_files(bundle, folder, leave={*changed, *(f"{file}.data" for file in changed), *derived_files(manifest)})
        files: dict[str, FileEntry] = dict(kept)
        for name in changed:
            progress(f"export {Path(name).stem}")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            for written in save_onnx(_reweighed(bundle.file(name), arrays), folder / name):
                files[str(written.relative_to(folder))] = file_entry(written)
        made = msgspec.structs.replace(manifest, weights=weights, files=files, tflite=None, aot={}, contexts={}, agreement=None)
        made = msgspec.structs.replace(made, calibrated_on=tuple(dict.fromkeys((*manifest.calibrated_on, *calibrated_on))))
        progress("export checks")
        made = msgspec.structs.replace(made, checks=_checks(folder, made, original, model))
        made = msgspec.structs.replace(made, agreement=agreeing(Bundle(folder, made)))
        write_manifest(folder, made)
    return made


def derived_files(manifest: Manifest) -> set[str]:
    """Files of a bundle that were compiled or converted from its float files."""
    found = {*manifest.aot.values(), *(file for own in manifest.contexts.values() for file in own.values())}
    return found | ({manifest.tflite} if manifest.tflite is not None else set())


def _reweighed(path: Path, weights: Arrays) -> onnx.ModelProto:
    """A file's graph with other weights, by operator and key."""
    model = onnx.load(str(path))
    for part in OnnxFile(path, model).operators:
        own = weights.get(part.op.name, {})
        for key, name in zip(forms.get(part.op.kind).stored, part.weights, strict=False):
            if key in own:
                _put(model, name, own[key])
    properties = [(entry.key, entry.value) for entry in model.metadata_props if entry.key != RANGES]
    onnx.helper.set_model_props(model, dict(properties))
    return model


def _put(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    """Give an initialiser other numbers; it keeps its shape."""
    tensor = next(each for each in model.graph.initializer if each.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value, np.float32).reshape(tuple(tensor.dims)), name))


def _checks(folder: Path, manifest: Manifest, original: Captured, model: BranchedModel) -> dict[str, object]:
    """The numeric checks of the changed files, beside those of controls, which are as they were."""
    known = {name: value for name, value in manifest.checks.items() if name not in _DERIVED}
    found = check_export(folder, msgspec.structs.replace(manifest, controls={}), original, model, None)
    before = known.get("errors")
    controls = {name: error for name, error in before.items() if name in manifest.controls} if isinstance(before, dict) else {}
    errors = {**found["errors"], **controls}
    return {**known, **found, "errors": errors, "max_error": max(errors.values())}
