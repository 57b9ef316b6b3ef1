"""`stretch export`: convert a bundle to other precisions, add a TFLite file, or compile code for a DSP."""

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output, verb
from stretch.cli.pictures import PictureRequest, picture_options

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.bundle.load import Bundle
    from scheduler.bundle.manifest import Manifest
    from stretch.export.answer import ChipsAnswer, ExportAnswer


class Format(StrEnum):
    """Files to write."""

    onnx = "onnx"
    tflite = "tflite"
    qnn = "qnn"


#: Number of synthetic images for bundles with random weights.
SYNTHETIC = 16

#: Seconds after Ctrl-C for removing unfinished files.
GRACE_S = WRITER_GRACE_S


@verb
@picture_options
def export(
    out: Output,
    *,
    bundle: Annotated[
        Path,
        typer.Argument(help="Folder of an fp32 bundle; any bundle with --format tflite, one with int8 dsp subgraphs with --format qnn."),
    ],
    folder: Annotated[Path, typer.Option("--out", help="Folder of the new bundle.")],
    file_format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="onnx: one ONNX file per subgraph; tflite: also one TFLite file of all subgraphs; qnn: also compiled code for the DSPs of --chips.",
        ),
    ] = Format.onnx,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precision by processor, such as cpu=fp32,dsp=int8. Default: the planned precisions, or with --format tflite those of the bundle."
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="Folder of calibration images (pictures, .npy, .npz). Default for random weights and fp16: synthetic images."),
    ] = None,
    limit: Annotated[int, typer.Option("--image-count", help="Maximum number of images; the first 64 calibrate.", min=8, max=100_000)] = 64,
    pictures: PictureRequest,
    min_cosine: Annotated[
        float,
        typer.Option(
            help="Minimum cosine similarity to fp32 of the output of each int8 or fp16 subgraph and of the model.", min=0.0, max=1.0
        ),
    ] = 0.99,
    fp32_fallback: Annotated[
        bool, typer.Option("--fp32-fallback", help="Keep subgraphs below --min-cosine in fp32 instead of failing.")
    ] = False,
    chips: Annotated[str, typer.Option(help="With --format qnn: chips to compile for, separated by commas.")] = "sm8350,sm8450,sm8550",
    aot: Annotated[
        str | None,
        typer.Option(
            metavar="CHIPS",
            help="Experimental: with --format tflite, compile the int8 dsp signatures of a bundle's TFLite file for these chips.",
        ),
    ] = None,
) -> None:
    """Write a copy of a bundle with processors in int8 or fp16, a TFLite file or DSP code, and compare it with the original."""
    from scheduler.bundle.load import load_bundle
    from stretch.export.staging import check_target

    loaded = _restated(load_bundle(bundle, check_hashes=True), pictures)
    manifest = loaded.manifest
    check_target(folder)
    if aot is not None or file_format is Format.qnn:
        _refuse_images(file_format, precision, images, pictures, aot=aot is not None)
        if aot is not None:
            _export_aot(out, loaded, folder, _names(aot))
        else:
            _export_qnn(out, loaded, folder, _names(chips))
        return
    wanted = _wanted(file_format, precision, manifest)
    samples, source = _samples(manifest, wanted, images, limit)
    with out.progress("exporting") as progress:
        write = _writer(file_format)
        written = write(loaded, folder, wanted, samples, source, progress=progress, min_cosine=min_cosine, repair=fp32_fallback)
    _emit(out, folder, file_format, manifest, written)


def _restated(bundle: "Bundle", pictures: PictureRequest) -> "Bundle":
    """The bundle with the preprocessing of the flags, which applies to the images read here and is written into the new bundle."""
    from msgspec.structs import replace

    from scheduler.bundle.preprocessing import IMAGENET, requested_preprocessing

    model = bundle.manifest.model
    if not (requested := pictures.values()):
        return bundle
    read = requested_preprocessing(model.preprocessing or IMAGENET, requested, model.input_shape)
    return dataclasses.replace(bundle, manifest=replace(bundle.manifest, model=replace(model, preprocessing=read)))


def _wanted(file_format: Format, precision: str | None, manifest: "Manifest") -> dict[str, str]:
    """Precision by processor, as requested or as planned."""
    from stretch.export.precision import planned_precision

    if precision is not None:
        return _precision(precision)
    return {} if file_format is Format.tflite else planned_precision(manifest)


def _writer(file_format: Format) -> Any:
    """The export function of a format."""
    from stretch.export.precision import export_precision

    if file_format is not Format.tflite:
        return export_precision
    from stretch.export.tflite.bundle import export_tflite

    return lambda bundle, folder, wanted, *rest, **options: export_tflite(bundle, folder, *rest, precision=wanted, **options)


def _refuse_images(file_format: Format, precision: str | None, images: Path | None, pictures: PictureRequest, *, aot: bool) -> None:
    """Raise UsageError if compiling int8 subgraphs is combined with flags of quantisation."""
    from predictors.errors import UsageError

    stated = precision is not None or images is not None or pictures != PictureRequest()
    if aot and (file_format is not Format.tflite or stated):
        raise UsageError(
            "--aot compiles signatures of a TFLite file that is there already",
            "give it with --format tflite alone, on a bundle that has one",
        )
    if not aot and stated:
        raise UsageError(
            "--format qnn compiles subgraphs that are int8 already", "make them int8 first, with --precision dsp=int8 and --images"
        )


def _samples(manifest: "Manifest", wanted: dict[str, str], images: Path | None, limit: int) -> "tuple[list[Any], str]":
    """Images for calibration and comparison, and their source."""
    from predictors.errors import UsageError
    from scheduler.bundle.preprocessing import IMAGENET
    from stretch.quantize.images import load_images, synthetic_images

    if images is not None:
        read = manifest.model.preprocessing or IMAGENET
        return list(load_images(images, manifest.model.input_shape, limit, read)), "folder"
    if manifest.weights.source == "random" or "int8" not in wanted.values():
        return list(synthetic_images(manifest.model.input_shape, min(limit, SYNTHETIC))), "synthetic"
    raise UsageError("int8 needs calibration images", "give a folder of images that the model will meet with --images")


def _emit(out: Output, folder: Path, file_format: Format, before: "Manifest", written: Any) -> None:
    """Report the new bundle, the subgraphs that stayed in fp32, and the predicted latency."""
    from stretch.export.answer import export_answer

    for name, why in written.kept.items():
        where = f", on processor {written.moved[name]}" if name in written.moved else ""
        out.warn(f"subgraph `{name}` stays in fp32{where}: {why}")
    if before.predicted and not written.manifest.predicted:
        out.warn(f"the profile {before.device} cannot be read here, so the new bundle has no predicted times")
    form: Literal["onnx", "tflite"] = "tflite" if file_format is Format.tflite else "onnx"
    answer = export_answer(folder, form, written.manifest, written.losses, out.warnings)
    out.emit(answer, lambda console: _print(console, answer))


def _export_qnn(out: Output, bundle: "Bundle", folder: Path, chips: list[str]) -> None:
    """Compile DSP code for chips and compare each file with its int8 subgraph."""
    from stretch.export.answer import contexts_answer
    from stretch.export.qnn import export_contexts

    with out.progress("compiling") as progress:
        contexts = export_contexts(bundle, folder, chips, progress)
    answer = contexts_answer(folder, contexts.manifest, contexts.losses, out.warnings)
    out.emit(answer, lambda console: _print_chips(console, answer))


def _export_aot(out: Output, bundle: "Bundle", folder: Path, chips: list[str]) -> None:
    """Compile the int8 DSP signatures of the TFLite file for chips and compare each with its int8 subgraph."""
    from stretch.export.answer import aot_answer
    from stretch.export.tflite.aot import export_aot

    with out.progress("compiling") as progress:
        compiled = export_aot(bundle, folder, chips, progress)
    answer = aot_answer(folder, compiled.manifest, compiled.compiled, out.warnings)
    out.emit(answer, lambda console: _print_chips(console, answer))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _precision(text: str) -> dict[str, str]:
    """``cpu=fp32,dsp=int8`` as a dictionary."""
    from predictors.errors import UsageError

    chosen: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value) or name in chosen:
            raise UsageError(f"--precision {text} is not understood", "write it as --precision cpu=fp32,dsp=int8")
        chosen[name] = value
    return chosen


def _print(console: "Console", answer: "ExportAnswer") -> None:
    from rich.table import Table

    tflite = answer.format == "tflite"

    table = Table(box=None, pad_edge=False)
    for title in ("subgraph", "processor", "precision"):
        table.add_column(title)
    for title in ("cosine with ONNX" if tflite else "cosine with fp32", "SNR dB"):
        table.add_column(title, justify="right")
    for sub in answer.subgraphs:
        numbers = ["", ""] if sub.cosine is None or sub.snr_db is None else [f"{sub.cosine:.5f}", f"{sub.snr_db:.1f}"]
        table.add_row(sub.name, sub.processor, sub.precision, *numbers)
    console.print(table)
    output, images = answer.checks["output"], answer.checks["images"]
    same = "" if output.get("top1_agreement") is None else f", the same best class for {output['top1_agreement']:.1%}"
    exact = f"; with fp32 {output['fp32']['cosine']:.5f}, {output['fp32']['snr_db']:.1f} dB," if tflite else ""
    console.print(
        f"output: cosine {output['cosine']:.5f}, {output['snr_db']:.1f} dB{exact}{same} of {images['count']} images ({images['source']})"
    )
    if answer.predicted:
        console.print(_prediction(answer))
    console.print(f"bundle: {answer.bundle}")


def _prediction(answer: "ExportAnswer") -> str:
    """Predicted latency of the new bundle on its device."""
    predicted = answer.predicted
    speedup = predicted["speedup"]
    single = f", {speedup:.2f}× the best single processor ({predicted['best_single_processor']})" if speedup is not None else ""
    return f"predicted on {answer.device}: {predicted['makespan_ms']:.2f} ms{single}; recommended: {answer.recommended}"


def _print_chips(console: "Console", answer: "ChipsAnswer") -> None:
    from rich.table import Table

    from stretch.export.answer import ChipSignature

    signatures = answer.format == "tflite"

    table = Table(box=None, pad_edge=False)
    for title in ("chip", "signature" if signatures else "subgraph"):
        table.add_column(title)
    for title in ("operators",) * signatures + ("cosine with int8", "SNR dB"):
        table.add_column(title, justify="right")
    for sub in answer.subgraphs:
        operators = (str(sub.operators),) if isinstance(sub, ChipSignature) else ()
        table.add_row(sub.chip, sub.name, *operators, f"{sub.cosine:.5f}", f"{sub.snr_db:.1f}")
    console.print(table)
    console.print(
        f"bundle: {answer.bundle}; "
        + (
            "every operator of these signatures was taken; compared on the simulator of this machine"
            if signatures
            else f"run its code with: stretch run {answer.bundle} --dsp-code CHIP --trust-code"
        )
    )
