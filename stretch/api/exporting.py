"""`stretch.api.export`: a bundle in other precisions, as TFLite, DSP code, torch or C++ code; or a design of a trained run."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from predictors.errors import UsageError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.preprocessing import IMAGENET, requested_preprocessing
from scheduler.progress import Progress, silent

if TYPE_CHECKING:
    from stretch.capture.inputs import InputShapes
    from stretch.emit.package import EmitAnswer
    from stretch.export.answer import ChipsAnswer, ExportAnswer
    from stretch.train.answer import ExtractAnswer

#: Number of synthetic images for bundles with random weights.
SYNTHETIC = 16

#: Is in the folder of every run of `stretch train`.
RUN_FILE = "run.json"


class RunnerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Sources of a C++ program; the fields are the keys of `stretch export --as cpp --json`."""

    model: str  # Name of the model.
    device: str  # Profile that it was planned for.
    out: str  # The folder.
    files: list[str]  # Names of what is in it.
    sha256: str  # Of the TFLite file, the only one that the built program takes.
    warnings: list[str]  # What a person should know.


def export(
    source: str | Path,
    out: str | Path | None = None,
    form: Literal["onnx", "tflite", "qnn", "code", "cpp"] = "onnx",
    *,
    precision: Mapping[str, str] | None = None,
    images: str | Path | None = None,
    image_count: int = 64,
    preprocessing: Mapping[str, Any] | None = None,
    min_cosine: float = 0.99,
    fp32_fallback: bool = False,
    chips: Sequence[str] = ("sm8350", "sm8450", "sm8550"),
    aot: Sequence[str] = (),
    design: Path | None = None,
    bundle: bool = True,
    controls: bool = True,
    rank: int = 0,
    weights: str = "default",
    input_shape: "InputShapes | None" = None,
    seed: int = 0,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> "ExportAnswer | ChipsAnswer | EmitAnswer | RunnerAnswer | ExtractAnswer":
    """Write a bundle in another form, or a design of a trained run, and compare it with the original.

    Args:
        source: Folder of a bundle or of a run; with ``code`` also a model: a name, Python code or a file.
        out: Folder of what is written; of a run by default its folder ``extracted``.
        form: ``onnx``, ``tflite`` or ``qnn``: a bundle; ``code``: a package of torch code; ``cpp``: a program's sources.
        precision: Of a bundle, by processor; the planned ones, or with ``tflite`` those that it has.
        images: Folder of calibration images; synthetic ones for random weights and fp16.
        preprocessing: What differs from what the bundle states, such as ``{"crop": 0.9}``.
        min_cosine: Of the outputs of int8 and fp16 subgraphs, and of the model, with those in fp32.
        fp32_fallback: Whether subgraphs below it stay in fp32.
        chips: With ``qnn``, what to compile for.
        aot: With ``tflite``, chips that int8 dsp signatures are compiled for.
        design: Of a run: a design file of the supernet's pool or range.
        bundle: Of a run: whether a bundle is written, with sequential `controls`.
        rank: Of a run of a supernet: how many designs an accuracy predictor is fitted to.
        weights: Of a model, as are `input_shape` and `seed`.
        trust_code: Whether Python code that a model's name or a recipe names may be executed.

    Raises:
        StretchError: Or one of its kinds: no bundle, int8 without images, a comparison that fails, no folder to write to.
    """
    progress, run = progress or silent, (Path(source) / RUN_FILE).is_file()
    if run and form != "onnx":
        raise UsageError(f"the run {source} is no bundle that could be written as {form}", "export the run first, then its bundle")
    if out is None and not run:
        raise UsageError("nothing says where to write", "name a folder with --out")
    if form == "code":
        from stretch.emit.package import emit

        return emit(str(source), Path(out or ""), input_shape, weights=weights, seed=seed, trust_code=trust_code)
    if form == "cpp":
        return _runner(Path(source), Path(out or ""))
    if run:
        return _extracted(Path(source), Path(out) if out else None, design, bundle, controls, rank, trust_code, progress)
    from stretch.export.answer import aot_answer, contexts_answer, export_answer
    from stretch.export.precision import export_precision, planned_precision
    from stretch.export.staging import check_target

    folder, loaded = Path(out or ""), load_bundle(source, check_hashes=True)
    manifest, model = loaded.manifest, loaded.manifest.model
    check_target(folder)
    if form == "qnn":
        from stretch.export.qnn import export_contexts

        contexts = export_contexts(loaded, folder, list(chips), progress)
        return contexts_answer(folder, contexts.manifest, contexts.losses, [])
    if aot:
        from stretch.export.tflite.aot import export_aot

        compiled = export_aot(loaded, folder, list(aot), progress)
        return aot_answer(folder, compiled.manifest, compiled.compiled, [])
    read = requested_preprocessing(model.preprocessing or IMAGENET, preprocessing or None, model.input_shape)
    if preprocessing:
        # it applies to the images read here and is written into the new bundle
        model = msgspec.structs.replace(model, preprocessing=read)
        manifest = msgspec.structs.replace(manifest, model=model)
        loaded = dataclasses.replace(loaded, manifest=manifest)
    wanted = dict(precision) if precision is not None else {} if form == "tflite" else planned_precision(manifest)
    from stretch.quantize.images import load_images, synthetic_images

    if images is not None:
        samples, origin = list(load_images(Path(images), model.input_shape, image_count, read)), "folder"
    elif manifest.weights.source == "random" or "int8" not in wanted.values():
        samples, origin = list(synthetic_images(model.input_shape, min(image_count, SYNTHETIC))), "synthetic"
    else:
        raise UsageError("int8 needs calibration images", "give a folder of images that the model will meet with --images")
    common: dict[str, Any] = {"progress": progress, "min_cosine": min_cosine, "repair": fp32_fallback}
    if form == "tflite":
        from stretch.export.tflite.bundle import export_tflite

        written: Any = export_tflite(loaded, folder, samples, origin, precision=wanted, **common)
    else:
        written = export_precision(loaded, folder, wanted, samples, origin, **common)
    said = []
    for name, why in written.kept.items():
        where = f", on processor {written.moved[name]}" if name in written.moved else ""
        said.append(f"subgraph `{name}` stays in fp32{where}: {why}")
    if manifest.predicted and not written.manifest.predicted:
        said.append(f"the profile {manifest.device} cannot be read here, so the new bundle has no predicted times")
    return export_answer(folder, "tflite" if form == "tflite" else "onnx", written.manifest, written.losses, said)


def _runner(bundle: Path, folder: Path) -> RunnerAnswer:
    """Write the sources of a C++ program that runs a bundle."""
    from scheduler.runner.sources import write_runner

    loaded = load_bundle(bundle, check_hashes=True)
    files, manifest = write_runner(loaded, folder), loaded.manifest
    sha256 = manifest.files[str(manifest.tflite)].sha256
    return RunnerAnswer(model=manifest.model.name, device=manifest.device, out=str(folder), files=files, sha256=sha256, warnings=[])


def _extracted(
    run: Path,
    folder: Path | None,
    design: Path | None,
    bundle: bool,
    controls: bool,
    rank: int,
    trust_code: bool,
    progress: Progress,
) -> "ExtractAnswer":
    """Take a design out of a trained run: its weights, its accuracy and a bundle."""
    from stretch.planning.cost.accuracy import save_accuracy
    from stretch.train.answer import ExtractAnswer, ExtractedAccuracy, ranking_answer
    from stretch.train.extract import extract
    from stretch.train.rank import check_rank
    from stretch.train.rank import rank as rank_designs

    if rank:
        check_rank(run, rank)
    target = folder or run / "extracted"
    progress("weights")
    done = extract(run, target, design=design, bundle=bundle, controls=controls, trust_code=trust_code)
    ranking = None
    if rank:
        predictor = rank_designs(run, rank, progress, trust_code=trust_code).predictor
        save_accuracy(target / "accuracy.json", predictor)
        ranking = ranking_answer(target / "accuracy.json", predictor)
    return ExtractAnswer(
        checkpoint=done.checkpoint,
        accuracy=ExtractedAccuracy(supernet=done.inside, extracted=done.extracted) if done.labelled else None,
        agreement=done.agreement,
        bundle=done.bundle,
        checks=done.manifest.checks if done.manifest else {},
        ranking=ranking,
        warnings=[],
    )
