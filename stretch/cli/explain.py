"""`stretch explain`: placement, reason and cost of each operator of a bundle, or of a file on a runtime."""

from pathlib import Path
from typing import Annotated

import typer

from stretch.cli.inputs import Mapping
from stretch.cli.output import Output, verb


@verb
def explain(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle; with --runtime an ONNX or TFLite file.")],
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-d",
            help="Predict for this device (see `stretch list devices`) instead of measuring here; with --runtime, a device of the runtime.",
        ),
    ] = None,
    mapping: Mapping = None,
    foreign_runtime: Annotated[
        str | None, typer.Option("--runtime", help="Show how this runtime places a file: onnxruntime, qnn, openvino, litert or opencl.")
    ] = None,
    fix: Annotated[
        Path | None, typer.Option("--fix", help="Write the ONNX file with all changes that improve its placement and preserve its results.")
    ] = None,
) -> None:
    """Show where each operator runs, why, and its cost."""
    from stretch.api.verbs import explain as answer
    from stretch.report.explanation import explanation_page, runtime_page

    with out.progress("explaining") as progress:
        explanation = answer(bundle, device, runtime=foreign_runtime, mapping=mapping or [], fix=fix, progress=progress)
    explanation = out.with_warnings(explanation)
    out.show(explanation, lambda _: explanation_page(explanation) if foreign_runtime is None else runtime_page(explanation))
