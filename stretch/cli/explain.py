"""`stretch explain`: placement, reason and cost of each operator of a bundle, or of a file on a runtime."""

from pathlib import Path
from typing import Annotated

import typer

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
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", help="Place where a processor's subgraphs run here, such as gpu=cpu1; repeat or separate by commas."),
    ] = None,
    foreign_runtime: Annotated[
        str | None, typer.Option("--runtime", help="Show how this runtime places a file: onnxruntime, qnn, openvino, litert or opencl.")
    ] = None,
    fix: Annotated[
        Path | None, typer.Option("--fix", help="Write the ONNX file with all changes that improve its placement and preserve its results.")
    ] = None,
) -> None:
    """Show where each operator runs, why, and its cost."""
    from predictors.errors import UsageError

    if foreign_runtime is not None:
        if mapping:
            raise UsageError("--map places the processors of a bundle, --runtime explains a file", "give one of the two")
        _explain_file(out, bundle, foreign_runtime, device, fix)
        return
    if fix is not None:
        raise UsageError("--fix changes a file for a runtime, but no runtime is named", "add --runtime onnxruntime, or another")
    from predictors.devices import load_device
    from scheduler.bundle.load import load_bundle
    from stretch.report.explanation import explanation_page
    from stretch.stages.explain import explain_here, explain_on

    if device is not None and mapping:
        raise UsageError("--map places processors on this machine, --device predicts for another", "give one of the two")
    if bundle.suffix.lower() in (".onnx", ".tflite") and bundle.is_file():
        raise UsageError(f"{bundle} is a file, not the folder of a bundle", "add --runtime onnxruntime, qnn, openvino, litert or opencl")
    loaded = load_bundle(bundle, check_hashes=True)

    with out.progress("explaining", total=len(loaded.manifest.subgraphs)) as progress:
        if device is None:
            explanation = explain_here(loaded, mapping or [], progress, out.warnings)
        else:
            explanation = explain_on(loaded, load_device(device), progress, out.warnings, out.warn)
    out.show(explanation, lambda _: explanation_page(explanation, loaded.manifest.device))


def _explain_file(out: Output, file: Path, runtime: str, device: str | None, fix: Path | None) -> None:
    """Explain a file on a runtime, and try changes that may improve its placement."""
    import msgspec

    from scheduler.explain import explain_file, fix_file
    from stretch.report.explanation import runtime_page

    with out.progress(f"asking {runtime}") as progress:
        explanation = explain_file(file, runtime, device)
        progress("about changes")
        explanation = fix_file(explanation, runtime, device, fix)
    for warning in explanation.warnings:
        out.warn(warning)
    explanation = msgspec.structs.replace(explanation, warnings=out.warnings)
    out.show(explanation, lambda _: runtime_page(explanation))
