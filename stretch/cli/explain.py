"""`stretch explain`: where each operator of a bundle, or of a file on a runtime, runs, why, and what it costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.explain.answer import RuntimeExplanation
    from stretch.stages.explain import Explanation


@verb
def explain(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle; an ONNX or TFLite file if a runtime is asked.")],
    device: Annotated[
        str | None,
        typer.Option(
            "--device", "-d", help="Predict for this device (see `stretch devices`) instead of measuring here; of a runtime, its device."
        ),
    ] = None,
    mapping: Annotated[
        list[str] | None, typer.Option("--map", help="Where a processor runs here, as gpu=cpu1; repeat or separate by commas.")
    ] = None,
    foreign_runtime: Annotated[
        str | None, typer.Option("--runtime", help="Ask this runtime about a file: onnxruntime, qnn, openvino, litert or opencl.")
    ] = None,
    fix: Annotated[
        Path | None, typer.Option("--fix", help="Write the ONNX file here with the changes that help, if it still computes the same.")
    ] = None,
) -> None:
    """Show where each operator runs, why it runs there and what it costs."""
    from predictors.errors import UsageError

    if foreign_runtime is not None:
        if mapping:
            raise UsageError("--map places the processors of a bundle, --runtime asks about a file", "give one of the two")
        _explain_file(out, bundle, foreign_runtime, device, fix)
        return
    if fix is not None:
        raise UsageError("--fix changes a file for a runtime, and none is asked", "add --runtime onnxruntime, or another")
    from predictors.devices import load_device
    from scheduler.bundle.load import load_bundle
    from stretch.stages.explain import explain_here, explain_on

    if device is not None and mapping:
        raise UsageError("--map places processors on this machine, --device asks about another", "give one of the two")
    if bundle.suffix.lower() in (".onnx", ".tflite") and bundle.is_file():
        raise UsageError(f"{bundle} is a file, not the folder of a bundle", "add --runtime onnxruntime, qnn, openvino, litert or opencl")
    loaded = load_bundle(bundle, check_hashes=True)

    with out.progress("explaining", total=len(loaded.manifest.subgraphs)) as progress:
        if device is None:
            found = explain_here(loaded, mapping or [], progress, out.warnings)
        else:
            found = explain_on(loaded, load_device(device), progress, out.warnings, out.warn)
    out.emit(found, lambda console: _print(console, found, loaded.manifest.device))


def _explain_file(out: Output, file: Path, runtime: str, device: str | None, fix: Path | None) -> None:
    """Ask a runtime about a file, and try the changes that may help."""
    import msgspec

    from scheduler.explain import explain_file, fix_file

    with out.progress(f"asking {runtime}") as progress:
        found = explain_file(file, runtime, device)
        progress("about changes")
        found = fix_file(found, runtime, device, fix)
    for warning in found.warnings:
        out.warn(warning)
    found = msgspec.structs.replace(found, warnings=out.warnings)
    out.emit(found, lambda console: _print_file(console, found))


def _print_file(console: "Console", found: "RuntimeExplanation") -> None:
    from stretch.report.runtime import runtime_lines, runtime_table

    for line in runtime_lines(found):
        console.print(line)
    console.print()
    console.print(runtime_table(found))


def _print(console: "Console", found: "Explanation", planned_for: str) -> None:
    from stretch.report.placement import operator_table, subgraph_table

    for name, p in found.processors.items():
        cores = f" on core {'+'.join(map(str, p.cores))}, {p.dispatch}" if p.cores else ""
        console.print(f"{name}: {p.delegate}{cores}; {p.reason}")
    console.print()
    console.print(operator_table(found.ops, found.device))
    console.print()
    console.print(subgraph_table(found.subgraphs, found.device, planned_for))
