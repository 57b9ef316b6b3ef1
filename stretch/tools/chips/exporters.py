"""Export of code for the DSPs of chips: per int8 subgraph (`--as qnn`), or for the signatures of a TFLite file (`--as tflite --aot`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.progress import Progress
from stretch.api.exporters.base import Exporter, exporters, written_page
from stretch.api.parameters import Parsed
from stretch.report.html.page import Page

if TYPE_CHECKING:
    from stretch.tools.chips.compile import ChipsAnswer


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _contexts(
    source: str,
    out: Path,
    *,
    chips: Annotated[
        Sequence[str],
        typer.Option(help="With --as qnn: chips to compile for, separated by commas. Default: sm8350,sm8450,sm8550."),
        Parsed(str | None, _names),
    ] = ("sm8350", "sm8450", "sm8550"),
    progress: Progress,
) -> "ChipsAnswer":
    from scheduler.bundle.load import load_bundle
    from stretch.tools.chips.compile import export_contexts

    return export_contexts(load_bundle(source, check_hashes=True), out, chips, progress)


def _signatures(
    source: str,
    out: Path,
    *,
    aot: Annotated[
        Sequence[str],
        typer.Option(
            metavar="CHIPS",
            help="Experimental: with --as tflite, compile the int8 dsp signatures of a bundle's TFLite file for these chips.",
        ),
        Parsed(str | None, _names),
    ] = (),
    progress: Progress,
) -> "ChipsAnswer":
    from scheduler.bundle.load import load_bundle
    from stretch.tools.chips.compile import export_aot

    return export_aot(load_bundle(source, check_hashes=True), out, aot, progress)


def _page(answer: "ChipsAnswer") -> Page:
    signatures = answer.format == "tflite"
    rows = [(sub.chip, sub.name, str(getattr(sub, "operators", "")), f"{sub.cosine:.5f}", f"{sub.snr_db:.1f}") for sub in answer.subgraphs]
    summary = (
        "every operator of these signatures was taken; compared on the simulator of this machine"
        if signatures
        else f"run its code with: stretch run {answer.bundle} --dsp-code CHIP --trust-code"
    )
    titles = ("chip", "signature" if signatures else "subgraph", "operators", "cosine with int8", "SNR dB")
    return written_page(titles, rows, [f"bundle: {answer.bundle}; {summary}"])


exporters.register("qnn")(
    Exporter(
        "also compiled code for the DSPs of --chips",
        _contexts,
        _page,
        hint="make the subgraphs int8 first, with --precision dsp=int8 and --images",
    )
)
exporters.register("aot")(
    Exporter(
        "compiled code for the int8 dsp signatures of a TFLite file",
        _signatures,
        _page,
        hint="give it with --as tflite alone, on a bundle that has a TFLite file",
        instead_of="tflite",
        applies=lambda source, options: bool(options.get("aot")),
        called="--aot",
    )
)
