"""`stretch export --as onnx` and `--as tflite`: a bundle in other precisions, with or without a TFLite file."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from predictors.errors import UsageError
from scheduler.progress import Progress
from stretch.api.exporters.base import Exporter, exporters, written_page
from stretch.api.parameters import Parsed, PreprocessingOption
from stretch.planning.messages import command_line
from stretch.report.html.page import Page

if TYPE_CHECKING:
    from stretch.export.precision import ExportAnswer

#: Maximum number of synthetic images for bundles with random weights.
SYNTHETIC = 16


def _precisions(text: str) -> dict[str, str]:
    """Parse a list such as ``cpu=fp32,dsp=int8`` into precisions by processor."""
    chosen: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value) or name in chosen:
            raise UsageError(f"--precision {text} is not understood", "write it as --precision cpu=fp32,dsp=int8")
        chosen[name] = value
    return chosen


def _write(
    source: str,
    out: Path,
    form: Literal["onnx", "tflite"],
    *,
    precision: Annotated[
        Mapping[str, str] | None,
        typer.Option(
            help="Precision by processor, such as cpu=fp32,dsp=int8. Default: the planned precisions, or with --as tflite those of the bundle."
        ),
        Parsed(str | None, _precisions),
    ] = None,
    images: Annotated[
        str | Path | None,
        typer.Option(help="Folder of calibration images (pictures, .npy, .npz). Default for random weights and fp16: synthetic images."),
    ] = None,
    image_count: Annotated[int, typer.Option(help="Maximum number of images; the first 64 calibrate.", min=8, max=100_000)] = 64,
    preprocessing: PreprocessingOption = None,
    min_cosine: Annotated[
        float,
        typer.Option(
            help="Minimum cosine similarity to fp32 of the output of each int8 or fp16 subgraph and of the model.", min=0.0, max=1.0
        ),
    ] = 0.99,
    fp32_fallback: Annotated[
        bool, typer.Option("--fp32-fallback", help="Keep subgraphs below --min-cosine in fp32 instead of failing.")
    ] = False,
    progress: Progress,
) -> "ExportAnswer":
    from scheduler.bundle.load import load_bundle
    from scheduler.bundle.preprocessing import IMAGENET, requested_preprocessing
    from stretch.export.precision import Acceptance, ExportAnswer, ExportedSubgraph, export_precision, planned_precision
    from stretch.export.quantize.images import load_images, synthetic_images
    from stretch.export.staging import check_target, written_files

    loaded = load_bundle(source, check_hashes=True)
    manifest, model = loaded.manifest, loaded.manifest.model
    if len(manifest.inputs) > 1:
        problem = f"{source} has {len(manifest.inputs)} inputs, and networks of one input are converted"
        raise UsageError(problem, "keep it in fp32, in which `stretch run` runs it")
    check_target(out)
    read = requested_preprocessing(model.preprocessing or IMAGENET, preprocessing or None, model.input_shape)
    if preprocessing:
        # it applies to these images, and the new bundle states it
        model = msgspec.structs.replace(model, preprocessing=read)
        manifest = msgspec.structs.replace(manifest, model=model)
        loaded = dataclasses.replace(loaded, manifest=manifest)
    precisions = dict(precision) if precision is not None else {} if form == "tflite" else planned_precision(manifest)
    if images is not None:
        samples, origin = list(load_images(Path(images), model.input_shape, image_count, read)), "folder"
    elif manifest.weights.source == "random" or "int8" not in precisions.values():
        samples, origin = list(synthetic_images(model.input_shape, min(image_count, SYNTHETIC))), "synthetic"
    else:
        raise UsageError("int8 needs calibration images", "give a folder of images that the model will meet with --images")
    acceptance = Acceptance(min_cosine, fp32_fallback)
    if form == "tflite":
        from stretch.export.tflite import export_tflite

        written = export_tflite(loaded, out, samples, origin, precision=precisions, acceptance=acceptance, progress=progress)
    else:
        written = export_precision(loaded, out, precisions, samples, origin, acceptance, progress)
    warnings = []
    for name, reason in written.kept.items():
        where = f", on processor {written.moved[name]}" if name in written.moved else ""
        warnings.append(f"subgraph `{name}` stays in fp32{where}: {reason}")
    if manifest.predicted and not written.manifest.predicted:
        warnings.append(f"the profile {manifest.device} cannot be read here, so the new bundle has no predicted times")
    subgraphs = []
    for sub in written.manifest.subgraphs:
        loss = written.losses.get(sub.name)
        compared = {} if loss is None else {"cosine": loss.cosine, "snr_db": loss.snr_db}
        subgraphs.append(ExportedSubgraph(name=sub.name, processor=sub.processor, precision=sub.precision, **compared))
    return ExportAnswer(
        bundle=out,
        files=written_files(written.manifest),
        format=form,
        subgraphs=subgraphs,
        checks=written.manifest.checks["tflite" if form == "tflite" else "precision"],
        device=written.manifest.device,
        predicted=written.manifest.predicted,
        recommended=written.manifest.recommended,
        warnings=warnings,
    )


def _page(answer: "ExportAnswer") -> Page:
    tflite = answer.format == "tflite"
    rows = [
        (
            sub.name,
            sub.processor,
            sub.precision,
            "" if sub.cosine is None else f"{sub.cosine:.5f}",
            "" if sub.snr_db is None else f"{sub.snr_db:.1f}",
        )
        for sub in answer.subgraphs
    ]
    output, images, predicted = answer.checks["output"], answer.checks["images"], answer.predicted
    same = "" if output.get("top1_agreement") is None else f", the same best class for {output['top1_agreement']:.1%}"
    exact = f"; with fp32 {output['fp32']['cosine']:.5f}, {output['fp32']['snr_db']:.1f} dB," if tflite else ""
    notes = [
        f"output: cosine {output['cosine']:.5f}, {output['snr_db']:.1f} dB{exact}{same} of {images['count']} images ({images['source']})"
    ]
    if predicted:
        from stretch.planning.cost.compare import baseline

        speedup, single = predicted["speedup"], predicted["best_single_processor"]
        faster = f", {speedup:.2f}× the best single processor ({single})" if speedup is not None else ""
        notes.append(
            f"predicted on {answer.device}: {predicted['makespan_ms']:.2f} ms{faster}; recommended: {baseline(answer.recommended)}"
        )
    titles = ("subgraph", "processor", "precision", "cosine with ONNX" if tflite else "cosine with fp32", "SNR dB")
    return written_page(titles, rows, [*notes, f"bundle: {answer.bundle}", f"Next: {command_line('run', answer.bundle)}"])


exporters.register("onnx")(Exporter("one ONNX file per subgraph", partial(_write, form="onnx"), _page))
exporters.register("tflite")(Exporter("also one TFLite file of all subgraphs", partial(_write, form="tflite"), _page))
