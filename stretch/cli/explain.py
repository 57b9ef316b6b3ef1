"""`stretch explain`: where each operator of a bundle runs, why, and what it costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console


@verb
def explain(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    mapping: Annotated[
        list[str] | None, typer.Option("--map", help="Where a processor runs here, as gpu=cpu1; repeat or separate by commas.")
    ] = None,
) -> None:
    """Show where each operator runs, why it runs there and what it costs."""
    from scheduler.bundle import load_bundle
    from scheduler.cores import pinned
    from scheduler.delegates import get_delegate
    from scheduler.mapping import parse_mapping, place_processors

    loaded = load_bundle(bundle, check_hashes=True)
    manifest = loaded.manifest
    used = list(dict.fromkeys(entry.processor for entry in manifest.subgraphs))
    placements = place_processors(used, parse_mapping(mapping or []))
    ops = []
    with out.progress("explaining", total=len(manifest.subgraphs)) as step:
        for entry in manifest.subgraphs:
            place = placements[entry.processor]
            delegate = get_delegate(place.delegate).create(place.cores)
            with pinned(place.cores[:1]):
                nodes = delegate.places(loaded.file(entry.file))
            ops += [
                {
                    "name": node.name,
                    "op": node.op,
                    "subgraph": entry.name,
                    "processor": entry.processor,
                    "delegate": place.delegate,
                    "reason": node.reason,
                    "ms": node.ms,
                    "source": None if node.ms is None else "measured",
                }
                for node in nodes
            ]
            step(entry.name)
    for join in manifest.joins:
        reason = (
            "meeting point: branches write into their slice, nothing is copied"
            if join.kind == "concat"
            else "meeting point: branch outputs are added"
        )
        ops.append(
            {
                "name": join.name,
                "op": f"join {join.kind}",
                "subgraph": join.name,
                "processor": join.processor,
                "delegate": None,
                "reason": reason,
                "ms": None,
                "source": None,
            }
        )
    processors = {
        name: {"delegate": p.delegate, "cores": list(p.cores), "dispatch": p.dispatch, "stand_in": p.stand_in, "reason": p.reason}
        for name, p in placements.items()
    }
    subgraphs = [
        {
            "name": entry.name,
            "segment": entry.segment,
            "processor": entry.processor,
            "macs": entry.macs,
            "predicted_ms": entry.predicted_ms,
            "measured_ms": sum(float(op["ms"]) for op in ops if op["subgraph"] == entry.name and op["ms"] is not None) or None,
        }
        for entry in manifest.subgraphs
    ]

    def human(console: "Console") -> None:
        from rich.table import Table

        for name, p in processors.items():
            cores = f" on core {'+'.join(map(str, p['cores']))}" if p["cores"] else ""
            console.print(f"{name}: delegate {p['delegate']}{cores}, {p['dispatch']}; {p['reason']}")
        console.print()
        table = Table(box=None, pad_edge=False)
        table.add_column("operator")
        for title in ("kind", "subgraph", "delegate"):
            table.add_column(title)
        table.add_column("ms here", justify="right")
        table.add_column("why")
        for op in ops:
            ms = "" if op["ms"] is None else f"{op['ms']:.3f}"
            table.add_row(op["name"], op["op"], op["subgraph"], op["delegate"] or "", ms, op["reason"])
        console.print(table)
        console.print()
        total = Table(box=None, pad_edge=False)
        for title in ("subgraph", "processor"):
            total.add_column(title)
        for title in ("MACs", f"predicted ms on {manifest.device}", "measured ms here"):
            total.add_column(title, justify="right")
        for sub in subgraphs:
            times = ["" if sub[key] is None else f"{sub[key]:.2f}" for key in ("predicted_ms", "measured_ms")]
            total.add_row(sub["name"], sub["processor"], f"{sub['macs']:,}", *times)
        console.print(total)

    out.emit({"bundle": bundle, "device": manifest.device, "processors": processors, "subgraphs": subgraphs, "ops": ops}, human)
