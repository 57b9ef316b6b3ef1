"""`stretch export`: a bundle again, with processors' subgraphs in other precisions, or with a TFLite file."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.manifest import Manifest
    from stretch.quantize.compare import Loss


class Format(StrEnum):
    """Files to write."""

    onnx = "onnx"
    tflite = "tflite"


#: Made-up images for random weights.
SYNTHETIC = 16


@verb
def export(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of an fp32 bundle; with --format tflite of any.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder of the new bundle.")],
    file_format: Annotated[
        Format, typer.Option("--format", help="onnx: an ONNX file a subgraph; tflite: beside them one TFLite file of all subgraphs.")
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
    limit: Annotated[int, typer.Option("--max-images", help="Images to use at most; the first 64 calibrate.", min=8, max=100_000)] = 64,
    min_cosine: Annotated[
        float, typer.Option(help="Of each int8 or fp16 subgraph's output, and the model's, with fp32: less is refused.", min=0.0, max=1.0)
    ] = 0.99,
    repair: Annotated[bool, typer.Option("--repair", help="Keep in fp32 what would be refused.")] = False,
) -> None:
    """Write a bundle again with the subgraphs of some processors in int8 or fp16, or with a TFLite file, and compare."""
    from predictors.errors import UsageError
    from scheduler.bundle import load_bundle
    from stretch.export.precision import export_precision, planned_precision
    from stretch.export.staging import check_target
    from stretch.quantize.images import load_images, synthetic_images

    loaded = load_bundle(bundle, check_hashes=True)
    manifest = loaded.manifest
    check_target(folder)
    tflite = file_format is Format.tflite
    wanted = _precision(precision) if precision is not None else {} if tflite else planned_precision(manifest)
    if images is not None:
        samples, source = load_images(images, manifest.model.input_shape, limit), "folder"
    elif manifest.weights.source == "random" or "int8" not in wanted.values():
        samples, source = synthetic_images(manifest.model.input_shape, min(limit, SYNTHETIC)), "synthetic"
    else:
        raise UsageError("int8 needs calibration images, none were given", "give a folder of images that the model will meet with --images")
    with out.progress("exporting") as step:
        made: Any
        if tflite:
            from stretch.export.tflite.bundle import export_tflite

            made = export_tflite(loaded, folder, samples, source, precision=wanted, min_cosine=min_cosine, repair=repair, step=step)
        else:
            made = export_precision(loaded, folder, wanted, samples, source, min_cosine=min_cosine, repair=repair, step=step)
    for name, why in made.kept.items():
        where = f", on processor {made.moved[name]}" if name in made.moved else ""
        out.warn(f"subgraph `{name}` stays in fp32{where}: {why}")
    record = made.manifest.checks["tflite" if tflite else "precision"]
    data: dict[str, Any] = {
        "bundle": folder,
        "files": [{"file": name, "bytes": entry.bytes, "sha256": entry.sha256} for name, entry in made.manifest.files.items()],
        "format": file_format.value,
        "subgraphs": _subgraphs(made.manifest, made.losses),
        "checks": record,
        "warnings": out.warnings,
    }
    out.emit(data, lambda console: _print(console, data))


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


def _subgraphs(manifest: "Manifest", losses: "dict[str, Loss]") -> list[dict[str, Any]]:
    """Each subgraph with what was compared: another precision with fp32, or TFLite with ONNX."""
    return [
        {
            "name": sub.name,
            "processor": sub.processor,
            "precision": sub.precision,
            "cosine": losses[sub.name].cosine if sub.name in losses else None,
            "snr_db": losses[sub.name].snr_db if sub.name in losses else None,
        }
        for sub in manifest.subgraphs
    ]


def _print(console: "Console", data: dict[str, Any]) -> None:
    from rich.table import Table

    tflite = data["format"] == Format.tflite

    table = Table(box=None, pad_edge=False)
    for title in ("subgraph", "processor", "precision"):
        table.add_column(title)
    for title in ("cosine with ONNX" if tflite else "cosine with fp32", "SNR dB"):
        table.add_column(title, justify="right")
    for sub in data["subgraphs"]:
        numbers = ["", ""] if sub["cosine"] is None else [f"{sub['cosine']:.5f}", f"{sub['snr_db']:.1f}"]
        table.add_row(sub["name"], sub["processor"], sub["precision"], *numbers)
    console.print(table)
    output, images = data["checks"]["output"], data["checks"]["images"]
    same = "" if output.get("top1_agreement") is None else f", the same best class for {output['top1_agreement']:.1%}"
    exact = f"; with fp32 {output['fp32']['cosine']:.5f}, {output['fp32']['snr_db']:.1f} dB," if tflite else ""
    console.print(
        f"output: cosine {output['cosine']:.5f}, {output['snr_db']:.1f} dB{exact}{same} of {images['count']} images ({images['source']})"
    )
    console.print(f"bundle: {data['bundle']}")
