"""`stretch export`: a bundle in other precisions, as TFLite, DSP code, torch or C++ code; or a design of a trained run."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.errors import UsageError
from stretch.cli.inputs import InputSizes, read_inputs
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.options import Preprocessing, settings
from stretch.cli.output import Output, import_torch, only_flags, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretch.api.exporting import RunnerAnswer
    from stretch.emit.package import EmitAnswer
    from stretch.export.answer import ChipsAnswer, ExportAnswer
    from stretch.report.html.page import Page
    from stretch.train.answer import ExtractAnswer


class Format(StrEnum):
    """What to write."""

    onnx = "onnx"
    tflite = "tflite"
    qnn = "qnn"
    code = "code"
    cpp = "cpp"


#: Is in the folder of every run of `stretch train`.
RUN_FILE = "run.json"

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
    run = (Path(source) / RUN_FILE).is_file()
    takes, hint = _TAKES["run" if run and form is Format.onnx else "aot" if aot is not None else form.value]
    only_flags("the folder of a run" if run else f"--as {form.value}" if aot is None else "--aot", f"source folder form {takes}", hint)
    if aot is not None and form is not Format.tflite:
        raise UsageError("--aot compiles signatures of a TFLite file", "add --as tflite")
    if run or form is Format.code:
        import_torch()
    from stretch.api.exporting import export as write

    with out.progress("exporting") as progress:
        answer = write(
            source,
            folder,
            form.value,
            precision=None if precision is None else _precision(precision),
            images=images,
            image_count=limit,
            preprocessing=preprocessing,
            min_cosine=min_cosine,
            fp32_fallback=fp32_fallback,
            chips=_names(chips),
            aot=_names(aot or ""),
            design=design,
            bundle=bundle,
            controls=controls,
            rank=rank,
            weights=weights,
            input_shape=read_inputs(input_size),
            seed=seed,
            trust_code=trust_code,
            progress=progress,
        )
    answer = out.with_warnings(answer)
    out.show(answer, lambda _: _PAGES[type(answer).__name__](answer))


#: Parameters that each form takes, and what to do with others.
_TAKES = {
    "code": ("weights input_size seed trust_code", ""),
    "cpp": ("", ""),
    "run": ("design bundle controls rank trust_code", ""),
    "qnn": ("chips", "make the subgraphs int8 first, with --precision dsp=int8 and --images"),
    "aot": ("aot", "give it with --as tflite alone, on a bundle that has a TFLite file"),
    **dict.fromkeys(("onnx", "tflite"), ("precision images limit change config_file min_cosine fp32_fallback", "")),
}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _precision(text: str) -> dict[str, str]:
    """``cpu=fp32,dsp=int8`` as a dictionary."""
    chosen: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value) or name in chosen:
            raise UsageError(f"--precision {text} is not understood", "write it as --precision cpu=fp32,dsp=int8")
        chosen[name] = value
    return chosen


def _bundle_page(answer: "ExportAnswer") -> "Page":
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
        speedup, single = predicted["speedup"], predicted["best_single_processor"]
        faster = f", {speedup:.2f}× the best single processor ({single})" if speedup is not None else ""
        notes.append(f"predicted on {answer.device}: {predicted['makespan_ms']:.2f} ms{faster}; recommended: {answer.recommended}")
    titles = ("subgraph", "processor", "precision", "cosine with ONNX" if tflite else "cosine with fp32", "SNR dB")
    return _page(titles, rows, [*notes, f"bundle: {answer.bundle}"])


def _chips_page(answer: "ChipsAnswer") -> "Page":
    signatures = answer.format == "tflite"
    rows = [(sub.chip, sub.name, str(getattr(sub, "operators", "")), f"{sub.cosine:.5f}", f"{sub.snr_db:.1f}") for sub in answer.subgraphs]
    what = (
        "every operator of these signatures was taken; compared on the simulator of this machine"
        if signatures
        else f"run its code with: stretch run {answer.bundle} --dsp-code CHIP --trust-code"
    )
    titles = ("chip", "signature" if signatures else "subgraph", "operators", "cosine with int8", "SNR dB")
    return _page(titles, rows, [f"bundle: {answer.bundle}; {what}"])


def _code_page(answer: "EmitAnswer") -> "Page":
    what = f"{answer.network} in {answer.segments} segments" if answer.branched else answer.network
    lines = [f"{what}: {len(answer.files)} files, outputs differ by {answer.max_error:.1e} of the largest"]
    return _page((), (), [*lines, f"from {answer.package.name} import load  # in {answer.package.absolute().parent}"])


def _cpp_page(answer: "RunnerAnswer") -> "Page":
    folder = answer.out
    lines = [
        f"{answer.model} for {answer.device}: {len(answer.files)} files in {folder}",
        f"build them: cmake -S {folder} -B BUILD -DLITERT_LIBRARY=/path/to/libLiteRt.so && cmake --build BUILD",
        f"run them:   BUILD/runner {folder}/model.tflite --out RESULTS",
    ]
    return _page((), (), lines)


def _run_page(answer: "ExtractAnswer") -> "Page":
    from stretch.report.plan import agreement_lines

    lines = []
    if answer.accuracy is not None:
        lines.append(f"accuracy {answer.accuracy.extracted:.2%}, within the run {answer.accuracy.supernet:.2%}")
    if answer.agreement is not None:
        lines += agreement_lines(answer.agreement)
    lines.append(f"weights: {answer.checkpoint}")
    if (ranking := answer.ranking) is not None:
        lines += [
            f"{ranking.designs} designs ranked: rank correlation {ranking.rank_correlation:.2f} (p {ranking.p_value:.2g}) on designs left out, "
            f"error {ranking.rmse:.2%}",
            f"plan with it: stretch branch MODEL --device DEVICE --set accuracy={ranking.file}",
        ]
    return _page((), (), [*lines, *([f"bundle written; run it with: stretch run {answer.bundle}"] if answer.bundle else [])])


def _page(titles: "Sequence[str]", rows: "Sequence[Sequence[str]]", notes: "Sequence[str]") -> "Page":
    from stretch.report.html.page import Grid, Page, Section

    grid = Grid("What was written", titles, rows, right=range(3, len(titles)))
    return Page(title="Exported", lead=[], sections=[Section("written", "Written", (), [grid])] if rows else [], notes=notes)


#: Report of each answer, by its class.
_PAGES = {
    "ExportAnswer": _bundle_page,
    "ChipsAnswer": _chips_page,
    "EmitAnswer": _code_page,
    "RunnerAnswer": _cpp_page,
    "ExtractAnswer": _run_page,
}
