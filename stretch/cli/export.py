"""`stretch export`: a bundle in other precisions, as TFLite, DSP code, torch or C++ code; or a design of a trained run."""

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from predictors.errors import UsageError
from stretch.cli.inputs import InputSizes, read_inputs
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.options import Preprocessing, settings
from stretch.cli.output import Output, import_torch, only_flags, verb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from scheduler.bundle.load import Bundle
    from scheduler.bundle.manifest import Manifest
    from stretch.capture.inputs import InputShapes
    from stretch.export.answer import ChipsAnswer, ExportAnswer


class Format(StrEnum):
    """What to write."""

    onnx = "onnx"
    tflite = "tflite"
    qnn = "qnn"
    code = "code"
    cpp = "cpp"


class RunnerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Sources of a C++ program; the fields are the keys of `stretch export --as cpp --json`."""

    model: str  # Name of the model.
    device: str  # Profile that it was planned for.
    out: str  # The folder.
    files: list[str]  # Names of what is in it.
    sha256: str  # Of the TFLite file, the only one that the built program takes.
    warnings: list[str]  # What a person should know.


#: Is in the folder of every run of `stretch train`.
RUN_FILE = "run.json"


#: Number of synthetic images for bundles with random weights.
SYNTHETIC = 16

#: Seconds after Ctrl-C for removing unfinished files.
GRACE_S = WRITER_GRACE_S


@verb
@settings()
def export(
    out: Output,
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE_OR_RUN",
            help="Folder of an fp32 bundle; any bundle with --as tflite, one with int8 dsp subgraphs with --as qnn, one with a TFLite file "
            "with --as cpp. Or the folder of a run that `stretch train` wrote. With --as code also a model: a name of `stretch list models`, "
            "package.module:factory, file.py:factory or a model file.",
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of what is written; new for code and cpp. Default: RUN/extracted for a run.")
    ] = None,
    form: Annotated[
        Format,
        typer.Option(
            "--as",
            "--format",
            help="onnx: one ONNX file per subgraph; tflite: also one TFLite file of all subgraphs; qnn: also compiled code for the DSPs of --chips; "
            "code: readable torch code, a class a branch, which runs, trains and exports without nn-stretch; cpp: sources of a program that runs "
            "the branches on LiteRT without Python.",
        ),
    ] = Format.onnx,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precision by processor, such as cpu=fp32,dsp=int8. Default: the planned precisions, or with --as tflite those of the bundle."
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="Folder of calibration images (pictures, .npy, .npz). Default for random weights and fp16: synthetic images."),
    ] = None,
    limit: Annotated[int, typer.Option("--image-count", help="Maximum number of images; the first 64 calibrate.", min=8, max=100_000)] = 64,
    preprocessing: Preprocessing = None,
    min_cosine: Annotated[
        float,
        typer.Option(
            help="Minimum cosine similarity to fp32 of the output of each int8 or fp16 subgraph and of the model.", min=0.0, max=1.0
        ),
    ] = 0.99,
    fp32_fallback: Annotated[
        bool, typer.Option("--fp32-fallback", help="Keep subgraphs below --min-cosine in fp32 instead of failing.")
    ] = False,
    chips: Annotated[str, typer.Option(help="With --as qnn: chips to compile for, separated by commas.")] = "sm8350,sm8450,sm8550",
    aot: Annotated[
        str | None,
        typer.Option(
            metavar="CHIPS",
            help="Experimental: with --as tflite, compile the int8 dsp signatures of a bundle's TFLite file for these chips.",
        ),
    ] = None,
    design: Annotated[
        Path | None,
        typer.Option(help="Of a run: design (TOML) in the supernet's pool or within its range. Default: the first design of the run."),
    ] = None,
    bundle: Annotated[bool, typer.Option("--bundle/--no-bundle", help="Of a run: write a bundle beside the weights.")] = True,
    controls: Annotated[
        bool, typer.Option("--controls/--no-controls", help="Of a run: write the sequential controls into the bundle.")
    ] = True,
    rank: Annotated[
        int,
        typer.Option(help="Of a run of a supernet: also evaluate this many designs and write accuracy.json for `stretch branch`.", min=0),
    ] = 0,
    weights: Annotated[str, typer.Option(help="Of a model: default, none, or a .safetensors or .pth file.")] = "default",
    input_size: InputSizes = None,
    seed: Annotated[int, typer.Option(help="Of a model: seed of random weights.")] = 0,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Execute the Python code that a model's name or a run's recipe names.")
    ] = False,
) -> None:
    """Write a bundle in other precisions, with a TFLite file or DSP code, as torch or C++ code; or a design of a trained run."""
    if form is Format.code:
        only_flags("--as code", "source folder form weights input_size seed trust_code")
        _export_code(out, source, _named(folder), read_inputs(input_size), weights, seed, trust_code)
    elif form is Format.cpp:
        only_flags("--as cpp", "source folder form")
        _export_cpp(out, Path(source), _named(folder))
    elif (Path(source) / RUN_FILE).is_file():
        only_flags("the folder of a run", "source folder design bundle controls rank trust_code")
        _export_run(out, Path(source), folder, design, bundle, controls, rank, trust_code)
    else:
        _export_bundle(
            out, Path(source), _named(folder), form, precision, images, limit, preprocessing, min_cosine, fp32_fallback, chips, aot
        )


def _named(folder: Path | None) -> Path:
    """The folder of `--out`, which only a run can do without."""
    if folder is None:
        raise UsageError("nothing says where to write", "name a folder with --out")
    return folder


def _export_bundle(
    out: Output,
    bundle: Path,
    folder: Path,
    form: Format,
    precision: str | None,
    images: Path | None,
    limit: int,
    preprocessing: "Mapping[str, Any] | None",
    min_cosine: float,
    fp32_fallback: bool,
    chips: str,
    aot: str | None,
) -> None:
    """Write a bundle as another one, and compare both."""
    from scheduler.bundle.load import load_bundle
    from stretch.export.staging import check_target

    loaded = _restated(load_bundle(bundle, check_hashes=True), preprocessing)
    manifest = loaded.manifest
    check_target(folder)
    if aot is not None:
        only_flags("--aot", "source folder form aot", "give it with --as tflite alone, on a bundle that has a TFLite file")
        if form is not Format.tflite:
            raise UsageError("--aot compiles signatures of a TFLite file", "add --as tflite")
        _export_aot(out, loaded, folder, _names(aot))
        return
    if form is Format.qnn:
        only_flags("--as qnn", "source folder form chips", "make the subgraphs int8 first, with --precision dsp=int8 and --images")
        _export_qnn(out, loaded, folder, _names(chips))
        return
    only_flags(f"--as {form}", "source folder form precision images limit change config_file min_cosine fp32_fallback")
    wanted = _wanted(form, precision, manifest)
    samples, source = _samples(manifest, wanted, images, limit)
    with out.progress("exporting") as progress:
        write = _writer(form)
        written = write(loaded, folder, wanted, samples, source, progress=progress, min_cosine=min_cosine, repair=fp32_fallback)
    _emit(out, folder, form, manifest, written)


def _export_code(out: Output, source: str, folder: Path, shape: "InputShapes | None", weights: str, seed: int, trust_code: bool) -> None:
    """Write a model or the network of a bundle as a Python package without nn-stretch."""
    import_torch()
    from msgspec.structs import replace

    from stretch.emit.package import emit

    with out.progress("writing"):
        answer = emit(source, folder, shape, weights=weights, seed=seed, trust_code=trust_code)
    for warning in answer.warnings:
        out.warn(warning)
    what = f"{answer.network} in {answer.segments} segments" if answer.branched else answer.network
    lines = [
        f"{what}: {len(answer.files)} files, outputs differ by {answer.max_error:.1e} of the largest",
        f"from {answer.package.name} import load  # in {answer.package.absolute().parent}",
    ]
    out.emit(replace(answer, warnings=out.warnings), lambda console: console.print("\n".join(lines), soft_wrap=True))


def _export_cpp(out: Output, bundle: Path, folder: Path) -> None:
    """Write the sources of a C++ program that runs a bundle."""
    from scheduler.bundle.load import load_bundle
    from scheduler.runner.sources import write_runner

    loaded = load_bundle(bundle, check_hashes=True)
    files = write_runner(loaded, folder)
    manifest = loaded.manifest
    answer = RunnerAnswer(
        model=manifest.model.name,
        device=manifest.device,
        out=str(folder),
        files=files,
        sha256=manifest.files[str(manifest.tflite)].sha256,
        warnings=out.warnings,
    )
    lines = [
        f"{answer.model} for {answer.device}: {len(files)} files in {folder}",
        f"build them: cmake -S {folder} -B BUILD -DLITERT_LIBRARY=/path/to/libLiteRt.so && cmake --build BUILD",
        f"run them:   BUILD/runner {folder}/model.tflite --out RESULTS",
    ]
    out.emit(answer, lambda console: console.print("\n".join(lines), soft_wrap=True))


def _export_run(
    out: Output, run: Path, folder: Path | None, design: Path | None, bundle: bool, controls: bool, rank: int, trust_code: bool
) -> None:
    """Take a design out of a trained run: its weights, its accuracy and a bundle."""
    import_torch()
    from stretch.planning.cost.accuracy_file import save_accuracy
    from stretch.report.plan import agreement_lines
    from stretch.train.answer import ExtractAnswer, ExtractedAccuracy, ranking_answer
    from stretch.train.extract import extract
    from stretch.train.rank import check_rank
    from stretch.train.rank import rank as rank_designs

    if rank:
        check_rank(run, rank)
    target = folder or run / "extracted"
    with out.progress("extracting") as progress:
        progress("weights")
        done = extract(run, target, design=design, bundle=bundle, controls=controls, trust_code=trust_code)
        ranking = None
        if rank:
            predictor = rank_designs(run, rank, progress, trust_code=trust_code).predictor
            save_accuracy(target / "accuracy.json", predictor)
            ranking = ranking_answer(target / "accuracy.json", predictor)
    answer = ExtractAnswer(
        checkpoint=done.checkpoint,
        accuracy=ExtractedAccuracy(supernet=done.inside, extracted=done.extracted) if done.labelled else None,
        agreement=done.agreement,
        bundle=done.bundle,
        checks=done.manifest.checks if done.manifest else {},
        ranking=ranking,
        warnings=out.warnings,
    )
    lines = []
    if answer.accuracy is not None:
        lines.append(f"accuracy {answer.accuracy.extracted:.2%}, within the run {answer.accuracy.supernet:.2%}")
    if answer.agreement is not None:
        lines += agreement_lines(answer.agreement)
    lines.append(f"weights: {answer.checkpoint}")
    if ranking is not None:
        lines += [
            f"{ranking.designs} designs ranked: rank correlation {ranking.rank_correlation:.2f} (p {ranking.p_value:.2g}) on designs left out, "
            f"error {ranking.rmse:.2%}",
            f"plan with it: stretch branch MODEL --device DEVICE --set accuracy={ranking.file}",
        ]
    if answer.bundle:
        lines.append(f"bundle written; run it with: stretch run {answer.bundle}")
    out.emit(answer, lambda console: console.print("\n".join(lines), soft_wrap=True))


def _restated(bundle: "Bundle", requested: "Mapping[str, Any] | None") -> "Bundle":
    """The bundle with the preprocessing of the flags, which applies to the images read here and is written into the new bundle."""
    from msgspec.structs import replace

    from scheduler.bundle.preprocessing import IMAGENET, requested_preprocessing

    model = bundle.manifest.model
    if not requested:
        return bundle
    read = requested_preprocessing(model.preprocessing or IMAGENET, requested, model.input_shape)
    return dataclasses.replace(bundle, manifest=replace(bundle.manifest, model=replace(model, preprocessing=read)))


def _wanted(form: Format, precision: str | None, manifest: "Manifest") -> dict[str, str]:
    """Precision by processor, as requested or as planned."""
    from stretch.export.precision import planned_precision

    if precision is not None:
        return _precision(precision)
    return {} if form is Format.tflite else planned_precision(manifest)


def _writer(form: Format) -> Any:
    """The export function of a format."""
    from stretch.export.precision import export_precision

    if form is not Format.tflite:
        return export_precision
    from stretch.export.tflite.bundle import export_tflite

    return lambda bundle, folder, wanted, *rest, **options: export_tflite(bundle, folder, *rest, precision=wanted, **options)


def _samples(manifest: "Manifest", wanted: dict[str, str], images: Path | None, limit: int) -> "tuple[list[Any], str]":
    """Images for calibration and comparison, and their source."""
    from scheduler.bundle.preprocessing import IMAGENET
    from stretch.quantize.images import load_images, synthetic_images

    if images is not None:
        read = manifest.model.preprocessing or IMAGENET
        return list(load_images(images, manifest.model.input_shape, limit, read)), "folder"
    if manifest.weights.source == "random" or "int8" not in wanted.values():
        return list(synthetic_images(manifest.model.input_shape, min(limit, SYNTHETIC))), "synthetic"
    raise UsageError("int8 needs calibration images", "give a folder of images that the model will meet with --images")


def _emit(out: Output, folder: Path, form: Format, before: "Manifest", written: Any) -> None:
    """Report the new bundle, the subgraphs that stayed in fp32, and the predicted latency."""
    from stretch.export.answer import export_answer

    for name, why in written.kept.items():
        where = f", on processor {written.moved[name]}" if name in written.moved else ""
        out.warn(f"subgraph `{name}` stays in fp32{where}: {why}")
    if before.predicted and not written.manifest.predicted:
        out.warn(f"the profile {before.device} cannot be read here, so the new bundle has no predicted times")
    answer = export_answer(folder, "tflite" if form is Format.tflite else "onnx", written.manifest, written.losses, out.warnings)
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
