"""`stretch explain`: where each operator of a bundle runs, why, and what it costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from stretch.stages.explain import Explanation


@verb
def explain(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="Predict for this device (see `stretch devices`) instead of measuring here.")
    ] = None,
    mapping: Annotated[
        list[str] | None, typer.Option("--map", help="Where a processor runs here, as gpu=cpu1; repeat or separate by commas.")
    ] = None,
) -> None:
    """Show where each operator runs, why it runs there and what it costs."""
    from predictors.devices import load_device
    from predictors.errors import UsageError
    from scheduler.bundle.load import load_bundle
    from stretch.stages.explain import explain_here, explain_on

    if device is not None and mapping:
        raise UsageError("--map places processors on this machine, --device asks about another", "give one of the two")
    loaded = load_bundle(bundle, check_hashes=True)

    with out.progress("explaining", total=len(loaded.manifest.subgraphs)) as progress:
        if device is None:
            found = explain_here(loaded, mapping or [], progress, out.warnings)
        else:
            found = explain_on(loaded, load_device(device), progress, out.warnings, out.warn)
    out.emit(found, lambda console: _print(console, found, loaded.manifest.device))


def _print(console: "Console", found: "Explanation", planned_for: str) -> None:
    from stretch.report.placement import operator_table, subgraph_table

    for name, p in found.processors.items():
        cores = f" on core {'+'.join(map(str, p.cores))}, {p.dispatch}" if p.cores else ""
        console.print(f"{name}: {p.delegate}{cores}; {p.reason}")
    console.print()
    console.print(operator_table(found.ops, found.device))
    console.print()
    console.print(subgraph_table(found.subgraphs, found.device, planned_for))
