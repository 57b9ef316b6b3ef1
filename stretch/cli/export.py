"""`stretch export`: a bundle again, with processors' subgraphs in other precisions, a TFLite file, or code for a DSP."""

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


#: Made-up images for random weights.
SYNTHETIC = 16

#: Seconds after Ctrl-C in which it leaves nothing half-written.
GRACE_S = WRITER_GRACE_S


@verb
@picture_options
def export(
    out: Output,
    *,
    bundle: Annotated[
        Path, typer.Argument(help="Folder of an fp32 bundle; with --format tflite of any, with qnn of one whose dsp is int8.")
    ],
    folder: Annotated[Path, typer.Option("--out", help="Folder of the new bundle.")],
    file_format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="onnx: an ONNX file a subgraph; tflite: beside them one TFLite file of all subgraphs; qnn: beside them code for the DSP of chips.",
        ),
    ] = Format.onnx,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precision by processor, such as cpu=fp32,dsp=int8; by default what the plan assumed, or with --format tflite what the bundle has."
        ),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of calibration images (pictures, .npy, .npz); made up for random weights and fp16.")
    ] = None,
    limit: Annotated[int, typer.Option("--image-count", help="Images to use at most; the first 64 calibrate.", min=8, max=100_000)] = 64,
    pictures: PictureRequest,
    min_cosine: Annotated[
        float, typer.Option(help="Of each int8 or fp16 subgraph's output, and the model's, with fp32: less is refused.", min=0.0, max=1.0)
    ] = 0.99,
    fp32_fallback: Annotated[bool, typer.Option("--fp32-fallback", help="Keep in fp32 what would be refused.")] = False,
    chips: Annotated[str, typer.Option(help="Chips to compile for with --format qnn, separated by commas.")] = "sm8350,sm8450,sm8550",
    aot: Annotated[
        str | None,
        typer.Option(
            metavar="CHIPS",
            help="For experts, not supported: with --format tflite, compile the int8 dsp signatures of a bundle's TFLite file for these chips.",
        ),
    ] = None,
) -> None:
    """Write a bundle again with some processors in int8 or fp16, with a TFLite file, or with code for a DSP, and compare."""
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
        made = write(loaded, folder, wanted, samples, source, progress=progress, min_cosine=min_cosine, repair=fp32_fallback)
    _emit(out, folder, file_format, manifest, made)


def _restated(bundle: "Bundle", pictures: PictureRequest) -> "Bundle":
    """The bundle as if it stated what is asked of pictures: so they are read, and so says the bundle that is written."""
    from msgspec.structs import replace

    from scheduler.bundle.preprocessing import IMAGENET, requested_preprocessing

    model = bundle.manifest.model
    if not (asked := pictures.values()):
        return bundle
    read = requested_preprocessing(model.preprocessing or IMAGENET, asked, model.input_shape)
    return dataclasses.replace(bundle, manifest=replace(bundle.manifest, model=replace(model, preprocessing=read)))


def _wanted(file_format: Format, precision: str | None, manifest: "Manifest") -> dict[str, str]:
    """Precision by processor, as asked for or as planned."""
    from stretch.export.precision import planned_precision

    if precision is not None:
        return _precision(precision)
    return {} if file_format is Format.tflite else planned_precision(manifest)


def _writer(file_format: Format) -> Any:
    """What writes bundles of a format."""
    from stretch.export.precision import export_precision

    if file_format is not Format.tflite:
        return export_precision
    from stretch.export.tflite.bundle import export_tflite

    return lambda bundle, folder, wanted, *rest, **options: export_tflite(bundle, folder, *rest, precision=wanted, **options)


def _refuse_images(file_format: Format, precision: str | None, images: Path | None, pictures: PictureRequest, *, aot: bool) -> None:
    """Raise UsageError if compiling what is int8 already is asked for with what only making it int8 needs."""
    from predictors.errors import UsageError

    asked = precision is not None or images is not None or pictures != PictureRequest()
    if aot and (file_format is not Format.tflite or asked):
        raise UsageError(
            "--aot compiles signatures of a TFLite file that is there already",
            "give it with --format tflite alone, on a bundle that has one",
        )
    if not aot and asked:
        raise UsageError(
            "--format qnn compiles subgraphs that are int8 already", "make them int8 first, with --precision dsp=int8 and --images"
        )


def _samples(manifest: "Manifest", wanted: dict[str, str], images: Path | None, limit: int) -> "tuple[list[Any], str]":
    """Images to calibrate and compare with, and where they came from."""
    from predictors.errors import UsageError
    from scheduler.bundle.preprocessing import IMAGENET
    from stretch.quantize.images import load_images, synthetic_images

    if images is not None:
        read = manifest.model.preprocessing or IMAGENET
        return list(load_images(images, manifest.model.input_shape, limit, read)), "folder"
    if manifest.weights.source == "random" or "int8" not in wanted.values():
        return list(synthetic_images(manifest.model.input_shape, min(limit, SYNTHETIC))), "synthetic"
    raise UsageError("int8 needs calibration images, none were given", "give a folder of images that the model will meet with --images")


def _emit(out: Output, folder: Path, file_format: Format, before: "Manifest", made: Any) -> None:
    """Tell what was written, what stayed in fp32, and what it is predicted to take."""
    from stretch.export.answer import export_answer

    for name, why in made.kept.items():
        where = f", on processor {made.moved[name]}" if name in made.moved else ""
        out.warn(f"subgraph `{name}` stays in fp32{where}: {why}")
    if before.predicted and not made.manifest.predicted:
        out.warn(f"the profile {before.device} cannot be read here, so the new bundle has no predicted times")
    form: Literal["onnx", "tflite"] = "tflite" if file_format is Format.tflite else "onnx"
    answer = export_answer(folder, form, made.manifest, made.losses, out.warnings)
    out.emit(answer, lambda console: _print(console, answer))


def _export_qnn(out: Output, bundle: "Bundle", folder: Path, chips: list[str]) -> None:
    """Code for the DSP of chips, each file compared with its int8 subgraph."""
    from stretch.export.answer import contexts_answer
    from stretch.export.qnn import export_contexts

    with out.progress("compiling") as progress:
        made = export_contexts(bundle, folder, chips, progress)
    answer = contexts_answer(folder, made.manifest, made.losses, out.warnings)
    out.emit(answer, lambda console: _print_chips(console, answer))


def _export_aot(out: Output, bundle: "Bundle", folder: Path, chips: list[str]) -> None:
    """Copies of the TFLite file with code in place of its int8 DSP signatures, each compared with its int8 subgraph."""
    from stretch.export.answer import aot_answer
    from stretch.export.tflite.aot import export_aot

    with out.progress("compiling") as progress:
        made = export_aot(bundle, folder, chips, progress)
    answer = aot_answer(folder, made.manifest, made.compiled, out.warnings)
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
    """What the new files are predicted to take on the device."""
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
